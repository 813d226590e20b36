"""Commands through a connection: what the host's end does, under either event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from tests.sandbox.supervised import Inside, alive, nap, supervised
from tests.waiting import until
from workbench.errors import CommandError, OptionsError
from workbench.protocol.commands import Command

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    async with supervised() as started:
        yield started


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("no-such-command",), "command_not_found"),
        (("./missing",), "command_not_found"),
        (("./plain",), "command_not_executable"),
        (("plain",), "command_not_executable"),
        (("./orphan",), "command_not_found"),
        (("./sub",), "command_not_executable"),
    ],
)
async def test_a_command_that_cannot_run_is_an_error_with_a_code(inside: Inside, argv: tuple[str], code: str) -> None:
    await inside.sh("echo text > plain; mkdir sub; printf '#!/no/such/interpreter\\n' > orphan; chmod +x orphan")
    with pytest.raises(CommandError) as caught:
        await inside.connection.run(Command(argv, environment={"PATH": f"/usr/bin:/bin:{inside.directory}"}))
    assert caught.value.code == code


async def test_what_no_command_can_be_made_of_is_refused(inside: Inside) -> None:
    for command in (
        Command(("a\0b",)),
        Command(("true",), environment={"A=B": "c"}),
        Command(("true", "\ud800")),
        Command(("true",), output_limit=1 << 40),
        Command(("true",), timeout_ms=-1),
        Command(("true", "x" * (1 << 20))),
    ):
        with pytest.raises(OptionsError):
            await inside.connection.run(command)
    assert (await inside.sh("true")).exit_code == 0


async def test_input_of_any_size_arrives_whole(inside: Inside) -> None:
    content = bytes(range(256)) * 1200

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(content), 10_007):
            yield content[at : at + 10_007]

    command = Command(("cat",), stdin=True, output_limit=1 << 20)
    result = await inside.connection.run(command, stdin=pieces())
    assert result.stdout == content


async def test_a_command_that_reads_only_the_beginning_of_its_input_ends(inside: Inside) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    command = Command(("head", "-c", "3"), stdin=True, output_limit=100)
    assert (await inside.connection.run(command, stdin=endless())).stdout == b"xxx"


async def test_input_that_fails_ends_the_command_and_is_what_is_raised(inside: Inside) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise LookupError("the source of the input")

    with pytest.raises(LookupError):
        await inside.connection.run(Command(("sleep", "1001"), stdin=True), stdin=broken())
    assert await inside.processes() == []


async def test_streamed_output_arrives_whole_and_as_it_comes(inside: Inside) -> None:
    arrived = bytearray()
    result = await inside.connection.run(Command(("seq", "1", "200000")), on_stdout=arrived.extend)
    assert result.stdout == b""
    assert bytes(arrived) == "".join(f"{n}\n" for n in range(1, 200_001)).encode()
    seen = anyio.Event()

    async def heard(data: bytes) -> None:
        seen.set()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: inside.connection.run(Command(("sh", "-c", "echo x; sleep 1001")), on_stdout=heard))
        await seen.wait()
        group.cancel_scope.cancel()


async def test_a_reader_that_is_stuck_blocks_nobody_else(inside: Inside) -> None:
    stuck = anyio.Event()

    async def never(data: bytes) -> None:
        stuck.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: inside.connection.run(Command(("yes",)), on_stdout=never))
        await stuck.wait()
        whole = bytearray()
        await inside.connection.run(Command(("head", "-c", "5000000", "/dev/zero")), on_stdout=whole.extend)
        assert len(whole) == 5_000_000
        group.cancel_scope.cancel()
    assert await inside.processes() == []


async def test_ten_commands_run_at_once(inside: Inside) -> None:
    # Each waits for the one before it, in a circle, so that they end only if all of them run at the same time.
    await inside.sh("for n in 0 1 2 3 4 5 6 7 8 9; do mkfifo f$n; done")
    heard: dict[int, int] = {}

    async def one(number: int) -> None:
        heard[number] = int(await inside.text(f"echo {number} > f{(number + 1) % 10} & cat f{number}; wait"))

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(one, number)
    assert heard == {number: (number - 1) % 10 for number in range(10)}


async def test_cancelling_ends_the_whole_tree_and_waits_for_that(inside: Inside) -> None:
    started = anyio.Event()

    async def heard(data: bytes) -> None:
        started.set()

    async with anyio.create_task_group() as group:
        command = Command(("sh", "-c", "trap '' TERM; setsid -f sleep 1001; echo x; yes"))
        group.start_soon(lambda: inside.connection.run(command, on_stdout=heard))
        await started.wait()
        group.cancel_scope.cancel()
    assert await inside.processes() == []


async def test_a_callback_that_fails_ends_the_command(inside: Inside) -> None:
    def fails(data: bytes) -> None:
        raise LookupError("the callback")

    with pytest.raises(LookupError):
        await inside.connection.run(Command(("yes",)), on_stdout=fails)
    assert await inside.processes() == []


async def test_nothing_outlives_the_stream() -> None:
    away, here = nap(), nap()
    async with supervised(namespaces=False) as inside:
        job = await inside.connection.spawn(
            Command(("sh", "-c", f"setsid -f sleep {away}; echo x; sleep {here}"), output_limit=9)
        )
        await until(lambda: alive("sleep", away) and alive("sleep", here))
        assert job is not None
    assert not alive("sleep", away)
    assert not alive("sleep", here)
