"""The docker backend against a real engine."""

from __future__ import annotations

import io
import os
import secrets
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from tests.sandbox.support import LABEL, Layers, backend_of, running, spec
from workbench.errors import OptionsError, SandboxError
from workbench.sandbox import docker
from workbench.sandbox.backend import OverlayMount, SandboxSpec
from workbench.sandbox.engine import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.engine, pytest.mark.usefixtures("engine")]


@pytest.fixture
def label() -> Iterator[str]:
    """A label of the test's own; nothing that carries it may be left at its end."""
    value = secrets.token_hex(8)
    yield value
    engine = Engine()
    left = [*engine.containers(f"{LABEL}={value}"), *engine.volumes(f"{LABEL}={value}")]
    for item in left:
        docker.remove(engine, item["Labels"][docker.NAME_LABEL])
    assert not left


Make = Callable[..., SandboxSpec]


@pytest.fixture
def make(label: str, tmp_path: Path) -> Make:
    def make(target: str = "/workspace", **changes: object) -> SandboxSpec:
        layers = Layers(tmp_path / "layers", target, (int(str(changes.get("uid", 0))), int(str(changes.get("gid", 0)))))
        return spec("docker", layers.mount, label=label, **changes)

    return make


async def test_what_a_sandbox_writes_lands_in_the_upper_layer_alone(make: Make, tmp_path: Path) -> None:
    async with running(make()) as inside:
        assert await inside("os.listdir('/workspace')") == ["old"]
        await inside.sh("cd /workspace; echo new > new; rm old; mkdir -p a/b")
    layers = tmp_path / "layers"
    assert sorted(os.listdir(layers / "upper")) == ["a", "new", "old"]
    assert (layers / "upper" / "new").read_text() == "new\n"
    assert (layers / "lower" / "old").read_text() == "old"
    assert os.listdir(layers / "lower") == ["old"]


async def test_the_overlay_is_mounted_without_setuid_and_devices_and_without_stale_indexes(make: Make) -> None:
    async with running(make()) as inside:
        line = await inside.sh("grep ' /workspace ' /proc/self/mountinfo")
    flags = line.split()[5].split(",")
    assert {"rw", "nosuid", "nodev"} <= set(flags)
    assert "userxattr" in line
    assert "index=on" not in line


async def test_a_sandbox_has_no_network_no_capability_and_a_read_only_root(make: Make) -> None:
    async with running(make()) as inside:
        assert (await inside.sh("ls /sys/class/net")).split() == ["lo"]
        status = await inside.sh("grep -E '^(Cap|NoNew)' /proc/self/status")
        assert all(int(line.split()[1], 16) == 0 for line in status.splitlines() if line.startswith("Cap"))
        assert "NoNewPrivs:\t1" in status
        assert (await inside("sh('touch /etc/x /usr/x /x')"))[0] != 0


async def test_home_and_tmp_are_sized_and_private_tmpfs(make: Make) -> None:
    async with running(make(uid=1234, gid=1235)) as inside:
        assert await inside("os.environ['HOME']") == "/home/workbench"
        assert await inside("oct(os.stat('/tmp').st_mode & 0o7777)") == "0o1777"
        assert await inside("[oct(os.stat('/home/workbench').st_mode), os.stat('/home/workbench').st_uid]") == [
            "0o40700",
            1234,
        ]
        await inside.sh("printf '#!/bin/sh\\n' > /tmp/tool; chmod +x /tmp/tool; /tmp/tool")
        for directory in ("/tmp", "/home/workbench"):
            code, output = await inside(f"sh('head -c 20000000 /dev/zero > {directory}/full')")
            assert code != 0
            assert "No space left" in output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give the layers to the users this is about")
async def test_a_sandbox_runs_as_the_callers_user_with_its_groups(make: Make) -> None:
    async with running(make(uid=1234, gid=1235, groups=(2001, 2002))) as inside:
        assert await inside("[os.getuid(), os.getgid(), sorted(os.getgroups())]") == [1234, 1235, [1235, 2001, 2002]]
        await inside.sh("touch /workspace/mine")


