"""Reviewing at a terminal: what somebody answers is what lands, and nothing else does."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.cli.terminals import INTERRUPT, Terminal, talk, terminal
from tests.conftest import ROOT
from workbench.cli.report import review_report
from workbench.protocol.reports import ReviewReport
from workbench.review.comments import as_text
from workbench.workspace import Workspace

LINES = [f"line {number}\n" for number in range(30)]
_ASKS = rb"\?\]\?|\[y,n\]\?|know\?|\[y/N\]:"


class Desk:
    """A workspace with changes in its overlay that no sandbox made, and somebody at a terminal."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "project"
        self.root.mkdir()
        (self.root / "long.txt").write_text("".join(LINES))
        (self.root / "doomed").write_text("old\n")
        (self.root / "uv.lock").write_text("old lock\n")
        self.bench = Bench(self.root)
        paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self.environment = {"PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"}

    def write(self, files: dict[bytes, bytes | None]) -> None:
        """Put files in the overlay; None removes one."""

        async def write(workspace: Workspace) -> None:
            for path, content in files.items():
                if content is None:
                    await workspace.files.unlink(path)
                    continue
                if b"/" in path:
                    await workspace.files.makedirs(path.rpartition(b"/")[0], exist_ok=True)
                await workspace.files.write(path, content)

        self.bench.do(write)

    def read(self, path: bytes) -> bytes:
        """What the overlay has."""
        return self.bench.do(lambda workspace: workspace.files.read(path))

    @contextlib.contextmanager
    def review(self, *arguments: str) -> Iterator[Terminal]:
        argv = [sys.executable, "-m", "workbench", "review", "-w", str(self.root), *arguments]
        with terminal(argv, cwd=self.root, environment=self.environment, size=(50, 100)) as shown:
            yield shown

    def answer(self, *answers: str, arguments: tuple[str, ...] = ()) -> str:
        """Answer question by question; all that was shown."""
        codes, shown = self.talk(("review", *arguments), answers=answers)
        assert codes == [0], shown
        return shown

    def talk(self, *commands: tuple[str, ...], answers: Sequence[str]) -> tuple[list[int], str]:
        """Run commands at one terminal."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            full = [[name, "-w", str(self.root), *arguments] for name, *arguments in commands]
            return talk(full, [answer.encode() for answer in answers], _ASKS)

    def land(self) -> set[str]:
        """Land what was accepted; the paths that landed."""

        async def land(workspace: Workspace) -> set[str]:
            accepted = workspace.reviewing.accepted()
            assert accepted is not None
            landed = await workspace.commit(accepted.digest, allow_risky=True)
            return {os.fsdecode(path) for path in landed.committed.landed}

        return self.bench.do(land)

    def has_accepted(self) -> bool:
        async def look(workspace: Workspace) -> bool:
            return workspace.reviewing.accepted() is not None

        return self.bench.do(look)


async def _report(workspace: Workspace) -> ReviewReport:
    review = await workspace.review()
    return review_report(workspace, review, workspace.reviewing.keep(review))


@pytest.fixture
def desk(state: Path, tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    changed = list(LINES)
    changed[1], changed[4], changed[28] = "LINE ONE\n", "LINE FOUR\n", "LINE TWENTY-EIGHT\n"
    made.write(
        {
            b"long.txt": "".join(changed).encode(),
            b"doomed": None,
            b"new/file": b"new\n",
            b"new/other": b"other\n",
            b".envrc": b"x=1\n",
            b"uv.lock": b"new lock\n",
        }
    )
    return made


def text(**changed: str) -> str:
    """The long file with some of its lines changed, each named `line` and its number."""
    return "".join(changed.get(f"line{number}", line) for number, line in enumerate(LINES))


def test_what_is_risky_comes_first_with_its_warning_before_its_content_and_lock_files_are_folded(desk: Desk) -> None:
    shown = desk.answer("n", "y", "y", "y", "n", "n", "v", "y")
    assert shown.index("Risky") < shown.index("Source") < shown.index("Lock files, folded") < shown.index("RISKY: ")
    assert shown.index("RISKY: ") < shown.index("+x=1")
    before, _, after = shown.partition("its lines are folded")
    assert "new lock" not in before
    assert "+new lock" in after
    assert desk.land() == {"doomed", "long.txt", "uv.lock"}
    assert not (desk.root / "doomed").exists()
    assert not (desk.root / ".envrc").exists()
    assert not (desk.root / "new").exists()


def test_a_new_file_that_is_much_like_one_that_goes_is_shown_as_that(desk: Desk) -> None:
    desk.write({b"long.txt": None, b"moved.txt": text(line7="LINE SEVEN\n").encode()})
    assert "% like long.txt, which goes" in desk.answer("g moved.txt", "y", "q")
    assert desk.land() == {"moved.txt"}


def test_hunks_are_taken_one_by_one_and_split(desk: Desk) -> None:
    shown = desk.answer("g long.txt", "s", "n", "y", "n", "q")
    assert "Split into 2 hunks." in shown
    assert desk.land() == {"long.txt"}
    assert (desk.root / "long.txt").read_text() == text(line4="LINE FOUR\n")
    assert b"LINE ONE" in desk.read(b"long.txt")


@pytest.mark.parametrize("split", [False, True], ids=["whole", "in parts"])
def test_an_edited_hunk_lands_as_it_was_edited_and_the_agents_stays_in_the_overlay(desk: Desk, split: bool) -> None:
    desk.environment["EDITOR"] = "sed -i -e s/ONE/EINS/"
    answers = ["s", "e", "y", "n"] if split else ["e", "n"]
    shown = desk.answer("g long.txt", *answers, "q")
    told = desk.bench.do(_report)
    (change,) = (change for change in told.changes if change.path == "long.txt")
    hunks = [part for hunk in change.hunks for part in (hunk, *hunk.parts)]
    assert [line for hunk in hunks for line in hunk.edited or () if "EINS" in line] == ["+LINE EINS\n"]
    assert desk.land() == {"long.txt"}
    assert (desk.root / "long.txt").read_text() == text(line1="LINE EINS\n", line4="LINE FOUR\n"), shown
    assert b"LINE ONE" in desk.read(b"long.txt")


def test_a_new_file_can_be_edited_before_it_lands(desk: Desk) -> None:
    desk.environment["VISUAL"] = "sed -i -e 's/^+new$/+newer/' -e '/^+newer/a +than that'"
    desk.answer("g new/file", "e", "q")
    desk.land()
    assert (desk.root / "new/file").read_text() == "newer\nthan that\n"
    assert desk.read(b"new/file") == b"new\n"


@pytest.mark.parametrize(
    ("editor", "said"),
    [
        ("sed -i 's/^ line 0$/ line none/'", "no longer fits"),
        ("sed -i '/^-line 1$/d'", "no longer fits"),
        ("sed -i 's/^+LINE/LINE/'", "begins with none of"),
        ("false", "ended with 1"),
        ("/nonexistent/editor", "can't be started"),
    ],
)
def test_an_edit_that_makes_no_hunk_decides_nothing(desk: Desk, editor: str, said: str) -> None:
    desk.environment["EDITOR"] = editor
    assert said in desk.answer("g long.txt", "e", "q")
    assert not desk.has_accepted()


def test_a_review_that_was_ended_goes_on_where_it_was(desk: Desk) -> None:
    first = desk.answer("n", "y", "y", "q")
    assert "(3/6, 2/2)" in first
    second = desk.answer("y", "q")
    assert "(3/6, 2/2)" in second
    assert "Accept this hunk" not in second.partition("(3/6, 2/2)")[0]
    assert "(4/6)" in second
    assert desk.land() == {"doomed", "long.txt"}


def test_a_review_that_was_interrupted_keeps_what_was_decided_and_accepts_nothing_yet(desk: Desk) -> None:
    with desk.review() as shown:
        for answer in (b"n\n", b"y\n"):
            shown.expect(_ASKS)
            shown.type(answer)
        shown.expect(_ASKS)
        shown.type(INTERRUPT)
        assert shown.wait() == 130
        assert b"is kept" in shown.screen
        assert shown.modes() == shown.modes_before
    assert not desk.has_accepted()
    assert "(3/6, 1/2)" in desk.answer("q")
    assert desk.land() == {"doomed"}


def test_the_end_of_the_input_ends_a_review(desk: Desk) -> None:
    with desk.review() as shown:
        shown.expect(_ASKS)
        shown.type(b"y\n")
        shown.expect(_ASKS)
        shown.type(b"\x04")
        assert shown.wait() == 0
    assert desk.land() == {".envrc"}


def test_a_directory_is_taken_or_left_as_a_whole(desk: Desk) -> None:
    shown = desk.answer("A new", "R .")
    assert "2 changes accepted in new" in shown
    assert "4 changes rejected in ." in shown
    assert desk.land() == {"new", "new/file", "new/other"}


def test_somebody_who_has_decided_everything_can_think_again(desk: Desk) -> None:
    desk.answer("R .")
    shown = desk.answer("j", "y", "q")
    assert "decided: rejected" in shown
    assert desk.land() == {"doomed"}


def test_the_table_has_the_numbers_that_one_can_go_to(desk: Desk) -> None:
    shown = desk.answer("q")
    numbers = dict(reversed(found) for found in re.findall(r"^(\d+) \[ \] (\S+)", shown, re.MULTILINE))
    assert list(numbers) == [".envrc", "doomed", "long.txt", "new/file", "new/other", "uv.lock"]
    for path, number in numbers.items():
        assert f"\n{path}  (" in desk.answer(f"g {number}", "q").partition("Accept")[2]


def test_a_key_that_does_nothing_is_named_before_the_keys_that_do_something(desk: Desk) -> None:
    shown = desk.answer("x", "s", "q")
    assert "'x' does nothing here.\ny  accept this" in shown
    assert "'s' does nothing here.\ny  accept this" in shown


def test_accepting_everything_still_asks_about_what_is_risky(desk: Desk) -> None:
    shown = desk.answer("A .", "n")
    assert "5 changes accepted in ." in shown
    assert "1 risky change in it still to be asked about" in shown
    assert desk.land() == {"doomed", "long.txt", "new", "new/file", "new/other", "uv.lock"}
    assert not (desk.root / ".envrc").exists()


def test_a_word_that_begins_with_a_key_is_no_key_unless_it_is_its_name(desk: Desk) -> None:
    shown = desk.answer("commit", "accept", "done", "g3", "yes", "no", "quit")
    for word in ("commit", "accept", "done", "g3"):
        assert f"'{word}' does nothing here." in shown
    report = desk.bench.do(_report)
    assert report.comments == ()
    decided = [change.verdict for change in report.changes]
    assert decided.count("accepted") == decided.count("rejected") == 1


def test_what_is_said_to_the_agent_is_there_for_it_until_it_takes_it(desk: Desk) -> None:
    desk.answer("c why?", "g long.txt", "y", "c", "and this?", "q")
    shown = desk.answer("c not\x1b[2J so \u202e loud", "q")
    assert "Kept for the agent." in shown
    assert "3 comments for the agent" in shown

    async def take(workspace: Workspace) -> list[bytes]:
        return list(as_text(workspace.reviewing.comments.take()))

    told = desk.bench.do(take)
    assert told[:2] == [b".envrc:1\n", b"    +x=1\n"]
    assert told.index(b"why?\n\n") < told.index(b"long.txt:29\n") < told.index(b"and this?\n\n")
    assert desk.bench.do(take) == []


def test_a_file_that_is_opened_is_changed_in_the_overlay_and_looked_at_again(desk: Desk) -> None:
    desk.environment["EDITOR"] = "sed -i -e s/new/newest/"
    shown = desk.answer("y", "g new/file", "o", "y", "q")
    assert "+newest" in shown
    assert desk.read(b"new/file") == b"newest\n"
    assert desk.land() == {".envrc", "new", "new/file"}
    assert (desk.root / "new/file").read_text() == "newest\n"


def test_a_search_goes_to_what_has_the_text_in_its_name_or_lines(desk: Desk) -> None:
    shown = desk.answer("/twenty-EIGHT", "/OTHER", "/nowhere", "k", "q")
    asked = [line for line in shown.splitlines() if "Accept" in line]
    assert [line.partition(")")[0].partition("(")[2].partition(",")[0] for line in asked] == [
        "1/6",
        "3/6",
        "5/6",
        "5/6",
        "4/6",
    ]
    assert "Nothing has 'nowhere' in it." in shown


def test_what_goes_and_what_comes_in_its_place_are_taken_together_or_not_at_all(desk: Desk) -> None:
    desk.write({b"new/file": b"new\n"})

    async def replace(workspace: Workspace) -> None:
        await workspace.files.unlink(b"uv.lock")
        await workspace.files.mkdir(b"uv.lock")
        await workspace.files.write(b"uv.lock/file", b"in it\n")

    desk.bench.do(replace)
    shown = desk.answer("g uv.lock", "n", "g uv.lock/file", "y", "q", "y", "q")
    assert "[not_landable]" in shown
    assert desk.land() == {"uv.lock", "uv.lock/file"}


def test_a_new_mode_is_asked_about_where_all_hunks_were_accepted(desk: Desk) -> None:
    async def make_executable(workspace: Workspace) -> None:
        await workspace.files.chmod(b"long.txt", 0o755)

    desk.bench.do(make_executable)
    os.chmod(desk.root / "long.txt", 0o644)
    desk.answer("g long.txt", "y", "y", "n", "q")
    desk.land()
    assert (desk.root / "long.txt").read_bytes() == desk.read(b"long.txt")
    assert (desk.root / "long.txt").stat().st_mode & 0o777 == 0o644
    desk.answer("g long.txt", "y", "q")
    desk.land()
    assert (desk.root / "long.txt").stat().st_mode & 0o777 == 0o755


def test_nothing_of_an_agents_reaches_the_terminal_raw(desk: Desk) -> None:
    desk.write({b"evil\x1b]0;name": b"\x1b[8mhidden\x1b[0m \xe2\x80\xae reversed \x07\n"})
    for look in ((), ("--word-diff",), ("--side-by-side",)):
        shown = desk.answer("/hidden", "q", arguments=look)
        assert "hidden" in shown
        assert not {"\x1b", "\u202e", "\x07"}.intersection(shown), look


def test_a_commit_on_the_same_terminal_lands_what_was_accepted_and_never_what_was_shown_before(desk: Desk) -> None:
    codes, shown = desk.talk(("diff",), ("review",), ("commit",), answers=["g new/file", "y", "q"])
    assert codes == [0, 0, 0]
    assert "1 change landed" in shown
    assert sorted(path.name for path in desk.root.iterdir()) == ["doomed", "long.txt", "new", "uv.lock"]
    codes, shown = desk.talk(("diff",), ("review",), ("commit",), answers=["R .", "n"])
    assert codes == [0, 0, 1]
    assert "Commit 5 changes to the real workspace?" in shown
    assert sorted(path.name for path in desk.root.iterdir()) == ["doomed", "long.txt", "new", "uv.lock"]


def test_without_a_terminal_nothing_is_asked(desk: Desk) -> None:
    argv = ["sh", "-c", '"$@" | cat', "sh", sys.executable, "-m", "workbench", "review", "-w", str(desk.root)]
    with terminal(argv, cwd=desk.root, environment=desk.environment) as shown:
        assert shown.wait() == 0
    assert b"[y,n" not in shown.screen
    assert b"[ ] new/file" in shown.screen
