"""A commit never overwrites what a person changed meanwhile, and never takes what it landed itself for that."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.bench import Bench, InPhases
from tests.conftest import Cli
from tests.trees import snapshot
from workbench.errors import ConflictError

FILES = (
    "rename-before",
    "rename-after",
    "in-place-before",
    "in-place-after",
    "same-size-and-time",
    "removed",
    "moved-away",
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    path.mkdir()
    return path


@pytest.fixture(params=["mounted", "copied", "plain"], autouse=True)
def sharing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the engine gets at our files, or has copies of them, with an overlay or without."""
    monkeypatch.setenv("WORKBENCH_SHARING", request.param)
    return str(request.param)


@pytest.fixture
def bench(engine: None, state: Path, sharing: str, workspace: Path) -> Bench:
    return Bench(workspace)


def save_by_rename(path: Path, content: str) -> None:
    """As most editors do."""
    new = path.with_name(path.name + ".new")
    new.write_text(content)
    new.rename(path)


def edit_with_times_put_back(path: Path, content: str) -> None:
    before = path.stat()
    assert len(content) == before.st_size
    path.write_text(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(directory: Path) -> None:
    """Put another directory with the same names and bytes in a directory's place."""
    directory.rename(directory.with_name(directory.name + ".old"))
    directory.mkdir()
    for old in directory.with_name(directory.name + ".old").iterdir():
        (directory / old.name).write_bytes(old.read_bytes())


def assert_conflict(bench: Bench, workspace: Path, expected: set[bytes], *, around: set[bytes] = frozenset()) -> None:
    """A commit is refused, names these paths (and of those around them as it likes), and changes nothing.

    The status says the same beforehand.
    """
    before = snapshot(workspace)
    found = set(bench.status().conflicts)
    assert expected <= found <= expected | around
    with pytest.raises(ConflictError) as caught:
        bench.commit()
    assert set(caught.value.paths) == found
    assert snapshot(workspace) == before


def test_every_path_that_a_person_changed_meanwhile_is_named_and_nothing_lands(bench: Bench, workspace: Path) -> None:
    for name in ("swapped", "deleted-dir", "yard/renamed-dir", "became-file", "calm"):
        (workspace / name).mkdir(parents=True)
        (workspace / name / "file").write_text("old\n")
    for name in (*FILES, "mode", "deleted-here", "to-dir", "calm/modified", "calm/deleted", "calm/renamed"):
        (workspace / name).write_text(f"old {name}\n")
    (workspace / "link").symlink_to("calm")
    # In one command: between two, the sandbox would be mounted anew and so depart from what the person has saved.
    agent = InPhases(
        bench,
        "ls -R > /dev/null; cat calm/modified > /dev/null; phase looked;"
        "for f in " + " ".join(FILES) + "; do echo agent >> $f; done; echo agent > mode; rm deleted-here;"
        "echo agent > swapped/file; rm -r deleted-dir; mv yard/renamed-dir yard/renamed-to; rm -r became-file;"
        "echo agent > became-file; rm link; ln -s rename-after link; rm to-dir; mkdir to-dir; echo agent > to-dir/x;"
        "echo agent > both-new; mkdir dir-against-file; echo agent > dir-against-file/x; echo agent > new;"
        "cd calm; echo agent > modified; rm deleted; mv renamed renamed-to; echo agent > new; mkdir dir; echo agent > dir/x",
    )
    agent.at("looked")
    # Before the agent's copy-up, which therefore copies who knows what.
    save_by_rename(workspace / "rename-before", "person\n")
    with open(workspace / "in-place-before", "a") as file:
        file.write("person\n")
    agent.go_on()
    agent.end()
    save_by_rename(workspace / "rename-after", "person\n")
    with open(workspace / "in-place-after", "a") as file:
        file.write("person\n")
    edit_with_times_put_back(workspace / "same-size-and-time", "pld same-size-and-time\n")
    (workspace / "removed").unlink()
    (workspace / "moved-away").rename(workspace / "moved-to")
    (workspace / "mode").chmod(0o600)
    save_by_rename(workspace / "deleted-here", "person\n")
    swap(workspace / "swapped")
    (workspace / "deleted-dir" / "added").write_text("person\n")
    (workspace / "yard" / "renamed-dir" / "file").write_text("person\n")
    (workspace / "became-file" / "added").write_text("person\n")
    (workspace / "link").unlink()
    (workspace / "link").symlink_to("elsewhere")
    (workspace / "to-dir").write_text("person\n")
    (workspace / "both-new").write_text("person\n")
    (workspace / "dir-against-file").write_text("person\n")
    named = (*FILES, "mode", "deleted-here", "link", "to-dir", "both-new", "dir-against-file", "swapped/file")
    inner = ("deleted-dir/added", "yard/renamed-dir/file", "became-file/added")
    assert_conflict(
        bench,
        workspace,
        {os.fsencode(name) for name in (*named, *inner)},
        around={b"swapped", b"deleted-dir", b"became-file", b"dir-against-file/x"},
    )
    bench.discard()
    assert bench.inside() == snapshot(workspace, times=False)


def test_a_conflict_of_the_command_line_has_exit_code_three_and_names_the_path(cli: Cli) -> None:
    cli.sh("echo agent >> README.md; echo agent > new")
    save_by_rename(cli.workspace / "README.md", "person\n")
    before = snapshot(cli.workspace)
    refused = cli.commit(code=3)
    assert b"[conflict]" in refused.stderr
    assert b"  README.md\n" in refused.stderr
    told = json.loads(cli("commit", "--digest", cli.digest(), "--json", code=3).stdout)
    assert told["error"]["code"] == "conflict"
    assert [found["path"] for found in json.loads(cli("status", "--json").stdout)["conflicts"]] == ["README.md"]
    assert snapshot(cli.workspace) == before
    # What a person put back, byte for byte, is no conflict any more.
    save_by_rename(cli.workspace / "README.md", "# project\n")
    cli.commit()
    assert (cli.workspace / "README.md").read_text() == "# project\nagent\n"


def test_a_person_and_the_agent_who_do_the_same_do_not_conflict(bench: Bench, workspace: Path) -> None:
    for name in ("modified", "deleted", "mode"):
        (workspace / name).write_text("old\n")
    bench.sh(
        "echo same > modified; rm deleted; chmod 755 mode; echo same > new; mkdir dir; ln -s new link; echo more > other"
    )
    bench.changes()
    save_by_rename(workspace / "modified", "same\n")
    (workspace / "deleted").unlink()
    (workspace / "mode").chmod(0o755)
    (workspace / "new").write_text("same\n")
    (workspace / "dir").mkdir()
    (workspace / "link").symlink_to("new")
    assert bench.status().conflicts == ()
    landed = bench.commit()
    assert landed.committed.landed == (b"other",)
    assert (workspace / "other").read_text() == "more\n"
    assert bench.told() == {}


def test_what_was_landed_by_ourselves_is_never_a_conflict(bench: Bench, workspace: Path) -> None:
    for name in ("a", "b", "d/c", "d/e"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text("0\n")
    rounds = (
        "echo 1 > a; rm b; echo 1 > d/new; chmod 755 d/c; mkdir -p deep/er; echo 1 > deep/er/x; ln -s a link",
        "echo 2 > a; echo 2 > b; rm d/new; chmod 644 d/c; echo 2 > d/c; rm -r deep; ln -sf b link",
        "mv a d/a; rm -r d/e; mkdir d/e; echo 3 > d/e/x; echo 3 > deep; rm link; mkdir link; ln b d/hard",
        "mv d D; echo 4 > a; rm deep; mkdir deep; chmod 700 deep; rmdir link; touch b",
        "mv D d; rm -r d; mkdir d; echo 5 > d/c; echo 5 >> a; chmod 755 deep",
        "rm -r ./*",
        "echo 7 > a; mkdir d; echo 7 > d/c",
    )
    for script in rounds:
        bench.sh(script)
        view = bench.inside()
        # Looking on the way, warm and cold, doesn't make a difference.
        bench.changes()
        bench.commit()
        assert snapshot(workspace, times=False) == view == bench.inside()
        assert bench.told() == {}


def test_later_changes_of_what_just_landed_land_as_well(bench: Bench, workspace: Path) -> None:
    (workspace / "a").write_text("0\n")
    bench.sh("echo 1 > a; echo 1 > new; mkdir dir; echo 1 > dir/x; echo 1 > gone")
    digest = bench.review()
    bench.sh("echo 2 > a; echo 2 > new; echo 2 > dir/x; echo 2 > dir/y; rm gone; echo 2 > later")
    view = bench.inside()
    landed = bench.commit(digest)
    assert snapshot(workspace, times=False)[b"a"] != view[b"a"]
    assert {name: (workspace / name).read_text() for name in ("a", "new", "dir/x", "gone")} == dict.fromkeys(
        ("a", "new", "dir/x", "gone"), "1\n"
    )
    assert not (workspace / "later").exists()
    assert bench.inside() == view
    kinds = {b"a": "modified", b"new": "modified", b"dir/x": "modified", b"dir/y": "added"}
    kinds |= {b"gone": "deleted", b"later": "added"}
    assert bench.told() == {change.path: change.kind.value for change in landed.left.shown} == kinds
    bench.commit()
    assert snapshot(workspace, times=False) == view


def test_a_person_who_edits_what_just_landed_is_in_conflict_with_what_comes_later(
    bench: Bench, workspace: Path
) -> None:
    (workspace / "a").write_text("0\n")
    bench.sh("echo 1 > a; echo 1 > b")
    digest = bench.review()
    bench.sh("echo 2 > a; echo 2 > b; echo 2 > c")
    bench.commit(digest)
    save_by_rename(workspace / "a", "person\n")
    assert_conflict(bench, workspace, {b"a"})


def test_what_another_session_landed_is_a_conflict_where_both_changed_it(bench: Bench, workspace: Path) -> None:
    (workspace / "a").write_text("0\n")
    (workspace / "b").write_text("0\n")
    other = Bench(workspace, "other")
    bench.sh("echo one > a; echo one > mine")
    other.sh("echo two > a; echo two > b; echo two > yours")
    other.changes()
    bench.commit()
    assert other.status().lower_changed or other.keeper() is None
    assert_conflict(other, workspace, {b"a"})
    # It sees what the first one landed, where it hasn't changed that itself.
    assert other.sh("cat mine a b") == b"one\ntwo\ntwo\n"
    other.sh("echo one > a")
    other.commit()
    assert snapshot(workspace, times=False) == other.inside() == bench.inside()