async def test_nothing_of_our_environment_reaches_a_sandbox(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    async with running(make(environment={"GREETING": "hi there", "HOME": "/home/me"})) as inside:
        environment = await inside("dict(os.environ)")
        # Python itself adds the last one.
        assert set(environment) - {"LC_CTYPE", "LANG"} == {"GREETING", "HOME", "PATH", "HOSTNAME"}
        assert environment["GREETING"] == "hi there"
        assert await inside("os.stat('/home/me').st_uid") == os.getuid()


async def test_memory_processes_and_open_files_are_limited(make: Make) -> None:
    async with running(make()) as inside:
        memory = await inside.sh(
            "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
        )
        pids = await inside.sh("cat /sys/fs/cgroup/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids/pids.max")
        assert [int(memory), int(pids)] == [256 << 20, 64]
        assert int(await inside.sh("ulimit -n")) == 512


async def test_errors_of_pid_1_are_kept_apart_from_its_output(make: Make) -> None:
    async with running(make()) as inside:
        await inside("sys.stderr.write('x' * 100000 + 'the end') and sys.stderr.flush()")
        assert isinstance(inside.backend, docker.DockerBackend)
        # The engine carries the two separately.
        with anyio.fail_after(120):
            while not inside.backend.stderr.endswith(b"the end"):
                await inside("None")
        assert len(inside.backend.stderr) <= 16 << 10


async def test_much_data_goes_through_both_ways(make: Make) -> None:
    async with running(make()) as inside:
        assert await inside(f"len({'x' * 3_000_000!r})") == 3_000_000
        assert len(await inside("'x' * 3000000")) == 3_000_000


async def test_the_stream_ends_with_pid_1(make: Make) -> None:
    async with running(make()) as inside:
        with pytest.raises(anyio.EndOfStream):
            await inside("os._exit(3)")


async def test_a_sandbox_ends_with_its_stream(make: Make, label: str) -> None:
    engine = Engine()
    async with running(make()) as inside:
        await inside.stream.aclose()
        with anyio.fail_after(120):
            while engine.containers(f"{LABEL}={label}")[0]["State"] != "exited":
                await anyio.lowlevel.checkpoint()


async def test_stopping_leaves_nothing_and_can_be_repeated(make: Make, label: str) -> None:
    backend = backend_of(make())
    await backend.stop()
    await backend.start(lambda line: None)
    engine = Engine()
    assert len(engine.volumes(f"{LABEL}={label}")) == len(engine.containers(f"{LABEL}={label}")) == 1
    await backend.stop()
    assert not engine.volumes(f"{LABEL}={label}")
    assert not engine.containers(f"{LABEL}={label}")
    await backend.stop()


async def test_every_mount_has_its_own_overlay(label: str, tmp_path: Path) -> None:
    one, two = Layers(tmp_path / "one", "/home/me/project"), Layers(tmp_path / "two", "/home/me/main/.git")
    async with running(spec("docker", one.mount, two.mount, label=label)) as inside:
        await inside.sh("echo 1 > /home/me/project/one; echo 2 > /home/me/main/.git/two")
    assert os.listdir(one.upper) == ["one"]
    assert os.listdir(two.upper) == ["two"]


@pytest.mark.parametrize(
    "target",
    [
        "/tmp/below/ws",
        "/home/workbench/ws",
        "/srv/a b",
        "/srv/a,b",
        "/srv/a\\b",
        "/srv/-x",
        "/srv/ünïcode",
        "/srv/a\nb",
        "/usr/src/x",
    ],
)
async def test_a_workspace_is_seen_at_any_path_that_a_bind_can_name(make: Make, target: str) -> None:
    async with running(make(target)) as inside:
        assert await inside(f"os.listdir({target!r})") == ["old"]
        assert await inside(f"open({target + '/new'!r}, 'w').close()") is None


@pytest.mark.parametrize("target", ["/srv/a:b", os.fsdecode(b"/srv/\xff")])
async def test_a_path_that_a_bind_cannot_name_is_refused(make: Make, target: str) -> None:
    with pytest.raises(OptionsError, match="mount"):
        await backend_of(make(target)).start(lambda line: None)


@pytest.mark.parametrize("path", ["/a:b", "/a,b", "/a\\b", "/ä", "/" + "a" * 4090])
def test_layers_that_a_mount_option_cannot_name_are_refused(path: str) -> None:
    with pytest.raises(OptionsError):
        docker.mount_options(OverlayMount("/lower", path, "/work", "/workspace"))


async def test_a_mount_that_fails_says_so_and_leaves_nothing(make: Make, tmp_path: Path) -> None:
    what = make()
    os.rmdir(tmp_path / "layers" / "work")
    with pytest.raises(SandboxError, match="no such file or directory") as caught:
        await backend_of(what).start(lambda line: None)
    assert caught.value.code == "sandbox_failed"
    assert caught.value.hint is not None


async def test_an_image_without_python_is_named(make: Make) -> None:
    name = f"workbench-test-{secrets.token_hex(4)}"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("etc/empty"))
    subprocess.run(["docker", "import", "-", name], input=data.getvalue(), check=True, capture_output=True)
    try:
        with pytest.raises(SandboxError, match="has no python3") as caught:
            await backend_of(make(image=name)).start(lambda line: None)
        assert caught.value.code == "image_unavailable"
    finally:
        subprocess.run(["docker", "rmi", name], check=True, capture_output=True)


