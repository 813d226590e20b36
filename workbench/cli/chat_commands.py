"""What somebody in a chat can say with a slash before it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from workbench.agent.prompt import title_from_input
from workbench.agent.stores import FileSessionStore
from workbench.agent.travels import Travels
from workbench.agent.workspace_session import WorkspaceSession
from workbench.checkpoints.history import RowKind
from workbench.cli import along, output
from workbench.cli.chat_partner import Partner
from workbench.cli.content import Look
from workbench.cli.conversation import Calls
from workbench.cli.decide import print_landed, run_check
from workbench.cli.look import is_wanted, print_patch, print_stat, print_state
from workbench.cli.options import keep_small, terminal_name
from workbench.cli.places import inside
from workbench.cli.prompt import Prompt
from workbench.cli.review import ask
from workbench.cli.travel import age, say_travelled
from workbench.errors import OptionsError
from workbench.protocol.messages import ChatMessage
from workbench.workspace import Workspace

COMMANDS = {
    "/diff": ("[PATH]", "what would change in the real workspace, as a patch"),
    "/commit": ("[WHY]", "land what /diff showed last, else show what there is and ask"),
    "/review": ("", "decide file by file and hunk by hunk, then /commit"),
    "/rewind": ("[MESSAGE]", "back to before a message, files and conversation together"),
    "/redo": ("", "take the last /rewind back"),
    "/show": ("[N]", "the last call of a tool, whole, or the Nth from the end"),
    "/model": ("[NAME]", "which model is asked, or ask another one from now on"),
    "/status": ("", "what the overlay holds, and what runs"),
    "/new": ("", "an empty conversation; the files stay as they are"),
    "/help": ("", "this list"),
    "/quit": ("", "end; ^D does so, too"),
}
KEYS = """\
Alt-Enter, or a \\ at the end of a line, adds a line; // begins a message with
a slash. ↑ brings back what was typed. ^C stops what goes on, and its files
stay. ^D ends.
"""
_LISTED = 200
_DIGITS = 9
"""Of a number that somebody types: with that many it's more than there is of anything, and Python reads no endless ones."""
_SHOWN_MESSAGES = 20


@dataclass(frozen=True, slots=True)
class _Point:
    """A message to go back to before: of one that isn't in the conversation only the files are taken back."""

    id: str
    title: str
    created_ns: int
    is_said: bool


