"""What providers are sent is the same at every start, and only grows: a prompt's beginning is read from their caches."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conftest import Cli
from tests.uses.conftest import Configure
from tests.uses.scripts import MODEL, say
from workbench import Workspace, WorkspaceSession
from workbench.testing import StubCall, StubModelServer, StubReply

SECONDS = 180
_NOTE = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
FILES = ("b/two.py", "a.py", "b/one.py", "c/deep/er/x.py", "Z.py", ".hidden/x.py")


def make(root: Path, names: Sequence[str]) -> None:
    """A project whose directories' entries are in the order in which they are made."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# here: {name}\n")


def calls(first: int, *named: tuple[str, dict[str, Any]]) -> StubReply:
    """A reply with several calls, whose ids are of their own."""
    return StubReply(
        calls=[StubCall(name, arguments, id=f"c{first + at}") for at, (name, arguments) in enumerate(named)]
    )


SCRIPT = (
    calls(
        10,
        ("list_files", {"depth": 9}),
        ("glob", {"pattern": "**/*.py"}),
        ("grep", {"pattern": "here"}),
        ("read_file", {"path": "a.py"}),
    ),
    calls(
        20,
        ("write_file", {"path": "b/three.py", "content": "3\n"}),
        ("edit_file", {"path": "a.py", "old_text": "here", "new_text": "there"}),
        ("add_note", {"text": "one"}),
        ("add_note", {"text": "two"}),
    ),
    calls(30, ("list_notes", {}), ("checkpoint_diff", {}), ("list_files", {"path": "b"}), ("glob", {"pattern": "b/*"})),
    calls(40, ("consolidate_notes", {"target_path": "notes.md"})),
    say("one and two"),
    calls(50, ("checkpoint_diff", {"path": "notes.md"}), ("list_notes", {}), ("no_such_tool", {})),
    say("Done."),
)


def test_two_runs_send_the_same_bytes_whatever_the_order_of_hashes_and_directories(
    tmp_path: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    sent: list[list[bytes]] = []
    for seed, names in (("1", FILES), ("2", FILES[::-1])):
        make(root, names)
        state = tmp_path / f"state{seed}"
        state.mkdir(mode=0o700)
        monkeypatch.setenv("WORKBENCH_STATE", str(state))
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        with StubModelServer(*SCRIPT) as stub:
            configure(stub)
            Cli(root)("run", "--model", MODEL, "Look around.", code=7)
        sent.append([_NOTE.sub(b"<note>", request.data) for request in stub.requests])
        shutil.rmtree(root)
    assert sent[0] == sent[1]
    assert all(f"here: {name}".encode() in sent[0][1] for name in FILES if not name.startswith("."))
    assert b"Merged 2 notes into notes.md." in sent[0][-1]
    names = [tool["function"]["name"] for tool in json.loads(sent[0][0])["tools"]]
    assert names == sorted(names)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("api", ["chat", "responses", "messages", "gemini"])
async def test_each_request_begins_with_the_one_before(
    state: Path, tmp_path: Path, configure: Configure, api: str
) -> None:
    root = tmp_path / "project"
    make(root, FILES)
    (root / "AGENTS.md").write_text("Use tabs.\n")
    think = StubReply(reasoning="Let me see.", signature="c2lnbmVk", calls=[StubCall("list_files", {}, id="c1")])
    with StubModelServer(think, *SCRIPT[:3], say("Well."), SCRIPT[5], say("Done.")) as stub:
        configure(stub, api=api)
        for task in ("Look around.", "Look again."):
            # Anew each time, as by a command of its own.
            async with Workspace.open(root) as workspace, WorkspaceSession.open(workspace, model=MODEL) as session:
                with anyio.fail_after(SECONDS):
                    await (await session.start(task)).result()
    bodies = [parts(request.body) for request in stub.requests]
    assert len(bodies) == 7
    for (rest, messages), (next_rest, next_messages) in pairwise(bodies):
        assert next_rest == rest
        assert next_messages[: len(messages)] == messages
        assert len(next_messages) > len(messages)


def parts(body: dict[str, Any]) -> tuple[str, list[str]]:
    """A request without its marks for caches: all but the messages, and each message, as text."""
    (name,) = {"messages", "input", "contents"} & body.keys()
    plain = unmarked(body)
    messages = [json.dumps(message) for message in plain.pop(name)]
    return json.dumps(plain), messages


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unmarked(each) for key, each in value.items() if key != "cache_control"}
    return [unmarked(each) for each in value] if isinstance(value, list) else value
