"""`review` at a terminal: change by change and hunk by hunk, with the keys of `git add -p`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

from workbench.cli import content, editor, output
from workbench.cli.content import Look, not_in_a_patch
from workbench.cli.options import terminal_name
from workbench.cli.prompt import Answer, Prompt
from workbench.cli.tables import print_table, row
from workbench.errors import CommitError, OptionsError
from workbench.review.changeset import Change, ChangeKind, ChangeSet
from workbench.review.decisions import Review, Verdict
from workbench.review.hunks import NamedHunk, editable, edited
from workbench.review.order import group_of, in_order, is_folded
from workbench.review.similar import with_similar_renames
from workbench.vfs import paths
from workbench.vfs.storage import Kind
from workbench.workspace import Workspace

_SAME = 100
_MOST_LINES = 200
"""Lines of a hunk that are shown without being asked for."""

_HELP = """\
y  accept this                       n  reject this
a  accept the rest of this file      d  reject the rest of this file
s  split this hunk                   e  edit this hunk, and accept it so
j  leave it undecided, go on         k  go back
A  accept all that is undecided in this directory and below; A DIR in another one (. is all)
R  reject it                         (risky changes are still asked about one by one)
o  open the file in your editor; what you save goes into the overlay
c  say something to the agent about this; c TEXT at once
v  show all of it, where it's long or folded
/  go to the next change with a text in its name or its lines: /TEXT
g  go to a change: g NUMBER or g PATH
t  the table                         q  keep what is decided, and end
"""
_WHAT = {ChangeKind.DELETED: "this deletion", ChangeKind.ADDED: "this addition", ChangeKind.RENAMED: "this rename"}
_EDIT_HELP = b"""\
# Edit what is accepted. To keep a line that goes, make its - a space; to leave out one that comes, delete its line;
# what you add begins with +. Lines that begin with # are left out.
"""


class _Move(Enum):
    """Where to go from a change."""

    NEXT = auto()
    BACK = auto()
    AGAIN = auto()
    THERE = auto()
    """`_Dialogue.at` says where."""
    QUIT = auto()


@dataclass(slots=True)
class _Place:
    """What is asked about: a change, and a hunk of it where it's asked about hunk by hunk."""

    change: Change
    hunk: NamedHunk | None = None