async def test_an_image_that_cannot_be_had_is_named(make: Make) -> None:
    name = "workbench-test/no-such-image:1"
    with pytest.raises(SandboxError, match=name) as caught:
        await backend_of(make(image=name)).start(lambda line: None)
    assert caught.value.code == "image_unavailable"


async def test_a_start_whose_remains_cannot_be_removed_says_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    backend = docker.DockerBackend(make(), engine=engine)
    call = engine.call

    def gone_after_create(method: str, path: str, *arguments: object, **options: object) -> object:
        if path.endswith("/start") or method == "DELETE":
            raise SandboxError("The engine has gone.", code="engine_unavailable")
        return call(method, path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "call", gone_after_create)
    with pytest.raises(SandboxError, match="The engine has gone") as caught:
        await backend.start(lambda line: None)
    assert caught.value.code == "sandbox_lost"
    monkeypatch.undo()
    await backend.stop()


async def test_a_start_that_is_cancelled_leaves_nothing(make: Make) -> None:
    backend = backend_of(make())
    async with anyio.create_task_group() as group:

        async def start() -> None:
            await backend.start(lambda line: None)

        group.start_soon(start)
        with anyio.fail_after(120):
            while not Engine().containers(f"{docker.NAME_LABEL}={backend.name}"):
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    # That nothing is left, the label's fixture checks.


async def test_a_volume_that_something_else_uses_is_not_called_unmounted(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "_REMOVE_ATTEMPTS", 2)
    engine = Engine()
    async with running(make()) as inside:
        name = inside.backend.name
        image = engine.containers(f"{docker.NAME_LABEL}={name}")[0]["ImageID"]
        body = {"Image": image, "Cmd": ["true"], "HostConfig": {"Binds": [f"{name}:/workspace:rw,nocopy"]}}
        other = engine.call("POST", "/containers/create", body=body)["Id"]
        try:
            with pytest.raises(SandboxError, match="in use") as caught:
                await inside.backend.stop()
            assert caught.value.code == "sandbox_failed"
        finally:
            engine.remove_container(other)


async def test_the_supervisor_itself_says_hello(make: Make) -> None:
    backend = backend_of(make(), source=None)
    try:
        stream = await backend.start(lambda line: None)
        with anyio.fail_after(120):
            data = await stream.receive()
        assert data[4:5] == b"H", backend.stderr
    finally:
        await backend.stop()
