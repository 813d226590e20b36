"""What every sandbox has to keep: subclass `SandboxContract` beside your backend's tests."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import anyio

from workbench.errors import SandboxError
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox.backend import Limits
from workbench.sandbox.sandbox import Sandbox

_SECONDS = 60
_KEPT = 1 << 20
_SMALL = Limits(memory_bytes=256 << 20, pids=64, tmp_bytes=8 << 20, home_bytes=4 << 20, open_files=512)

# What a hostile command would like to find, told as JSON by something that only reads.
_LOOK = """
import ctypes, json, os, socket
def errno_of(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return error.errno
    return 0
def written(path):
    with open(path, "w"):
        pass
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "interfaces": [name for _, name in socket.if_nameindex()],
    "capabilities": [int(status["Cap" + kind], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")],
    "no_new_privileges": status["NoNewPrivs"],
    "vsock": errno_of(socket.socket, 40, socket.SOCK_STREAM),
    "io_uring": ctypes.CDLL(None).syscall(425, 1, 0),
    "init": [errno_of(os.readlink, "/proc/1/fd/0"), errno_of(open, "/proc/1/environ"), errno_of(open, "/proc/1/mem")],
    "system": [errno_of(written, place + "/x") for place in ("", "/usr", "/etc", "/var", "/proc/sys")],
    "sockets": [path for path in ("/var/run/docker.sock", "/run/docker.sock") if os.path.exists(path)],
    "namespaces": ctypes.CDLL(None).unshare(0x10000000),
    "devices": sorted(set(os.listdir("/dev")) - {"core", "console", "fd", "full", "mqueue", "null", "ptmx", "pts",
                                                 "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}),
}))
"""


@dataclass(frozen=True, slots=True)
class SandboxLayers:
    """What a sandbox is started over: `lower` is filled, `overlay` an empty directory for what is up to the backend."""

    lower: Path
    overlay: Path

    @property
    def upper(self) -> Path:
        """Where the upper layer has to be."""
        return self.overlay / "upper"


class SandboxContract:
    """The promises of `workbench.sandbox.sandbox.Sandbox`, as tests.

    A subclass has `start_sandbox`. The image, or whatever the sandbox sees, must have `sh` and `python3`::

        class TestMine(SandboxContract):
            def start_sandbox(self, layers, limits):
                return my_sandbox(layers.lower, layers.upper, limits)
    """

    def start_sandbox(self, layers: SandboxLayers, limits: Limits) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox over these layers, stopped at the block's end if it wasn't before."""
        raise NotImplementedError

    def _use(self, tmp_path: Path, use: Callable[[Sandbox], Awaitable[None]]) -> SandboxLayers:
        layers = SandboxLayers(tmp_path / "lower", tmp_path / "overlay")
        (layers.lower / "d").mkdir(parents=True)
        for name in ("kept", "changed", "deleted", "d/file"):
            (layers.lower / name).write_text(f"lower {name}\n")
        before = _contents(layers.lower)

        async def main() -> None:
            async with self.start_sandbox(layers, _SMALL) as sandbox:
                with anyio.fail_after(_SECONDS):
                    await use(sandbox)

        anyio.run(main)
        assert _contents(layers.lower) == before, "the lower layer was changed"
        return layers

    # Commands

    def test_a_command_has_its_words_its_directory_and_its_environment(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            words = ("two words", "", "new\nline", os.fsdecode(b"\xff"), "'\"$x")
            script = "import os, sys; print([os.fsencode(word) for word in sys.argv[1:]])"
            result = await sandbox.run(_command("python3", "-c", script, *words))
            assert result.stdout.decode() == f"{[os.fsencode(word) for word in words]}\n"
            assert (await _sh(sandbox, "cat kept")).stdout == b"lower kept\n"
            here = (await _sh(sandbox, "pwd")).stdout.decode().strip()
            inner = Command(("pwd",), cwd=f"{here}/d", output_limit=_KEPT)
            assert (await sandbox.run(inner)).stdout == f"{here}/d\n".encode()
            told = Command(("sh", "-c", "echo $GIVEN"), environment={"GIVEN": "a b"}, output_limit=_KEPT)
            assert (await sandbox.run(told)).stdout == b"a b\n"

        self._use(tmp_path, use)

    def test_a_command_ends_with_its_code_or_the_name_of_a_signal(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            result = await _sh(sandbox, "echo out; echo err >&2; exit 7")
            assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
            result = await _sh(sandbox, "kill -TERM $$")
            assert (result.exit_code, result.signal) == (128 + signal.SIGTERM, "SIGTERM")
            job = await sandbox.spawn(_command("sleep", "1000"))
            await job.signal(signal.SIGINT)
            assert (await job.wait()).signal == "SIGINT"

        self._use(tmp_path, use)

    def test_a_command_that_cannot_run_says_why(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            for command, code in (
                (_command("no-such-command"), "command_not_found"),
                (_command("./kept"), "command_not_executable"),
                (Command(("true",), cwd="/no/such/directory"), "invalid_directory"),
            ):
                assert getattr(await _error(sandbox.run(command)), "code", "") == code

        self._use(tmp_path, use)

    def test_input_is_taken_and_output_given_as_it_comes(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            data = bytes(range(256)) * 4096
            counted = await sandbox.run(Command(("wc", "-c"), stdin=True, output_limit=_KEPT), stdin=_pieces(data))
            assert int(counted.stdout) == len(data)
            job = await sandbox.spawn(Command(("sh", "-c", "echo ready; read -r x; echo got $x"), stdin=True))
            heard = bytearray()

            async def answer(piece: bytes) -> None:
                heard.extend(piece)
                if bytes(heard) == b"ready\n":
                    await job.send_input(b"word\n")

            assert (await job.wait(on_stdout=answer)).exit_code == 0
            assert bytes(heard) == b"ready\ngot word\n"

        self._use(tmp_path, use)

    def test_output_is_bounded_and_what_is_left_out_counted(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            script = "head -c 1000000 /dev/zero | tr '\\0' a; printf END"
            result = await sandbox.run(Command(("sh", "-c", script), output_limit=1000))
            assert len(result.stdout) == 1000
            assert result.stdout.endswith(b"END")
            assert result.omitted_bytes == 1_000_003 - 1000

        self._use(tmp_path, use)

    def test_a_timeout_and_a_cancellation_end_the_whole_tree(self, tmp_path: Path) -> None:
        escapes = "setsid -f sleep 4711; (setsid sleep 4711 &); sleep 4711"

        async def use(sandbox: Sandbox) -> None:
            result = await sandbox.run(Command(("sh", "-c", escapes), timeout_ms=300, output_limit=_KEPT))
            assert result.timed_out
            assert await _sleepers(sandbox) == 0
            with anyio.move_on_after(0.3):
                await sandbox.run(Command(("sh", "-c", escapes)))
            assert await _sleepers(sandbox) == 0

        self._use(tmp_path, use)

    def test_commands_run_beside_each_other(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            # Each ends only once all of them have begun.
            script = 'touch "/tmp/begun-$1"; while [ "$(ls /tmp | grep -c begun-)" -lt 8 ]; do sleep 0.01; done'
            codes = []

            async def run(number: int) -> None:
                codes.append((await sandbox.run(_command("sh", "-c", script, "sh", str(number)))).exit_code)

            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(run, number)
            assert codes == [0] * 8

        self._use(tmp_path, use)

    def test_a_terminal_is_one(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            script = "test -t 0 && test -t 1 && test -t 2 && stty size"
            command = Command(("sh", "-c", script), tty=True, rows=33, columns=77, output_limit=_KEPT)
            result = await sandbox.run(command)
            assert (result.exit_code, result.stdout.split()) == (0, [b"33", b"77"])

        self._use(tmp_path, use)

    # Files

    def test_what_a_command_has_done_is_in_the_upper_layer_once_it_has_ended(self, tmp_path: Path) -> None:
        seen: dict[str, str] = {}

        async def use(sandbox: Sandbox) -> None:
            await _sh(sandbox, "echo more >> changed; rm deleted; rm -r d; mkdir d; echo new > d/new; ln -s kept link")
            seen.update(_contents(tmp_path / "overlay" / "upper"))
            await _sh(sandbox, "chmod 640 changed; mkdir -p a/b/c; echo later > a/b/c/later")

        layers = self._use(tmp_path, use)
        changes = {"changed": "lower changed\nmore\n", "deleted": "whiteout", "d/new": "new\n", "link": "-> kept"}
        assert seen == changes
        assert _contents(layers.upper) == {**changes, "a/b/c/later": "later\n"}
        assert stat.S_IMODE((layers.upper / "changed").stat().st_mode) == 0o640
        assert os.getxattr(layers.upper / "d", "user.overlay.opaque") == b"y"

    def test_a_file_is_written_whole_and_read_through_no_symlink(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            data = bytes(range(256)) * 4096
            facts = await sandbox.write_file("d/written", data, mode=0o600)
            assert (facts.size, stat.S_IMODE(facts.mode)) == (len(data), 0o600)
            assert (await _sh(sandbox, "wc -c < d/written")).stdout.strip() == str(len(data)).encode()
            assert await sandbox.read_file("d/written") == data
            assert await sandbox.read_file("d/written", offset=256, length=3) == b"\0\1\2"
            await _sh(sandbox, "ln -s /etc/passwd out; ln -s d way")
            for path, number in (("out", errno.ELOOP), ("missing", errno.ENOENT), ("d", errno.EISDIR)):
                assert getattr(await _error(sandbox.read_file(path)), "errno", 0) == number, path
            through = await _error(sandbox.write_file("way/through", b""))
            assert getattr(through, "errno", 0) in (errno.ELOOP, errno.ENOTDIR)
            assert stat.S_ISLNK((await sandbox.stat("out")).mode)
            await sandbox.write_file("out", b"mine")
            assert (await _sh(sandbox, "test ! -L out; cat out")).stdout == b"mine"

        layers = self._use(tmp_path, use)
        assert (layers.upper / "out").read_text() == "mine"

    def test_while_it_is_frozen_nothing_moves_and_the_upper_layer_is_complete(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            job = await sandbox.spawn(_command("sh", "-c", "while :; do echo x >> growing; done"))
            while True:
                try:
                    await sandbox.stat("growing")
                    break
                except FileNotFoundError:
                    await anyio.lowlevel.checkpoint()
            async with sandbox.freeze():
                size = (await sandbox.stat("growing")).size
                upper = (tmp_path / "overlay" / "upper" / "growing").stat()
                assert upper.st_size == size
                assert (await sandbox.stat("growing")).size == size
            while (await sandbox.stat("growing")).size == size:
                await anyio.lowlevel.checkpoint()
            await job.kill("enough")
            assert (await job.wait()).ended_by == "enough"

        self._use(tmp_path, use)

    # Confinement

    def test_there_is_no_way_out(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            found = json.loads((await sandbox.run(_command("python3", "-c", _LOOK))).stdout)
            assert found["interfaces"] == ["lo"]
            assert found["capabilities"] == [0] * 5
            assert found["no_new_privileges"] == "1"
            assert found["vsock"] in (errno.EAFNOSUPPORT, errno.EPERM)
            assert found["io_uring"] == -1
            assert found["namespaces"] == -1
            assert all(number in (errno.EACCES, errno.EPERM) for number in found["init"]), found
            assert all(number in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT) for number in found["system"])
            assert found["sockets"] == []
            assert found["devices"] == []

        self._use(tmp_path, use)

    def test_limits_hold_and_whoever_meets_them_takes_nothing_else_along(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            assert (await _sh(sandbox, "ulimit -n")).stdout.strip() == b"512"
            for place in ("/tmp", '"$HOME"'):
                result = await _sh(
                    sandbox, f"head -c 20000000 /dev/zero > {place}/full; code=$?; rm {place}/full; exit $code"
                )
                assert result.exit_code != 0
                assert b"No space left" in result.stderr
            forks = "for i in $(seq 200); do sleep 1000 & done; wait"
            assert (await sandbox.run(Command(("sh", "-c", forks), timeout_ms=5000, output_limit=_KEPT))).exit_code != 0
            assert await _sleepers(sandbox) == 0
            hungry = await sandbox.run(_command("python3", "-c", "x = bytearray(1 << 30); print(len(x))"))
            assert hungry.exit_code != 0
            assert (await _sh(sandbox, "echo still here")).stdout == b"still here\n"
            await sandbox.counters()

        self._use(tmp_path, use)

    # The end

    def test_stopping_ends_every_command_and_leaves_the_upper_layer_complete(self, tmp_path: Path) -> None:
        async def use(sandbox: Sandbox) -> None:
            job = await sandbox.spawn(_command("sh", "-c", "echo half > begun; echo there; sleep 1000"))
            there = anyio.Event()
            results: list[CommandResult] = []

            async def wait() -> None:
                results.append(await job.wait(on_stdout=lambda _: there.set()))

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await there.wait()
                ended = await sandbox.stop(reason="over")
            assert [job.argv[0] for job in ended] == ["sh"]
            assert [result.ended_by for result in results] == ["over"]
            assert (tmp_path / "overlay" / "upper" / "begun").read_text() == "half\n"
            gone = await _error(sandbox.run(_command("true")))
            assert getattr(gone, "code", "") in ("sandbox_lost", "sandbox_busy")

        self._use(tmp_path, use)


def _command(*argv: str) -> Command:
    return Command(argv, output_limit=_KEPT)


async def _sh(sandbox: Sandbox, script: str) -> CommandResult:
    return await sandbox.run(_command("sh", "-c", script))


async def _sleepers(sandbox: Sandbox) -> int:
    script = "cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep"
    return int((await _sh(sandbox, script)).stdout)


async def _error(action: Awaitable[object]) -> Exception:
    try:
        await action
    except (SandboxError, OSError) as error:
        return error
    raise AssertionError("it was done")


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 10_000):
        yield data[at : at + 10_000]


def _contents(root: Path) -> dict[str, str]:
    """Every entry of a layer but directories, told in a word."""
    found = {}
    for parent, directories, files in os.walk(root):
        for name in [*directories, *files]:
            path = Path(parent, name)
            kind = stat.S_IFMT(path.lstat().st_mode)
            key = str(path.relative_to(root))
            if kind == stat.S_IFLNK:
                found[key] = f"-> {os.readlink(path)}"
            elif kind == stat.S_IFCHR:
                found[key] = "whiteout"
            elif kind == stat.S_IFREG:
                found[key] = path.read_text()
    return found
