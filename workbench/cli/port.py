"""`port`: a port of the sandbox on this machine's loopback address."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from workbench.cli import terminal
from workbench.cli.options import Context, QuietOption, SessionOption, WorkspaceOption, run
from workbench.errors import OptionsError
from workbench.sandbox import ports

_LOCAL = (ports.ADDRESS, "localhost")


def port(
    number: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535, help="What listens inside the sandbox.")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="PORT", help="The port of 127.0.0.1 here; the same unless said, 0 is a free one."),
    ] = "",
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    quiet: QuietOption = False,
) -> None:
    """Reach a server in the sandbox from this machine, at 127.0.0.1, until ^C."""
    context = Context(workspace, session, quiet=quiet)
    run(_port, context, number, to, context=context)


async def _port(context: Context, number: int, to: str) -> None:
    here = _port_here(to) if to else number

    def ready(listening: int) -> None:
        print(f"{ports.ADDRESS}:{listening}", flush=True)
        context.report(f"port {number} of the sandbox, until ^C")

    async with context.open() as workspace, await workspace.sandbox(context.report) as client:
        failed: list[Exception] = []
        async with anyio.create_task_group() as group:

            async def forward() -> None:
                # Carried out of the group by hand: one error, not a group of them.
                try:
                    await ports.forward(client, number, to=here, ready=ready, report=context.report)
                except Exception as error:  # noqa: BLE001  raised again below
                    failed.append(error)
                group.cancel_scope.cancel()

            group.start_soon(forward)
            with anyio.open_signal_receiver(*terminal.ending_signals()) as signals:
                async for _ in signals:
                    group.cancel_scope.cancel()
    if failed:
        raise failed[0]


def _port_here(to: str) -> int:
    """`9000`, or `127.0.0.1:9000`; any other address is refused. Raises OptionsError."""
    address, colon, number = to.rpartition(":")
    if colon and address not in _LOCAL:
        raise OptionsError(
            f"A port of the sandbox is only ever opened at {ports.ADDRESS}, not at {address!r}.",
            hint="Name a port alone; to reach it from elsewhere, forward it there yourself (ssh -L).",
        )
    if not (number.isascii() and number.isdigit() and int(number) <= 65535):
        raise OptionsError(f"{number!r} is no port.", hint="Name one from 1 to 65535.")
    return int(number)
