"""Commands under a supervisor that is PID 1 of a namespace: how they run, and how they end."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.sandbox.supervised import WITHOUT_SETSID, Inside, supervised
from workbench.errors import CommandError
from workbench.protocol.commands import Command
from workbench.sandbox import frames, supervisor

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """One event loop is enough here: it's the other end that these tests are about."""
    return "asyncio"


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    async with supervised() as started:
        yield started


def test_both_ends_agree_on_the_frames() -> None:
    names = [name for name in vars(frames) if name.isupper() and hasattr(supervisor, name)]
    assert len(names) > 20
    for name in names:
        ours, theirs = getattr(frames, name), getattr(supervisor, name)
        assert getattr(ours, "format", ours) == getattr(theirs, "format", theirs), name


def test_the_supervisor_needs_no_python_newer_than_3_8() -> None:
    import ast

    ast.parse(Path(supervisor.__file__).read_text(), feature_version=(3, 8))


async def test_it_says_what_it_found(inside: Inside) -> None:
    hello = await inside.connection.hello()
    assert hello.pid == 1
    assert hello.unix_sockets
    assert [mount.target for mount in hello.mounts] == [str(inside.directory)]
    assert hello.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def test_a_result_has_both_streams_and_the_exit_code(inside: Inside) -> None:
    result = await inside.sh("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert (result.signal, result.timed_out, result.omitted_bytes, result.stopped_processes) == ("", False, 0, 0)


async def test_a_command_starts_in_the_workspace_with_the_environment_laid_over(inside: Inside) -> None:
    result = await inside.connection.run(
        Command(("sh", "-c", "pwd; echo $A $HOME"), environment={"A": "b\udcff"}, output_limit=100)
    )
    assert result.stdout == f"{inside.directory}\n".encode() + b"b\xff /nonexistent\n"


async def test_a_relative_directory_is_one_of_the_workspace(inside: Inside) -> None:
    (inside.directory / "sub").mkdir(mode=0o755)
    result = await inside.connection.run(Command(("pwd",), cwd="sub", output_limit=100))
    assert result.stdout == f"{inside.directory}/sub\n".encode()


async def test_a_command_that_is_killed_says_by_which_signal(inside: Inside) -> None:
    result = await inside.sh("kill -SEGV $$")
    assert (result.exit_code, result.signal) == (139, "SIGSEGV")


async def test_a_missing_directory_is_an_error_of_its_own(inside: Inside) -> None:
    with pytest.raises(CommandError) as caught:
        await inside.connection.run(Command(("true",), cwd="/no/such/directory"))
    assert caught.value.code == "invalid_directory"


@pytest.mark.parametrize("source", ["", WITHOUT_SETSID], ids=["spawn", "fork"])
async def test_a_script_without_an_interpreter_line_is_run_by_the_shell(source: str) -> None:
    async with supervised(source=source) as inside:
        await inside.sh("echo 'echo $0 $1' > script; chmod +x script")
        result = await inside.connection.run(Command(("./script", "word"), output_limit=100))
        assert result.stdout == b"./script word\n"


async def test_commands_run_where_the_c_library_cannot_start_a_session() -> None:
    async with supervised(source=WITHOUT_SETSID) as inside:
        result = await inside.sh("cat /proc/self/stat; echo err >&2; exit 4")
        assert (result.exit_code, result.stderr) == (4, b"err\n")
        with pytest.raises(CommandError):
            await inside.connection.run(Command(("no-such-command",)))
        terminal = await inside.connection.run(Command(("tty",), tty=True, output_limit=100))
        assert terminal.stdout.startswith(b"/dev/pts/")


async def test_a_here_document_works(inside: Inside) -> None:
    assert await inside.text("wc -c <<EOF\n" + "x" * 100_000 + "\nEOF") == "100001\n"


async def test_without_input_a_command_reads_an_empty_file(inside: Inside) -> None:
    assert await inside.text("cat; readlink /proc/self/fd/0") == "/dev/null\n"


async def test_a_limit_keeps_the_beginning_and_the_end_and_counts_the_rest(inside: Inside) -> None:
    whole = "".join(f"{n}\n" for n in range(1, 100_001)).encode()
    result = await inside.sh("seq 1 100000", limit=1001)
    assert result.stdout == whole[:501] + whole[-500:]
    assert result.omitted_bytes == len(whole) - 1001
    assert (await inside.sh("printf 1234567", limit=7)).stdout == b"1234567"
    short = await inside.sh("printf 12345678; printf abc >&2", limit=7)
    assert (short.stdout, short.stderr, short.omitted_bytes) == (b"1234678", b"abc", 1)


async def test_500_megabytes_are_bounded_inside_in_flat_memory(inside: Inside) -> None:
    def peak() -> int:
        lines = Path(f"/proc/{inside.pid()}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    before = peak()
    result = await inside.sh("head -c 500000000 /dev/zero", limit=64 << 10)
    assert len(result.stdout) == 64 << 10
    assert result.omitted_bytes == 500_000_000 - (64 << 10)
    assert peak() < before + 4096


async def test_more_commands_than_may_run_at_once_wait_for_their_turn() -> None:
    async with supervised(jobs=2) as inside:
        done: list[int] = []

        async def one() -> None:
            done.append((await inside.sh("true")).exit_code)

        async with anyio.create_task_group() as group:
            for _ in range(200):
                group.start_soon(one)
        assert done == [0] * 200


@pytest.mark.parametrize(
    "script",
    [
        "sleep 1001 &",
        "setsid sleep 1001 &",
        "setsid -f setsid -f sleep 1001",
        "env -i /usr/bin/setsid -f /usr/bin/setsid -f /bin/sleep 1001",
        "(trap '' TERM HUP INT; exec sleep 1001) & (trap '' TERM HUP INT; sleep 1001 & sleep 1001) &",
        "sleep 1001 >/dev/null 2>&1 & exec 1>&- 2>&-",
        "sleep 1001 & kill -STOP $!",
    ],
)
async def test_what_a_command_leaves_running_is_ended_and_counted(inside: Inside, script: str) -> None:
    result = await inside.sh(f"{script}\necho done")
    assert result.exit_code in (0, 1)
    assert result.stopped_processes >= 1
    assert await inside.processes() == []


@pytest.mark.parametrize(
    "script",
    [
        "kill -9 $PPID; sleep 1001",
        "setsid -f sleep 1001; kill -9 $PPID; sleep 1001",
        "(setsid -f sleep 1001); kill -9 -1; sleep 1001",
        "kill -STOP $PPID; setsid -f sleep 1001",
        "kill -TERM $PPID; kill -HUP $PPID; kill -INT -1; setsid -f sleep 1001",
    ],
)
async def test_a_command_that_attacks_its_reaper_gains_nothing(inside: Inside, script: str) -> None:
    await inside.sh(f"trap '' TERM HUP INT; {script}")
    assert await inside.processes() == []
    assert await inside.text("echo well") == "well\n"


@pytest.mark.parametrize("name", ["KILL", "STOP", "INT", "TERM", "HUP", "QUIT", "CHLD", "USR1", "PIPE", "TSTP", "SEGV"])
async def test_signals_from_inside_do_nothing_to_the_supervisor(inside: Inside, name: str) -> None:
    await inside.sh(f"for n in 1 2 3 4 5 6 7 8 9 10; do kill -{name} 1; done")
    assert await inside.text("echo well") == "well\n"


@pytest.mark.skipif(
    os.geteuid() != 0, reason="in a user namespace of one's own, commands are its root and may read all"
)
async def test_the_supervisor_cannot_be_read_or_traced(inside: Inside) -> None:
    result = await inside.sh(
        "for f in mem environ maps fd/0 cwd/x; do cat /proc/1/$f /proc/$PPID/$f; done; ls /proc/1/fd"
    )
    assert result.stdout == b""
    assert result.stderr.count(b"Permission denied") >= 8


async def test_a_command_ignores_no_signal_and_blocks_none(inside: Inside) -> None:
    result = await inside.connection.run(
        Command(("grep", "-E", "SigIgn|SigBlk", "/proc/self/status"), output_limit=999)
    )
    _, blocked, _, ignored = result.stdout.decode().split()
    # 32 and 33 are the C library's own, and posix_spawn leaves them ignored.
    assert (int(blocked, 16), int(ignored, 16) & ~(0b11 << 31)) == (0, 0)


async def test_a_command_has_no_descriptor_but_its_three(inside: Inside) -> None:
    result = await inside.connection.run(Command(("ls", "/proc/self/fd"), output_limit=99))
    assert result.stdout == b"0\n1\n2\n3\n"  # the last one is the listing's own


async def test_only_ordinary_sockets_can_be_made(inside: Inside) -> None:
    script = """
import errno, socket
for family in (1, 2, 10, 16, 40, 38, 17, 29):
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
        print(family, "ok")
    except OSError as error:
        print(family, errno.errorcode[error.errno])
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(425, 1, 0), errno.errorcode[ctypes.get_errno()])
"""
    result = await inside.connection.run(Command(("/usr/bin/python3", "-c", script), output_limit=9999))
    lines = result.stdout.decode().splitlines()
    assert lines[:4] == ["1 ok", "2 ok", "10 ok", "16 ok"]
    assert lines[4:8] == [f"{family} EAFNOSUPPORT" for family in (40, 38, 17, 29)]
    assert lines[8] == "-1 ENOSYS"


async def test_commands_are_killed_for_memory_before_the_supervisor_is(inside: Inside) -> None:
    # It is raised for the moment of each fork.
    own = int(await inside.text("for n in $(seq 100); do cat /proc/1/oom_score_adj; done | sort -n | head -n 1"))
    assert await inside.text("cat /proc/self/oom_score_adj") == f"{min(own + 500, 1000)}\n"


async def test_a_timeout_ends_what_ignores_sigterm(inside: Inside) -> None:
    result = await inside.sh("trap '' TERM; echo started; sleep 1001 & wait; sleep 1001", timeout_ms=2000)
    assert result.timed_out
    assert (result.exit_code, result.signal, result.stdout) == (137, "SIGKILL", b"started\n")
    assert await inside.processes() == []


async def test_a_timeout_lets_a_command_end_by_itself(inside: Inside) -> None:
    result = await inside.sh("trap 'echo bye; exit 5' TERM; echo started; sleep 1001 & wait", timeout_ms=2000)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 5, b"started\nbye\n")


async def test_a_timeout_holds_for_a_command_that_only_prints(inside: Inside) -> None:
    result = await inside.sh("yes", timeout_ms=2000, limit=1000)
    assert result.timed_out
    assert result.stdout == b"y\n" * 500
    assert result.omitted_bytes > 0


async def test_a_timeout_counts_while_a_command_waits_for_its_turn() -> None:
    async with supervised(jobs=1) as inside:
        running = await inside.connection.spawn(Command(("sleep", "1001")))
        assert (await inside.sh("true", timeout_ms=50)).timed_out
        await running.kill("test")
        assert (await running.wait()).ended_by == "test"


async def test_a_signal_reaches_the_command_and_what_it_waits_for(inside: Inside) -> None:
    job = await inside.connection.spawn(Command(("sh", "-c", "trap 'exit 9' INT; sleep 1001")))
    await inside.runs("sleep 1001")
    await job.signal(signal.SIGINT)
    assert (await job.wait()).exit_code == 9


async def test_a_fork_bomb_is_ended_and_others_get_their_turn() -> None:
    async with supervised(processes=150) as inside:
        results = []

        async def bomb() -> None:
            results.append(await inside.sh("b() { b | b & b; }; b", shell="bash", timeout_ms=1500, limit=1000))

        with anyio.fail_after(120):
            async with anyio.create_task_group() as group:
                group.start_soon(bomb)
                for _ in range(5):
                    group.start_soon(inside.text, "echo well")
        assert results[0].timed_out
        assert await inside.processes() == []


async def test_running_hundreds_of_commands_leaves_nothing_behind(inside: Inside) -> None:
    def descriptors() -> int:
        return len(list(Path(f"/proc/{inside.pid()}/fd").iterdir()))

    await inside.sh("true")
    before = descriptors()
    for _ in range(300):
        assert (await inside.connection.run(Command(("true",)))).exit_code == 0
    # Of each reaper that is kept ready there are five.
    assert descriptors() <= before + 5 * supervisor.READY_REAPERS
    assert await inside.processes() == []
