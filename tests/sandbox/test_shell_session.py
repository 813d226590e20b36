"""A shell that stays between scripts: what survives, and what no script can do to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.sandbox.places import Place
from tests.sandbox.supervised import Inside, supervised
from tests.waiting import until
from workbench.errors import OptionsError, SandboxError
from workbench.protocol.commands import CommandResult
from workbench.sandbox import frames, shell_driver
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.shell import ShellSession

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    async with supervised() as started:
        yield started


@pytest.fixture(params=["bash", "dash"])
async def shell(request: pytest.FixtureRequest, inside: Inside) -> AsyncIterator[ShellSession]:
    async with await ShellSession.open(inside.connection, shell=request.param) as session:
        yield session


async def run(shell: ShellSession, script: str, **options: object) -> CommandResult:
    with anyio.fail_after(120):
        return await shell.run(script, **options)  # type: ignore[arg-type]


async def told(shell: ShellSession, script: str) -> str:
    """What a script that must succeed prints."""
    result = await run(shell, script)
    assert (result.exit_code, result.stderr) == (0, b""), result
    return result.stdout.decode()


def test_both_ends_agree_on_the_frames() -> None:
    names = [name for name in vars(shell_driver) if name.isupper() and hasattr(frames, name)]
    assert len(names) > 5
    for name in names:
        ours, theirs = getattr(frames, name), getattr(shell_driver, name)
        assert getattr(ours, "format", ours) == getattr(theirs, "format", theirs), name


def test_the_driver_needs_no_python_newer_than_3_8() -> None:
    import ast

    ast.parse(Path(shell_driver.__file__).read_text(), feature_version=(3, 8))


async def test_directory_variables_functions_and_open_files_survive(shell: ShellSession, inside: Inside) -> None:
    await run(shell, "mkdir sub; cd sub; export A=1; B='two words'; f() { echo f $1; }; exec 5>log; umask 027")
    said = await told(shell, "echo $PWD; sh -c 'echo $A'; echo \"$B\"; f x; echo logged >&5; umask")
    assert said.splitlines() == [f"{inside.directory}/sub", "1", "two words", "f x", "0027"]
    assert (inside.directory / "sub" / "log").read_text() == "logged\n"


async def test_each_script_has_its_own_status_and_streams(shell: ShellSession) -> None:
    result = await run(shell, "echo out; echo err >&2; (exit 3)")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert await told(shell, "echo $?") == "0\n"
    assert (await run(shell, "no-such-command")).exit_code == 127
    assert (await run(shell, "kill -9 $(sh -c 'echo $$') 2>/dev/null; sh -c 'kill -TERM $$'")).exit_code == 143
    assert shell.alive


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ('cat <<EOF\nit\'s "here"\nEOF', 0),
        ("cat <<EOF\nno end", 0),
        ("echo 'open", None),
        ('echo "open', None),
        ("if true; then", None),
        ("echo $(", None),
        (") }", None),
        ("break; continue; return 0; echo x", None),
        ("set -u; set -x; set -v; echo x", 0),
        ("set -e; true", 0),
        ("cat; read x; echo nothing", 0),
        ("exec 3<&- 8>&- 9>&-; exec 9>/dev/null", 0),
        ("printf() { echo mine; }; alias printf=false; PATH=/nowhere; IFS=xyz", 0),
        ("set() { echo mine; }; eval() { echo mine; }; command() { echo mine; }", None),
        ("trap 'echo trapped' INT; kill -INT $$", 0),
        ("printf '1 0\\n2 0\\n3 0\\n'; printf '\\000\\001X\\000\\000\\000\\002{}'", 0),
        ("echo '0 0' >&9", None),
        ("for n in 1 2 3; do echo $n; done >/dev/null; : '\\''", None),
        ("sleep 1000 & disown 2>/dev/null; (while :; do sleep 0.1; done) &", 0),
        ("#", 0),
        ("", 0),
        ("echo a \\", 0),
        ("kill -0 0; command exec 2>&2", 0),
    ],
)
async def test_no_script_can_spoil_the_next_one(
    inside: Inside, shell: ShellSession, script: str, code: int | None
) -> None:
    await told(shell, "A=kept")
    result = await run(shell, script)
    if code is not None:
        assert result.exit_code == code, result
    if not shell.alive:
        # A strict shell ends where a script makes no sense to it: then that is said, and this is another one.
        assert code is None
        with pytest.raises(SandboxError) as caught:
            await run(shell, "echo")
        assert caught.value.code == "shell_ended"
        shell = await ShellSession.open(inside.connection)
        await told(shell, "A=kept")
    next_one = await run(shell, 'false; echo "well $A"')
    assert (next_one.exit_code, next_one.stdout) == (0, b"well kept\n")
    assert next_one.stderr == b""


@pytest.mark.parametrize(
    ("script", "code", "signal", "output"),
    [
        ("echo x; exit 7; echo y", 7, "", b"x\n"),
        ("set -e; echo x; false; echo y", 1, "", b"x\n"),
        ("echo x; exec sh -c 'echo y; exit 5'", 5, "", b"x\ny\n"),
        ("echo x; kill -9 $$", 137, "SIGKILL", b"x\n"),
        ("echo x; sleep 1000 & exit 0", 0, "", b"x\n"),
    ],
)
async def test_what_ends_the_shell_is_its_result_and_another_can_be_opened(
    inside: Inside, shell: ShellSession, script: str, code: int, signal: str, output: bytes
) -> None:
    result = await run(shell, script)
    assert (result.exit_code, result.signal, result.stdout) == (code, signal, output)
    assert not shell.alive
    with pytest.raises(SandboxError) as caught:
        await run(shell, "echo")
    assert caught.value.code == "shell_ended"
    async with await ShellSession.open(inside.connection) as another:
        assert await told(another, "echo well") == "well\n"
    await until(lambda: _is_alone(inside))


async def _is_alone(inside: Inside) -> bool:
    return await inside.processes() == []


async def test_output_is_bounded_and_the_rest_counted(shell: ShellSession) -> None:
    result = await run(shell, "seq 1 200000", output_limit=1001)
    whole = b"".join(b"%d\n" % n for n in range(1, 200_001))
    assert result.stdout == whole[:501] + whole[-500:]
    assert result.omitted_bytes == len(whole) - 1001
    heard = bytearray()
    result = await run(shell, "seq 1 200000", output_limit=9, on_stdout=heard.extend)
    assert bytes(heard) == whole


async def test_a_script_out_of_time_ends_the_shell_with_what_it_wrote_kept(inside: Inside, shell: ShellSession) -> None:
    result = await run(shell, "echo here; setsid -f sleep 1000; sleep 1000; echo there", timeout_ms=2000)
    assert (result.timed_out, result.stdout) == (True, b"here\n")
    assert result.exit_code > 128
    assert not shell.alive
    await until(lambda: _is_alone(inside))


async def test_a_cancelled_script_ends_the_shell_and_all_it_started(inside: Inside, shell: ShellSession) -> None:
    started = anyio.Event()
    async with anyio.create_task_group() as group:

        async def forever() -> None:
            await shell.run("setsid -f sleep 1000; echo here; sleep 1000", on_stdout=lambda data: started.set())

        group.start_soon(forever)
        await started.wait()
        group.cancel_scope.cancel()
    assert not shell.alive
    assert await inside.processes() == []


async def test_what_runs_in_its_background_goes_on_and_ends_with_it(inside: Inside, shell: ShellSession) -> None:
    await run(shell, "sleep 1234 & while ! test -e go; do sleep 0.01; done & echo $! >pid")
    await run(shell, "touch go; wait $(cat pid)")
    await inside.runs("sleep 1234")
    await shell.aclose()
    assert await inside.processes() == []


async def test_scripts_at_once_wait_for_their_turn(shell: ShellSession) -> None:
    await told(shell, "n=0")
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(run, shell, "n=$((n + 1))")
    assert await told(shell, "echo $n") == "20\n"


async def test_large_scripts_and_bytes_of_any_kind_go_through(shell: ShellSession) -> None:
    said = await told(shell, "cat <<'EOF' | wc -c\n" + "x'\\$\n" * 40_000 + "EOF")
    assert int(said) == 200_000
    assert (await run(shell, "printf '\udcff\\n'")).stdout == b"\xff\n"


async def test_it_says_how_long_it_took_and_what_processor_time(shell: ShellSession) -> None:
    result = await run(shell, "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done")
    assert 0 < result.user_cpu_ms + result.system_cpu_ms <= result.duration_ms + 20


async def test_what_cannot_be_a_script_is_wrong_use_and_harms_nothing(shell: ShellSession) -> None:
    for script in ("a\0b", "x" * (frames.MAX_PAYLOAD + 1), "\ud800"):
        with pytest.raises(OptionsError):
            await run(shell, script)
    with pytest.raises(OptionsError):
        await run(shell, "true", output_limit=0)
    assert await told(shell, "echo well") == "well\n"


async def test_a_shell_that_is_not_there_is_said(inside: Inside) -> None:
    async with await ShellSession.open(inside.connection, shell="no-such-shell") as session:
        with pytest.raises(SandboxError, match="no-such-shell") as caught:
            await run(session, "echo")
        assert caught.value.code == "shell_ended"


async def test_a_script_that_takes_over_the_driver_breaks_only_its_own_session(inside: Inside) -> None:
    async with await ShellSession.open(inside.connection) as session:
        with pytest.raises(SandboxError, match="no sense") as caught:
            await run(session, "head -c 100 /dev/zero | tr '\\0' '\\377' >/proc/$PPID/fd/1; sleep 1000")
        assert caught.value.code == "shell_ended"
        assert not session.alive
    assert await inside.text("echo well") == "well\n"


async def test_an_open_one_keeps_the_sandbox_and_a_stop_says_that_it_ended_it(either_place: Place) -> None:
    async with await either_place.ensure() as client, await ShellSession.open(client) as session:
        assert await told(session, "cd ..; A=1; pwd") == "/\n"
        assert await told(session, "cat workspace/old; echo $A $PWD") == "old\n1 /\n"
        other = await KeeperClient.connect(either_place.overlay.path)
        assert other is not None
        async with other:
            assert (await other.info()).jobs == 1
            results = []

            async def wait() -> None:
                results.append(await run(session, "echo here; sleep 1000"))

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await until(lambda: session._number == 3)
                [ended] = await other.stop(reason="commit")
            assert ended.argv == ("shell session",)
            assert not session.alive
            assert (results[0].exit_code > 128) or results[0].ended_by == "commit"
