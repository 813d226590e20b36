"""The namespace backend, as root and as an ordinary user."""

from __future__ import annotations

import os
import secrets
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from tests.needed import need_program
from tests.sandbox.supervised import UID
from tests.sandbox.support import Layers, backend_of, running, spec
from tests.sandbox.users import OrdinaryUser, ordinary_user
from workbench.errors import OptionsError, SandboxError
from workbench.sandbox import cgroups, namespace
from workbench.sandbox.backend import SandboxSpec
from workbench.sandbox.namespace import NamespaceBackend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("namespaces")]

Make = Callable[..., SandboxSpec]


@pytest.fixture(scope="session")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    """User namespaces; without them the test is skipped, with the reason."""
    layers = Layers(tmp_path_factory.mktemp("namespaces"))

    async def start() -> None:
        async with running(spec("namespace", layers.mount)):
            pass

    try:
        anyio.run(start)
    except SandboxError as error:
        if error.code != "backend_unavailable":
            raise
        pytest.skip(f"{error.message} {error.hint}")


@pytest.fixture(params=["bubblewrap", "plain"])
def runtime(request: pytest.FixtureRequest) -> str:
    """What confines the sandbox."""
    if request.param == "bubblewrap":
        need_program("bwrap")
    return str(request.param)


@pytest.fixture
def make(tmp_path: Path, runtime: str) -> Make:
    def make(target: str = "/workspace", **changes: object) -> SandboxSpec:
        layers = Layers(tmp_path / "layers", target, (int(str(changes.get("uid", 0))), int(str(changes.get("gid", 0)))))
        return spec("namespace", layers.mount, runtime=runtime, **changes)

    return make


@pytest.fixture(params=[0, UID], ids=["root", "another"])
def uid(request: pytest.FixtureRequest) -> int:
    """Whose files the workspace holds; as an ordinary user only the caller's own."""
    return int(request.param) if os.geteuid() == 0 else os.geteuid()


async def test_what_a_sandbox_writes_lands_in_the_upper_layer_alone(make: Make, tmp_path: Path, uid: int) -> None:
    async with running(make(uid=uid, gid=uid)) as inside:
        assert await inside("[os.listdir('/workspace'), os.getuid(), os.getpid()]") == [["old"], uid, 1]
        await inside.sh("cd /workspace; echo new > new; rm old; mkdir -p a/b")
    layers = tmp_path / "layers"
    assert sorted(os.listdir(layers / "upper")) == ["a", "new", "old"]
    assert stat.S_ISCHR((layers / "upper" / "old").lstat().st_mode)
    assert (layers / "upper" / "new").stat().st_uid == uid
    assert os.listdir(layers / "lower") == ["old"]


async def test_a_sandbox_has_no_network_no_capability_and_a_read_only_system(make: Make, uid: int) -> None:
    async with running(make(uid=uid, gid=uid)) as inside:
        assert await inside("[name for _, name in __import__('socket').if_nameindex()]") == ["lo"]
        status = await inside.sh("grep -E '^(Cap|NoNew)' /proc/self/status")
        assert all(int(line.split()[1], 16) == 0 for line in status.splitlines() if line.startswith("Cap"))
        assert "NoNewPrivs:\t1" in status
        for place in ("/", "/usr", "/etc", "/dev", "/var"):
            code, output = await inside(f"sh('touch {place}/x')")
            assert code != 0, place
            assert "Read-only" in output


async def test_nothing_of_the_machine_but_its_programs_is_there(make: Make, tmp_path: Path, uid: int) -> None:
    async with running(make(uid=uid, gid=uid)) as inside:
        top = set(await inside("os.listdir('/')"))
        assert top <= {"bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "tmp", "usr",
                       "var", "workspace"}  # fmt: skip
        # Of the kernel's own only what limits the sandbox, where something does.
        assert await inside("[os.listdir(at) for at in ('/sys', '/sys/fs') if os.path.exists(at)]") in (
            [],
            [["fs"], ["cgroup"]],
        )
        assert await inside("os.listdir('/tmp') + os.listdir('/home')") == ["workbench"]
        secret = ("shadow", "hostname", "resolv.conf", "ssh", "gitconfig", "ssl/private")
        assert await inside(f"[name for name in {secret} if os.path.exists('/etc/' + name)]") == []
        assert not await inside(f"os.path.exists({str(tmp_path)!r})")
        # Only its own processes: PID 1, and what asks.
        assert len((await inside.sh("echo /proc/[0-9]*")).split()) == 2


