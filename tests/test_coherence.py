"""Files that commands and file tools change in turns, without a pause: each sees at once, and whole, what the other did."""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from workbench.errors import SandboxError
from workbench.mounting import SandboxOptions
from workbench.protocol.commands import Command
from workbench.sandbox import probe
from workbench.sandbox.backend import SandboxSpec
from workbench.workspace import Workspace

STEPS = 20_000 if os.environ.get("WORKBENCH_SUITES") == "full" else 100
SEED = int(os.environ.get("WORKBENCH_SEED", "1"))
REPEATED = 2000

# Does what it's told, a line of JSON each; beside that it replaces the file `hot` again and again.
AGENT = f"""
import base64, json, os, sys, threading
def replace():
    number = 0
    while True:
        number += 1
        with open("hot.new", "w") as file:
            file.write(("%d:" % number) * {REPEATED})
        os.rename("hot.new", "hot")
def do(call, name, given):
    path = os.path.join("d", name)
    if call == "read":
        with open(path, "rb") as file:
            return base64.b64encode(file.read()).decode()
    if call == "list":
        return sorted(os.listdir("d"))
    if call in ("write", "append"):
        with open(path, "wb" if call == "write" else "ab") as file:
            file.write(base64.b64decode(given))
    elif call == "unlink":
        os.unlink(path)
    else:
        os.rename(path, os.path.join("d", given))
threading.Thread(target=replace, daemon=True).start()
while not os.path.exists("hot"):
    pass
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    print(json.dumps(do(*json.loads(line))), flush=True)
"""


class Inside:
    """The agent in the sandbox."""

    def __init__(self) -> None:
        self._asked, self._questions = anyio.create_memory_object_stream[bytes](10)
        self._told, self._answers = anyio.create_memory_object_stream[bytes](1000)
        self._rest = b""

    async def stdin(self) -> AsyncIterator[bytes]:
        async with self._questions:
            async for question in self._questions:
                yield question

    async def take(self, data: bytes) -> None:
        await self._told.send(data)

    async def line(self) -> object:
        while b"\n" not in self._rest:
            self._rest += await self._answers.receive()
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    async def do(self, call: str, name: str = "", given: bytes | str = b"") -> object:
        text = base64.b64encode(given).decode() if isinstance(given, bytes) else given
        await self._asked.send(json.dumps([call, name, text]).encode() + b"\n")
        return await self.line()

    def end(self) -> None:
        self._asked.close()

    def close(self) -> None:
        for stream in (self._asked, self._told, self._answers):
            stream.close()


@pytest.fixture(params=["mounted", "copied", "plain", "namespace"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxOptions:
    if request.param != "namespace":
        request.getfixturevalue("engine")
        return SandboxOptions(backend="docker", sharing=request.param)
    what = SandboxSpec("namespace", "", (), os.getuid(), os.getgid())
    try:
        anyio.run(probe.pick, "namespace", what, str(tmp_path))
    except SandboxError as error:
        pytest.skip(error.message)
    return SandboxOptions(backend="namespace")


def steps(model: dict[str, bytes]) -> Iterator[tuple[bool, str, str, bytes | str]]:
    """What is done, one after the other: whether inside, the call, the name, what it's given; `model` follows."""
    generator = random.Random(SEED)
    for _ in range(STEPS):
        call = generator.choice(["write", "write", "append", "unlink", "rename"])
        name = generator.choice(sorted(model)) if model and generator.random() < 0.8 else f"f{generator.randrange(40)}"
        given: bytes | str = generator.randbytes(generator.choice([0, 10, 5000, 200_000]))
        if call in ("unlink", "rename", "append") and name not in model:
            call = "write"
        if call == "rename":
            given = f"f{generator.randrange(40)}"
            if given == name:
                continue
            model[given] = model.pop(name)
        elif call == "unlink":
            del model[name]
        else:
            assert isinstance(given, bytes)
            model[name] = (model[name] if call == "append" else b"") + given
        yield generator.random() < 0.5, call, name, given


async def outside(workspace: Workspace, call: str, name: str, given: bytes | str) -> None:
    path = f"d/{name}".encode()
    if call == "unlink":
        await workspace.files.unlink(path)
    elif call == "rename":
        await workspace.files.rename(path, f"d/{given}".encode())
    else:
        assert isinstance(given, bytes)
        await (workspace.files.write if call == "write" else workspace.files.append)(path, given)


async def check(workspace: Workspace, inside: Inside, model: dict[str, bytes], names: set[str]) -> None:
    """Both sides have just what the model has."""
    listed = [name.decode().removeprefix("d/") for name, _ in await workspace.files.list(b"d")]
    assert sorted(listed) == sorted(model) == await inside.do("list")
    assert sorted((await workspace.glob(b"d/*")).paths) == sorted(f"d/{name}".encode() for name in model)
    for name in names & set(model):
        assert await workspace.read(f"d/{name}".encode()) == model[name]
        assert base64.b64decode(str(await inside.do("read", name))) == model[name]


async def hot_number(workspace: Workspace) -> int:
    """Which one of its versions the file is that is replaced all the time: one of them, whole."""
    content = (await workspace.read(b"hot")).decode()
    parts = content.split(":")
    assert len(parts) == REPEATED + 1
    assert set(parts[:-1]) == {parts[0]}
    return int(parts[0])


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_one_side_did_the_other_sees_at_once_and_whole(
    state: Path, tmp_path: Path, options: SandboxOptions
) -> None:
    root = tmp_path / "w"
    (root / "d").mkdir(parents=True)
    model = {f"f{number}": b"%d" % number * 100 for number in range(20)}
    for name, content in model.items():
        (root / "d" / name).write_bytes(content)
    before = {path.name: path.read_bytes() for path in (root / "d").iterdir()}
    inside = Inside()
    async with Workspace.open(root, options=options) as workspace, await workspace.sandbox() as client:
        target = (await client.hello()).mounts[0].target
        job = await client.spawn(Command(("python3", "-c", AGENT), cwd=target, stdin=True))
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                result = await job.wait(stdin=inside.stdin(), on_stdout=inside.take)
                assert result.exit_code == 0, result

            group.start_soon(wait)
            assert await inside.line() == "ready"
            last = 0
            for is_inside, call, name, given in steps(model):
                if is_inside:
                    assert await inside.do(call, name, given) is None
                else:
                    await outside(workspace, call, name, given)
                await check(workspace, inside, model, {name, str(given) if call == "rename" else name})
                number = await hot_number(workspace)
                assert number >= last
                last = number
            await check(workspace, inside, model, set(model))
            inside.end()
        await client.stop(force=True)
        assert {path: await workspace.read(b"d/" + path.encode()) for path in model} == model
    inside.close()
    assert {path.name: path.read_bytes() for path in (root / "d").iterdir()} == before
