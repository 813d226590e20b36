"""What of the network a command may reach, as the command line says it; and who is asked about the rest."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Annotated

import anyio
import typer

from workbench.cli import output
from workbench.protocol.egress import EgressEvent
from workbench.sandbox.egress.options import DEFAULT_HEADER, Egress, Secret

AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="HOST[:PORT]",
        help="Let the command reach this host, or with `*.` those below it; ports 80 and 443 unless said. Several.",
    ),
]
AskHostOption = Annotated[
    bool, typer.Option("--ask-host", metavar="", help="Ask at the terminal about any other host, when it's wanted.")
]
MaxHostBytesOption = Annotated[
    int, typer.Option("--max-host-bytes", min=0, metavar="BYTES", help="What each host may take and give; 0 is all.")
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME=env:VAR",
        help="Put a variable's value, which the command never sees, into its requests to --for-host: it finds the URL "
        "for them in WORKBENCH_NAME_URL. Several.",
    ),
]
ForHostOption = Annotated[
    list[str] | None,
    typer.Option("--for-host", metavar="HOST[:PORT]", help="The secret's host, by HTTPS; one for each --secret."),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header", metavar="HEADER", help=f"The secret's header, by default '{DEFAULT_HEADER}'; one for each, or none."
    ),
]

_ANSWERS = {b"y": "yes", b"n": "no", b"a": "always", b"\x03": "no", b"\x04": "no"}
_FROM_ENVIRONMENT = "env:"
_MOST_SHOWN = 5


def egress(
    allow_hosts: list[str] | None,
    ask: bool,
    max_host_bytes: int,
    secrets: list[str] | None,
    for_hosts: list[str] | None,
    headers: list[str] | None,
) -> Egress:
    """What the options say; a secret's variable is taken out of this process's environment, so that no child gets it.

    Raises typer.BadParameter, OptionsError; neither shows a secret.
    """
    named, hosts = secrets or [], for_hosts or []
    if len(named) != len(hosts):
        raise typer.BadParameter("Every --secret needs its --for-host, in the same order.")
    if headers and len(headers) != len(named):
        raise typer.BadParameter("Give a --header for every --secret, in the same order, or none.")
    found = []
    for one, host, header in zip(named, hosts, headers or [DEFAULT_HEADER] * len(named), strict=True):
        name, given, source = one.partition("=")
        if not given or not source.startswith(_FROM_ENVIRONMENT):
            # Whoever wrote the secret itself there doesn't get to see it once more.
            raise typer.BadParameter("A --secret is NAME=env:VAR: its value comes from an environment variable.")
        variable = source.removeprefix(_FROM_ENVIRONMENT)
        if variable not in os.environ:
            raise typer.BadParameter(f"The environment variable {variable!r}, for the secret {name!r}, isn't set.")
        found.append(Secret(name, os.environ[variable], host, header))
    wanted = Egress(tuple(allow_hosts or ()), tuple(found), ask, max_host_bytes)
    wanted.check()
    for one in named:
        os.environ.pop(one.partition("=")[2].removeprefix(_FROM_ENVIRONMENT), None)
    return wanted


def say_what_was_refused(events: Iterable[EgressEvent]) -> None:
    """A line with the hosts that a command wasn't let to."""
    places = dict.fromkeys(
        f"{event.host}:{event.port}" for event in events if event.verdict == "refused" and event.host
    )
    if places:
        shown = [*list(places)[:_MOST_SHOWN], *(["…"] if len(places) > _MOST_SHOWN else [])]
        output.say(f"it wasn't let to {', '.join(shown)}: --allow-host, or --ask-host")


class Questions:
    """Asks the person at the terminal, one question at a time: by the keys that are typed, or at the terminal itself."""

    def __init__(self) -> None:
        self._turn = anyio.Lock()
        self._answered: anyio.Event | None = None
        self._answer = "no"

    async def ask(self, place: str) -> str:
        """`yes`, `no` or `always`; no where there is no terminal to ask at."""
        async with self._turn:
            if sys.stdin.isatty():
                self._show(place)
                self._answered = anyio.Event()
                await self._answered.wait()
            else:
                self._answer = await self._ask_terminal(place)
            return self._answer

    async def keys(self, keys: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Keys on their way to the command, but for those that answer a question."""
        async for data in keys:
            if self._answered is None:
                yield data
            else:
                self._take(data)

    def _take(self, data: bytes) -> None:
        answer = _ANSWERS.get(data[:1].lower())
        if answer is not None and self._answered is not None:
            self._answer = answer
            self._answered.set()
            self._answered = None

    def _show(self, place: str) -> None:
        output.say(
            f"the command wants to reach {place}: y (yes, this command may), n (no), a (always in this session)?"
        )

    async def _ask_terminal(self, place: str) -> str:
        try:
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            output.say(f"{place} is refused: there is no terminal to ask at")
            return "no"
        try:
            # What was typed before wasn't meant for this.
            with suppress(termios.error):
                termios.tcflush(terminal, termios.TCIFLUSH)
            self._show(place)
            while True:
                await anyio.wait_readable(terminal)
                typed = os.read(terminal, 1024)
                answer = _ANSWERS.get(typed[:1].lower()) if typed else "no"
                if answer is not None:
                    return answer
        finally:
            os.close(terminal)