class Commands:
    """The commands of one chat."""

    def __init__(self, workspace: Workspace, partner: Partner, calls: Calls, check: str) -> None:
        """`check` has to pass before anything lands, where it isn't empty."""
        self._workspace = workspace
        self._partner = partner
        self._calls = calls
        self._check = check
        self.ended = False
        """Whether the person has said so."""
        self._does: dict[str, Callable[[str], Awaitable[None]]] = {
            "/diff": self._diff,
            "/commit": self._commit,
            "/review": self._review,
            "/rewind": self._rewind,
            "/redo": self._redo,
            "/show": self._show,
            "/model": self._model,
            "/status": self._status,
            "/new": self._new,
            "/help": self._help,
            "/quit": self._quit,
        }

    async def run(self, line: str) -> None:
        """Do what a line says. Raises what goes wrong with it: WorkbenchError, OSError."""
        name, _, argument = line.strip().partition(" ")
        if name not in self._does:
            raise OptionsError(f"There is no command {name}.", hint=_nearest(name))
        await self._does[name](argument.strip())

    async def messages(self) -> tuple[ChatMessage, ...]:
        """The conversation as it's kept. Raises StoreError."""
        detail = await FileSessionStore(self._workspace.directory).load(self._workspace.session)
        return detail.messages if detail is not None else ()

    async def new(self) -> None:
        """Begin an empty conversation. Raises SessionBusyError, StoreError."""
        await self._partner.close()
        # Where there never was one, none is made.
        if os.path.isdir(self._workspace.conversation_path):
            async with WorkspaceSession.open_to_travel(self._workspace) as session:
                await session.agent.reset()

    async def _help(self, _: str) -> None:
        width = max(len(f"{name} {argument}") for name, (argument, _) in COMMANDS.items())
        for name, (argument, what) in COMMANDS.items():
            print(f"{output.bold(name)} {argument.ljust(width - len(name) - 1)}  {what}")
        print(KEYS, end="")

    async def _quit(self, _: str) -> None:
        self.ended = True

    async def _diff(self, argument: str) -> None:
        wanted = [inside(self._workspace.root, argument)] if argument else []
        changes = await self._workspace.changes()
        shown = [change for change in changes.shown if is_wanted(change, wanted)]
        conflicting = await print_patch(self._workspace, changes, shown, Look.PATCH)
        self._workspace.reviewed(changes, "" if argument else terminal_name())
        if not shown:
            output.say("nothing there has changed" if argument else "nothing has changed")
        elif argument:
            output.say("/commit lands all that a whole /diff showed")
        elif not conflicting:
            output.say("/commit lands exactly this")

    async def _commit(self, message: str) -> None:
        workspace, terminal = self._workspace, terminal_name()
        shown = workspace.shown.last(terminal)
        if shown is None:
            changes = await workspace.changes()
            if not changes.changes:
                output.say("nothing to commit")
                return
            digest = workspace.reviewed(changes)
        else:
            digest = shown.digest
        landing = await workspace.rehearse(digest, allow_risky=True)
        print_stat(workspace, landing)
        number = output.count(len(landing.shown), "change")
        if shown is None and not await _is_yes(f"Land {number} in the real workspace [y/N]?"):
            return
        if landing.risky and not await _is_yes(
            "RISKY paths make a host run code or lead out of here. Land them? Type yes:", word="yes"
        ):
            output.say("nothing was applied")
            return
        if self._check:
            await run_check(workspace, digest, self._check)
        print_landed(await workspace.commit(digest, allow_risky=bool(landing.risky), message=message))
        keep_small(workspace)

    async def _review(self, _: str) -> None:
        await ask(self._workspace, None, Look.PATCH)

    async def _rewind(self, argument: str) -> None:
        points = await self._points()
        if not argument:
            if not points:
                output.say("there is no message yet to go back to")
                return
            for number, point in [*enumerate(points, start=1)][-_SHOWN_MESSAGES:]:
                alone = "" if point.is_said else output.dim("  (not in the conversation: files only)")
                print(f"{number:>4}  {age(point.created_ns):>14}  {output.text(point.title)}{alone}")
            answer = await Prompt().line("Back to before which one? Its number, or Enter to stay:")
            argument = (answer or "").strip()
            if not argument:
                return
        message_id = argument
        if argument.isascii() and argument.isdigit():
            number = int(argument[:_DIGITS])
            if not 1 <= number <= len(points):
                raise OptionsError(f"There is no message {argument} to go back to.", hint="/rewind lists them.")
            message_id = points[number - 1].id
        await self._partner.close()
        travelled, removed = await along.rewind(self._workspace, message_id, force=False)
        say_travelled(travelled, removed, redo="/redo")

    async def _points(self) -> list[_Point]:
        """The messages that there is a way back to, oldest first."""
        said = {message.id for message in await self.messages() if message.role == "user"}
        started = (await Travels(self._workspace.directory, self._workspace.session).read()).started
        found = [
            _Point(kept.message_id, kept.label or title_from_input(""), kept.created_at, kept.message_id in said)
            for entry in self._workspace.timeline.log(most=_LISTED)
            if (kept := entry.checkpoint).purpose.kind is RowKind.MESSAGE
            and not entry.is_left
            and (kept.message_id in said or kept.message_id in started)
        ]
        return found[::-1]

    async def _redo(self, _: str) -> None:
        await self._partner.close()
        travelled, brought = await along.redo(self._workspace, force=False)
        say_travelled(travelled, brought, back=True, redo="/rewind")

    async def _show(self, argument: str) -> None:
        if argument and not (argument.isascii() and argument.isdigit()):
            raise OptionsError(f"{argument!r} isn't a number.", hint="/show 2 shows the call before the last one.")
        if not self._calls.show(int(argument[:_DIGITS] or 1)):
            output.say("there is no such call in this chat")

    async def _model(self, argument: str) -> None:
        if argument:
            await self._partner.change(argument)
        output.say(f"the model is {self._partner.name}" if self._partner.name else "no model is named: /model NAME")

    async def _status(self, _: str) -> None:
        print_state(self._workspace, await self._workspace.status())
        said = output.count(len(await self.messages()), "message")
        print(f"{output.bold('chat')}       {said}, with {self._partner.name or 'no model yet'}")

    async def _new(self, _: str) -> None:
        await self.new()
        output.say("an empty conversation; the files stay as they are")


def _nearest(name: str) -> str:
    """What an unknown command was to be."""
    begun = [each for each in COMMANDS if each.startswith(name)]
    near = begun or difflib.get_close_matches(name, COMMANDS, n=1)
    meant = f"Do you mean {near[0]}? " if near else ""
    return f"{meant}/help lists them; // begins a message with a slash."


async def _is_yes(question: str, word: str = "y") -> bool:
    """Whether the answer begins with `y`, or is the very word."""
    answer = (await Prompt().line(question) or "").strip().lower()
    return answer.startswith("y") if word == "y" else answer == word
