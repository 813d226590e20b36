"""The second use: a person decides hunk by hunk what of an agent's work lands, and goes on editing meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench import Bench
from tests.conftest import Cli
from tests.trees import snapshot
from tests.uses.conftest import Configure
from tests.uses.scripts import MODEL, call, say
from workbench.testing import StubModelServer
from workbench.workspace import Workspace

LINES = [f"line {number}\n" for number in range(40)]


def text(**changed: str) -> str:
    """The file with some of its lines in other words: `at3="three"`."""
    lines = list(LINES)
    for at, words in changed.items():
        lines[int(at.removeprefix("at"))] = f"{words}\n"
    return "".join(lines)


def hunks(bench: Bench, path: bytes) -> list[str]:
    """The ids of a file's hunks, from its top down."""

    async def look(workspace: Workspace) -> list[str]:
        review = await workspace.review()
        (change,) = (change for change in review.changes.shown if change.path == path)
        return [hunk.id for hunk in review.hunks(change)]

    return bench.do(look)


def test_what_lands_is_the_accepted_hunk_and_what_the_person_wrote(
    engine: None, tmp_path: Path, configure: Configure
) -> None:
    root = tmp_path / "project"
    root.mkdir()
    long, notes = root / "long.txt", root / "notes.txt"
    long.write_text(text())
    notes.write_text("mine\n")
    cli, bench = Cli(root), Bench(root)
    with StubModelServer(
        call("edit_file", path="long.txt", old_text="line 3\n", new_text="agent's three\n"),
        call("shell", command='sed -i "s/^line 30$/agent\'s thirty/" long.txt'),
        call("write_file", path="more.txt", content="agent's\n"),
        say("Done."),
    ) as stub:
        configure(stub)
        cli("run", "--model", MODEL, "Change lines 3 and 30.", code=7)
    before = snapshot(root)
    _, last = hunks(bench, b"long.txt")
    cli("review", "--accept-hunk", last)
    assert snapshot(root) == before

    # Elsewhere the person goes on as they like.
    notes.write_text("mine, and more\n")
    cli("commit", "--accepted")
    assert long.read_text() == text(at30="agent's thirty")
    assert notes.read_text() == "mine, and more\n"
    assert sorted(path.name for path in root.iterdir()) == ["long.txt", "notes.txt"]
    assert bench.told() == {b"long.txt": "modified", b"more.txt": "added"}

    # In the same file it's a conflict, and nothing of it lands before both are one.
    (first,) = hunks(bench, b"long.txt")
    cli("review", "--accept", "more.txt", "--accept-hunk", first)
    long.write_text(text(at17="person's seventeen", at30="agent's thirty"))
    before = snapshot(root)
    refused = json.loads(cli("commit", "--accepted", "--json", code=3).stdout)
    assert (refused["error"]["code"], [path["path"] for path in refused["paths"]]) == ("conflict", ["long.txt"])
    assert snapshot(root) == before
    cli("merge")
    assert snapshot(root) == before
    (first,) = hunks(bench, b"long.txt")
    cli("review", "--reject", "more.txt", "--accept-hunk", first)
    cli("commit", "--accepted")
    assert long.read_text() == text(at3="agent's three", at17="person's seventeen", at30="agent's thirty")
    assert notes.read_text() == "mine, and more\n"
    assert sorted(path.name for path in root.iterdir()) == ["long.txt", "notes.txt"]
    assert bench.told() == {b"more.txt": "added"}