class Dialogue:
    """One review by one person at a terminal."""

    def __init__(self, workspace: Workspace, review: Review, conflicts: list[bytes], look: Look) -> None:
        self._workspace = workspace
        self._review = review
        self._conflicts = frozenset(conflicts)
        self._look = look
        self._prompt = Prompt()
        self._changes = in_order(review.changes.shown)
        self._moved = self._find_moved()
        self._passed: set[bytes] = set()
        self._is_again = False
        """Whether all was decided before, so that everything is gone through again."""
        self._sought = ""
        self.at = 0

    async def run(self) -> tuple[Review, ChangeSet]:
        """Ask about every change that isn't decided, or about all where none is left; the review at its end, and what was
        accepted.

        Each decision is kept at once. What was shown on this terminal before is no longer what a commit takes by itself.
        Raises as `Reviewing.keep`.
        """
        self._workspace.shown.withdraw(terminal_name())
        self._table()
        print(
            output.dim("y accepts, n rejects, A accepts a whole directory, q ends and keeps it so, ? shows all keys.")
        )
        self.at = self._undecided_from(0)
        if self.at == len(self._changes):
            print(output.dim("All of it is decided; here it is again: j leaves a decision as it is."))
            self._is_again, self.at = True, 0
        while True:
            await self._decide()
            self._is_again = False
            try:
                return self._review, self._workspace.reviewing.keep(self._review, terminal_name())
            except CommitError as error:
                if error.code != "not_landable":
                    raise
                output.error(error, as_json=False)
                self._passed.clear()
                for at, change in enumerate(self._changes):
                    if change.path in error.paths:
                        self._review.decide_change(change, None)
                        self.at = at

    async def _decide(self) -> None:
        while self.at < len(self._changes):
            change = self._changes[self.at]
            move = await self._ask_about(change)
            if move is _Move.QUIT:
                return
            if move is _Move.BACK:
                self.at = max(0, self.at - 1)
            elif move is _Move.NEXT:
                self._passed.add(change.path)
                self.at = self.at + 1 if self._is_again else self._undecided_from(self.at + 1)

    def _undecided_from(self, start: int) -> int:
        """The next undecided change, those before `start` last; the number of all where there is none.

        What was passed over once is for another review.
        """
        order = [*range(start, len(self._changes)), *range(start)]
        undecided = (at for at in order if not self._is_decided(self._changes[at]))
        return next((at for at in undecided if self._changes[at].path not in self._passed), len(self._changes))

    def _is_decided(self, change: Change) -> bool:
        decision = self._review.decision(change)
        if decision.accepted is not None:
            return True
        if not decision.hunks:
            return False
        return all(part.id in decision.hunks for hunk in self._review.hunks(change) for part in hunk.leaves)

    # One change

    async def _ask_about(self, change: Change) -> _Move:
        self._show_head(change)
        if is_folded(change):
            print(row(self._workspace, self._review, change))
            print(output.dim("Written by a tool, so its lines are folded: v shows them."))
            return await self._ask_whole(change, is_folded=True)
        hunks = list(self._review.hunks(change))
        if not hunks:
            content.show_head(self._workspace, change)
            if change.kind in (ChangeKind.ADDED, ChangeKind.MODIFIED, ChangeKind.DELETED):
                print(row(self._workspace, self._review, change))
            if line := not_in_a_patch(change):
                print(line)
            return await self._ask_whole(change)
        if change.kind is ChangeKind.DELETED or (len(hunks) == 1 == len(hunks[0].leaves) and _is_new(change)):
            self._show_hunk(change, hunks[0])
            return await self._ask_whole(change, hunks[0])
        return await self._ask_hunks(change, hunks)

    async def _ask_whole(self, change: Change, hunk: NamedHunk | None = None, *, is_folded: bool = False) -> _Move:
        is_editable = hunk is not None and _is_new(change)
        what = _WHAT.get(change.kind, "this change")
        keys = f"y,n,{'v,' if is_folded else ''}{'e,' if is_editable else ''}o,c,q,?"
        while True:
            answer = await self._prompt.ask(f"({self._number()}) Accept {what} [{keys}]?")
            if answer is None or answer.key == "q":
                return _Move.QUIT
            if answer.key in ("y", "a", "n", "d"):
                self._review.decide_change(change, answer.key in ("y", "a"))
                self._save()
                return _Move.NEXT
            if answer.key == "v":
                content.show(self._workspace, [change], self._look)
            elif answer.key == "e" and hunk is not None and is_editable:
                if self._edit(change, hunk):
                    return _Move.NEXT
            elif (move := await self._elsewhere(answer, _Place(change, hunk))) is not None:
                return move

    async def _ask_hunks(self, change: Change, hunks: list[NamedHunk]) -> _Move:
        decided = self._review.decision(change).hunks
        at = next((at for at, hunk in enumerate(hunks) if any(part.id not in decided for part in hunk.leaves)), 0)
        shown = -1
        while at < len(hunks):
            hunk = hunks[at]
            if shown != at:
                self._show_hunk(change, hunk)
                shown = at
            keys = "y,n,a,d,s,e,o,c,q,?" if hunk.parts else "y,n,a,d,e,o,c,q,?"
            answer = await self._prompt.ask(f"({self._number()}, {at + 1}/{len(hunks)}) Accept this hunk [{keys}]?")
            if answer is None or answer.key == "q":
                return _Move.QUIT
            if answer.key in ("y", "n"):
                self._review.decide_part(change, hunk, answer.key == "y")
                self._save()
                at += 1
            elif answer.key in ("a", "d"):
                self._decide_rest(change, hunks, at, answer.key == "a")
                return _Move.NEXT
            elif answer.key == "s" and hunk.parts:
                hunks[at : at + 1] = hunk.parts
                print(f"Split into {len(hunk.parts)} hunks.")
                shown = -1
            elif answer.key == "e":
                at += self._edit(change, hunk)
            elif answer.key == "j":
                at += 1
            elif answer.key == "k" and at:
                at -= 1
            elif answer.key == "v":
                self._show_hunk(change, hunk, whole=True)
            elif (move := await self._elsewhere(answer, _Place(change, hunk))) is not None:
                return move
        return await self._settle(change)

    def _decide_rest(self, change: Change, hunks: list[NamedHunk], at: int, accepted: bool) -> None:
        """What is said of the rest from the first hunk on is said of the whole file, its mode too."""
        if at == 0:
            self._review.decide_change(change, accepted)
        else:
            for hunk in hunks[at:]:
                self._review.decide_part(change, hunk, accepted)
        self._save()

    async def _settle(self, change: Change) -> _Move:
        """Make one word of it where the same was said of every hunk; a new mode is asked about."""
        decision = self._review.decision(change)
        said = {decision.hunks.get(part.id) for hunk in self._review.hunks(change) for part in hunk.leaves}
        if said == {False}:
            self._review.decide_change(change, False)
        elif said == {True} and not decision.edits:
            old, new = change.old, change.new
            if old is None or new is None or old.mode == new.mode:
                self._review.decide_change(change, True)
            else:
                question = f"Accept its new mode, too ({old.mode:o} to {new.mode:o}) [y,n]?"
                answer = await self._prompt.ask(question)
                if answer is not None and answer.key == "y":
                    self._review.decide_change(change, True)
        self._save()
        return _Move.NEXT

    # Keys that are the same everywhere

    async def _elsewhere(self, answer: Answer, place: _Place) -> _Move | None:
        """What an answer does that decides nothing of the place itself; None is to ask again."""
        act: dict[str, Callable[[], _Move | None]] = {
            "j": lambda: _Move.NEXT,
            "k": lambda: _Move.BACK,
            "A": lambda: self._decide_directory(place.change, answer.argument, True),
            "R": lambda: self._decide_directory(place.change, answer.argument, False),
            "/": lambda: self._search(answer.argument),
            "g": lambda: self._go(answer.argument),
            "t": self._table,
        }
        if answer.key in act:
            return act[answer.key]()
        if answer.key == "c":
            await self._comment(answer.argument, place)
        elif answer.key == "o":
            return await self._open(place.change)
        else:
            if answer.key not in ("?", ""):
                print(f"{answer.key!r} does nothing here.")
            print(_HELP, end="")
        return None

    def _decide_directory(self, change: Change, named: str, accepted: bool) -> _Move | None:
        directory = os.fsencode(named.rstrip("/")) if named else paths.parent(change.path)
        directory = b"" if directory == b"." else directory
        fitting = [
            one
            for one in self._changes
            if (not directory or one.path == directory or paths.is_below(one.path, directory))
            and not self._is_decided(one)
        ]
        decided = [one for one in fitting if not (accepted and one.risk)]
        for one in decided:
            self._review.decide_change(one, accepted)
        self._save()
        word = "accepted" if accepted else "rejected"
        print(f"{output.count(len(decided), 'change')} {word} in {output.path(directory)}")
        if risky := len(fitting) - len(decided):
            print(f"{output.count(risky, 'risky change')} in it still to be asked about")
        return _Move.AGAIN if not self._is_decided(change) else _Move.NEXT

    def _search(self, text: str) -> _Move | None:
        self._sought = text or self._sought
        wanted = self._sought.encode(errors="surrogateescape").lower()
        order = [*range(self.at + 1, len(self._changes)), *range(self.at + 1)]
        for at in order if wanted else ():
            change = self._changes[at]
            found = any(wanted in path.lower() for path, _, _ in change.steps()) or any(
                wanted in line.lower() for hunk in self._review.hunks(change) for line in hunk.hunk.lines
            )
            if found:
                self.at = at
                return _Move.THERE
        print(f"Nothing has {self._sought!r} in it." if wanted else "Say what: /TEXT")
        return None

    def _go(self, where: str) -> _Move | None:
        path = os.fsencode(where)
        for at, change in enumerate(self._changes):
            if where == str(at + 1) or (where and path in (step for step, _, _ in change.steps())):
                self.at = at
                return _Move.THERE
        print(f"There is no such change: g and 1 to {len(self._changes)}, or a path of the table.")
        return None

    async def _comment(self, text: str, place: _Place) -> None:
        said = text or (await self._prompt.line("What should the agent know?") or "").strip()
        if said:
            self._workspace.reviewing.comments.add(said, place.change, place.hunk)
            print("Kept for the agent.")

    async def _open(self, change: Change) -> _Move | None:
        """Let somebody change the file in the overlay itself, and look again."""
        new = change.new
        if new is None or new.kind is not Kind.FILE:
            print("There's no file to open.")
            return None
        before = await self._workspace.files.read(change.path)
        with self._workspace.store.open(new.blob) as file:
            if before != file.read():
                print("It changed meanwhile; end the review, and begin again.")
                return None
        try:
            after = editor.edit(before, os.path.splitext(os.fsdecode(paths.name(change.path)))[1])
        except OptionsError as error:
            output.error(error, as_json=False)
            return None
        if after == before:
            return _Move.AGAIN
        if await self._workspace.files.read(change.path) != before:
            print("It changed while you edited it; what you saved is dropped.")
            return None
        await self._workspace.files.write(change.path, after)
        self._save()
        self._review = await self._workspace.review(self._review.included)
        self._changes = in_order(self._review.changes.shown)
        self._moved = self._find_moved()
        places = [at for at, one in enumerate(self._changes) if one.path == change.path]
        self.at = places[0] if places else self.at
        return _Move.THERE

    def _edit(self, change: Change, hunk: NamedHunk) -> bool:
        """Let somebody edit a hunk, and accept it so; False where it stays undecided."""
        try:
            text = editor.edit(editable(hunk) + _EDIT_HELP, ".diff")
            self._review.edit_part(change, hunk, edited(hunk, text))
        except OptionsError as error:
            output.error(error, as_json=False)
            return False
        self._save()
        return True

    # Showing

    def _table(self) -> None:
        print_table(self._workspace, self._review, self._changes, fold=True, numbered=True)

    def _show_head(self, change: Change) -> None:
        print()
        names = f"{output.path(change.renamed_from)} -> " if change.renamed_from else ""
        print(output.bold(f"{names}{output.path(change.path)}  ({change.kind.value}, {group_of(change).name.lower()})"))
        if change.risk:
            print(output.red(f"RISKY: {change.risk}"))
        if any(path in self._conflicts for path, _, _ in change.steps()):
            print(output.red("CONFLICT: changed in the real workspace meanwhile, so this can't land before a merge"))
        if change.new_executable:
            print(output.red("executable now"))
        if (moved := self._moved.get(change.path)) is not None:
            print(f"{moved.similarity}% like {output.path(moved.renamed_from)}, which goes")
        if change.drops_setid:
            print("setuid or setgid stays behind")
        if self._review.verdict(change) is not Verdict.UNDECIDED:
            print(output.dim(f"decided: {self._review.verdict(change).value}"))

    def _find_moved(self) -> dict[bytes, Change]:
        """New files that are much like one that goes: each is decided by itself, and worth a word."""
        seen = with_similar_renames(self._changes, self._workspace.lower, self._workspace.store)
        return {one.path: one for one in seen if one.kind is ChangeKind.RENAMED and one.similarity < _SAME}

    def _show_hunk(self, change: Change, hunk: NamedHunk, *, whole: bool = False) -> None:
        lines = hunk.hunk.lines
        shown = hunk.hunk if whole else replace(hunk.hunk, lines=lines[:_MOST_LINES])
        content.show_hunks(change, [shown], self._look)
        if len(shown.lines) < len(lines):
            print(output.dim(f"… {len(lines) - len(shown.lines):,} more lines: v shows them"))

    def _number(self) -> str:
        return f"{self.at + 1}/{len(self._changes)}"

    def _save(self) -> None:
        self._workspace.reviewing.save(self._review)


def _is_new(change: Change) -> bool:
    return change.kind is ChangeKind.ADDED