async def test_more_user_namespaces_cannot_be_made(make: Make, uid: int) -> None:
    async with running(make(uid=uid, gid=uid)) as inside:
        code, _ = await inside("sh('unshare -Ur true')")
        assert code != 0


async def test_home_tmp_and_shared_memory_are_sized(make: Make, uid: int) -> None:
    async with running(make(uid=uid, gid=uid, limits=spec("namespace").limits)) as inside:
        assert await inside("os.environ['HOME']") == "/home/workbench"
        for directory in ("/tmp", "/home/workbench", "/dev/shm"):
            assert await inside(f"os.access({directory!r}, os.W_OK)")
            code, output = await inside(f"sh('head -c 80000000 /dev/zero > {directory}/full')")
            assert code != 0
            assert "No space left" in output


async def test_nothing_of_our_environment_reaches_a_sandbox(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    greeting = f"hi there {secrets.token_hex(8)}"
    async with running(make(environment={"GREETING": greeting})) as inside:
        environment = await inside("dict(os.environ)")
        assert set(environment) - {"LC_CTYPE", "PWD"} == {"GREETING", "HOME", "PATH"}
        # Other users of this machine may list its processes.
        assert subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout.count(greeting) == 0


async def test_processes_memory_and_open_files_are_limited(make: Make) -> None:
    uid = UID if os.geteuid() == 0 else os.geteuid()
    async with running(make(uid=uid, gid=uid)) as inside:
        # Of each process by itself where no control group limits all of them.
        kinds = ("RLIMIT_NPROC", 64, cgroups.PROCESSES), ("RLIMIT_DATA", 256 << 20, cgroups.MEMORY)
        for kind, limit, controller in kinds:
            found = await inside(f"__import__('resource').getrlimit(__import__('resource').{kind})[1]")
            assert (found == limit) is (controller not in cgroups.enforceable())
        assert await inside("__import__('resource').getrlimit(__import__('resource').RLIMIT_NOFILE)[1]") == 512
        code, output = await inside("sh('for i in $(seq 100); do sleep 1000 > /dev/null 2>&1 & done')")
        assert code != 0
        assert "fork" in output


@pytest.mark.parametrize(
    "target", ["/tmp/below/ws", "/srv/a b,c\\d", "/srv/a:b", "/srv/a\nb", os.fsdecode(b"/srv/\xff")]
)
async def test_a_workspace_is_seen_at_any_path(make: Make, target: str) -> None:
    async with running(make(target)) as inside:
        assert await inside(f"os.listdir({target!r})") == ["old"]


async def test_every_mount_has_its_own_overlay(tmp_path: Path, runtime: str) -> None:
    outer, inner = Layers(tmp_path / "one", "/home/me"), Layers(tmp_path / "two", "/home/me/old.git")
    (outer.lower / "old.git").mkdir()
    async with running(spec("namespace", inner.mount, outer.mount, runtime=runtime)) as inside:
        await inside.sh("echo 1 > /home/me/one; echo 2 > /home/me/old.git/two")
    assert os.listdir(outer.upper) == ["one"]
    assert os.listdir(inner.upper) == ["two"]


async def test_stopping_ends_every_process_and_can_be_repeated(make: Make) -> None:
    what = make()
    await backend_of(what).stop()
    async with running(what) as inside:
        await inside.sh("setsid -f sleep 1000 > /dev/null 2>&1; setsid -f sleep 1000 > /dev/null 2>&1")
        name = inside.backend.name
        assert len(list(namespace._holders(name))) >= 4
    assert list(namespace._holders(name)) == []
    await inside.backend.stop()


async def test_the_stream_ends_with_pid_1(make: Make) -> None:
    async with running(make()) as inside:
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await inside("os._exit(3)")


async def test_errors_of_pid_1_are_kept_and_bounded(make: Make) -> None:
    async with running(make()) as inside:
        for _ in range(20):
            await inside("sys.stderr.write('x' * 10000 + 'the end') and sys.stderr.flush()")
        assert isinstance(inside.backend, NamespaceBackend)
        assert inside.backend.stderr.endswith(b"the end")
        assert len(inside.backend.stderr) <= 16 << 10


async def test_a_mount_that_fails_says_so(make: Make, tmp_path: Path) -> None:
    what = make()
    os.rmdir(tmp_path / "layers" / "work")
    with pytest.raises(SandboxError, match="mount") as caught:
        await backend_of(what).start(lambda line: None)
    assert caught.value.code == "backend_unavailable"
    assert caught.value.hint


async def test_a_missing_tool_is_named_with_its_package(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "_PATH", "/nonexistent")
    with pytest.raises(SandboxError, match="needs unshare") as caught:
        await backend_of(make()).start(lambda line: None)
    assert "util-linux" in str(caught.value.hint)


async def test_a_runtime_that_there_is_not_is_refused(make: Make) -> None:
    with pytest.raises(OptionsError, match="runsc"):
        await backend_of(replace(make(), runtime="runsc")).start(lambda line: None)


async def test_the_supervisor_itself_says_hello(make: Make) -> None:
    backend = backend_of(make(), source=None)
    try:
        stream = await backend.start(lambda line: None)
        data = await stream.receive()
        assert data[4:5] == b"H", backend.stderr
    finally:
        await backend.stop()


KEEPER = """
import sys
from pathlib import Path
import anyio
from tests.sandbox.supervised import UID
from tests.sandbox.support import Layers, running, spec
async def main():
    async with running(spec("namespace", Layers(Path(sys.argv[1])).mount, runtime=sys.argv[2])) as inside:
        print(inside.backend.name, flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""


async def test_a_sandbox_ends_with_the_process_that_started_it(tmp_path: Path, runtime: str) -> None:
    command = [sys.executable, "-c", KEEPER, str(tmp_path / "kept"), runtime]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert list(namespace._holders(name))
        process.send_signal(signal.SIGKILL)
        with anyio.fail_after(120):
            while list(namespace._holders(name)):
                await anyio.lowlevel.checkpoint()
    # Only a control group needs somebody to remove it.
    namespace.remove(name)
    assert list(cgroups._named(name)) == []


AS_USER = """
import os, sys
from pathlib import Path
import anyio
from tests.sandbox.supervised import UID
from tests.sandbox.support import Layers, running, spec
from workbench.sandbox import namespace
layers = Layers(Path("layers"))
async def main():
    async with running(spec("namespace", layers.mount, runtime=sys.argv[1])) as inside:
        assert await inside("[os.getuid(), os.getgid()]") == [os.getuid(), os.getgid()]
        await inside.sh("cd /workspace; echo new > new; rm old")
        # As the supervisor makes itself: that hides nothing from whoever must find what is left.
        assert await inside("__import__('ctypes').CDLL(None).prctl(4, 0, 0, 0, 0)") == 0
        await inside.sh("setsid -f sleep 1000 > /dev/null 2>&1")
        assert len(list(namespace._holders(inside.backend.name))) >= 3
        namespace.remove(inside.backend.name)
    assert not list(namespace._holders(inside.backend.name))
anyio.run(main)
assert (layers.upper / "new").stat().st_uid == os.getuid()
assert (layers.upper / "old").is_char_device()
import shutil
(layers.work / "work").chmod(0o700)
shutil.rmtree("layers")
"""


@pytest.fixture
def user() -> Iterator[OrdinaryUser]:
    with ordinary_user() as user:
        yield user


@pytest.mark.root
def test_an_ordinary_user_needs_no_privilege_and_leaves_nothing_of_roots(user: OrdinaryUser, runtime: str) -> None:
    allowed = subprocess.run(
        ["unshare", "-Ur", "true"], user=user.uid, group=user.gid, capture_output=True, check=False
    )
    if allowed.returncode:
        pytest.skip(f"ordinary users may not make user namespaces here: {allowed.stderr.decode()}")
    user.run(AS_USER, runtime)
