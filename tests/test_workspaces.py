"""Which directories can be workspaces, under whatever name, and what becomes of one that is moved, replaced or edited."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench import Bench, InPhases
from tests.conftest import ROOT, git_in
from tests.sandbox.users import ordinary_user
from tests.trees import Node, make_tree, snapshot
from tests.waiting import unmount, wait_until
from workbench.errors import CommitError, ConflictError, WorkbenchError
from workbench.vfs.changed_mark import is_marked_changed
from workbench.workspace import Workspace


def command(*arguments: str | bytes, cwd: Path = ROOT) -> subprocess.CompletedProcess[bytes]:
    """The command line, without the option that names the workspace."""
    argv = [sys.executable, "-m", "workbench", *arguments]
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, capture_output=True, cwd=cwd, env=given, stdin=subprocess.DEVNULL, check=False)


def code_of(workspace: str | Path) -> str:
    """The code of the error that the command line ends with."""
    done = command("exec", "--json", "-w", os.fsencode(workspace), "--", "true")
    assert done.returncode == 125, done
    error = json.loads(done.stdout)["error"]
    assert error["message"].endswith(".")
    return str(error["code"])


# Names


NAMES = {
    "what would end a mount option": b"lowerdir=a:b,upperdir=c\\,nocopy  ",
    "other scripts": "ünï 日本\u3000語, \U0001f980".encode(),
    "bytes that aren't UTF-8": b"\xff\xfe:,\\ bytes",
    "control characters": b"new\nline\ttab\x01",
    "what a shell would take for its own": b"-quo'te\"$HOME`x`;*?[a]#&|<>(){}~!%s",
    "255 bytes": b"n" * 255,
}


def without_git(tree: dict[bytes, Node]) -> dict[bytes, Node]:
    return {path: node for path, node in tree.items() if path.split(b"/")[0] != b".git"}


@pytest.mark.parametrize("what", NAMES)
def test_a_workspace_can_be_called_by_a_name_with(engine: None, state: Path, tmp_path: Path, what: str) -> None:
    name = NAMES[what]
    workspace = os.path.join(os.fsencode(tmp_path), name)
    make_tree(Path(os.fsdecode(workspace)))
    git_in(Path(os.fsdecode(workspace)))("init", "-q")
    bench = Bench(workspace)
    before = snapshot(workspace)
    bench.sh("echo new > new; rm -r docs; mv src/deep moved; git add -A; git status --short > /dev/null")
    assert snapshot(workspace) == before
    # The command line, at home in a directory of it.
    here = Path(os.fsdecode(os.path.join(workspace, b"src")))
    done = command("exec", "--", "sh", "-c", "cat ../new; cd ..; pwd; echo more >> new", cwd=here)
    assert done.returncode == 0, done
    assert done.stdout == b"new\n" + (b"/workspace" if b":" in name else workspace) + b"\n"
    view = bench.inside()
    bench.commit()
    after = snapshot(workspace, times=False)
    assert without_git(after) == without_git(view)
    assert json.loads(command("status", "--json", "-w", workspace).stdout)["changes"] == 0


# What can't be one


def refused(workspace: str | Path) -> str:
    """The code of the error that a look at a workspace ends with."""
    with pytest.raises(WorkbenchError) as caught:
        Bench(workspace).sh("true")
    assert caught.value.message.endswith(".")
    return caught.value.code


def test_what_cannot_be_a_workspace_is_refused_with_a_code(
    engine: None, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link-home").symlink_to("home")
    (tmp_path / "dangling").symlink_to("nowhere")
    (state / "workspaces").mkdir()
    monkeypatch.setenv("HOME", str(home))
    expected = {
        "/": "workspace_forbidden",
        str(home): "workspace_forbidden",
        str(tmp_path / "link-home"): "workspace_forbidden",
        str(home / "project" / ".."): "workspace_forbidden",
        str(state): "workspace_forbidden",
        str(state / "workspaces"): "workspace_forbidden",
        str(state.parent): "workspace_forbidden",
        str(tmp_path / "nowhere"): "workspace_missing",
        str(tmp_path / "file"): "workspace_missing",
        str(tmp_path / "file" / "below"): "workspace_missing",
        str(tmp_path / "dangling"): "workspace_missing",
        "/proc/self": "workspace_unsupported",
        "/sys/kernel": "workspace_unsupported",
    }
    assert {path: refused(path) for path in expected} == expected
    for path in ("/", str(home), str(tmp_path / "nowhere"), "/proc/self"):
        assert code_of(path) == expected[path]


def test_a_state_directory_in_the_workspace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = tmp_path / "w"
    (workspace / "inner").mkdir(parents=True)
    (workspace / "inner").chmod(0o700)
    (tmp_path / "link").symlink_to("w/inner")
    for place in (workspace / "state", workspace / "inner", tmp_path / "link"):
        monkeypatch.setenv("WORKBENCH_STATE", str(place))
        assert refused(workspace) == "workspace_forbidden"


def test_a_state_directory_that_others_may_enter_or_that_has_an_odd_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").touch()
    for name in ("open", "co:lon", "com,ma", "sp ace", "ünï", "file", "file/below"):
        monkeypatch.setenv("WORKBENCH_STATE", str(tmp_path / name))
        assert refused(tmp_path / "w") == "state_forbidden"


def test_a_directory_that_the_user_cannot_read_is_refused(tmp_path: Path) -> None:
    with ordinary_user() as user:
        for name, mode in (("closed", 0o000), ("not-listed", 0o311), ("not-entered", 0o644)):
            path = user.directory / name
            path.mkdir()
            os.chown(path, user.uid, user.gid)
            path.chmod(mode)
            done = user.run(
                "from workbench.workspace import Workspace\nimport sys\n"
                "try: Workspace.open(sys.argv[1])\nexcept Exception as error: print(error.code)",
                name,
            )
            assert done.stdout == "workspace_unreadable\n"


# Where one is, and which


@pytest.fixture
def make(engine: None, state: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A function that makes a directory with a file in it that says its name."""

    def made(name: str) -> Path:
        path = tmp_path / name
        path.mkdir(parents=True)
        (path / "file").write_text(f"{name}\n")
        return path

    return made


def test_a_moved_workspace_keeps_its_overlay_and_its_sandbox_is_at_the_new_place(make: Callable[[str], Path]) -> None:
    one = make("one")
    Bench(one).sh("echo new > new; pwd")
    two = one.rename(one.with_name("two"))
    moved = Bench(two)
    assert moved.told() == {b"new": "added"}
    assert moved.sh("pwd; cat file new") == f"{two}\none\nnew\n".encode()
    # Another directory at the old place is another workspace, whatever the first one holds.
    again = Bench(make("one"))
    assert again.sh("cat file; ls") == b"one\nfile\n"
    assert again.told() == {}
    moved.commit()
    assert (two / "new").read_text() == "new\n"
    assert sorted(os.listdir(one)) == ["file"]


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("was_moved_before", [True, False])
def test_another_directory_in_its_place_is_refused_while_the_overlay_holds_changes(
    make: Callable[[str], Path], warm: bool, was_moved_before: bool
) -> None:
    place = make("place")
    if was_moved_before:
        Bench(place).sh("true")
        place = place.rename(place.with_name("elsewhere"))
    bench = Bench(place)
    bench.sh("echo new > new")
    if not warm:
        bench.stop()
    old = place.rename(place.with_name("old"))
    place.mkdir()
    (place / "file").write_text("another\n")
    if not warm:
        # Also one that has the same inode again.
        shutil.rmtree(old)
    assert code_of(place) == "workspace_replaced"
    for act in (Bench.told, Bench.status, Bench.commit, Bench.discard):
        with pytest.raises(WorkbenchError) as caught:
            act(Bench(place))
        assert caught.value.code == "workspace_replaced"
    assert sorted(os.listdir(place)) == ["file"]
    if old.exists():
        # Where the old one still is, its overlay goes on.
        assert Bench(old).told() == {b"new": "added"}
        assert Bench(place).sh("cat file; ls") == b"another\nfile\n"
        return
    assert command("discard", "--replaced", "-w", str(place)).returncode == 0
    assert Bench(place).sh("cat file; ls") == b"another\nfile\n"


def test_another_directory_in_its_place_is_a_fresh_workspace_where_the_overlay_holds_nothing(
    make: Callable[[str], Path],
) -> None:
    place = make("place")
    Bench(place).sh("cat file")
    shutil.rmtree(place)
    place.mkdir()
    (place / "file").write_text("another\n")
    assert Bench(place).sh("cat file") == b"another\n"


def test_two_paths_to_one_directory_are_one_workspace(make: Callable[[str], Path], tmp_path: Path) -> None:
    real = make("deep/real")
    (tmp_path / "link").symlink_to("deep/real")
    (tmp_path / "linked").symlink_to("deep")
    Bench(real).sh("echo new > new")
    keepers = set()
    for path in (tmp_path / "link", tmp_path / "linked" / "real", real / ".." / "real", Path(f"{real}/")):
        bench = Bench(path)
        assert bench.told() == {b"new": "added"}
        keeper = bench.keeper()
        assert keeper is not None
        keepers.add(keeper.pid)
    assert len(keepers) == 1
    Bench(tmp_path / "link").commit()
    assert (real / "new").exists()


def test_a_workspace_in_a_workspace_is_one_of_its_own(make: Callable[[str], Path]) -> None:
    outer, inner = make("outer"), make("outer/inner")
    outer_bench, inner_bench = Bench(outer), Bench(inner)
    outer_bench.sh("echo outer > new; echo outer > inner/from-outer")
    inner_bench.sh("echo inner > new; echo inner >> file")
    assert outer_bench.told() == {b"inner/from-outer": "added", b"new": "added"}
    assert inner_bench.told() == {b"file": "modified", b"new": "added"}
    inner_bench.commit()
    assert (inner / "new").read_text() == "inner\n"
    # What one of them landed the other sees, and where both changed a file they conflict.
    assert outer_bench.sh("cat inner/new new") == b"inner\nouter\n"
    outer_bench.sh("echo outer > inner/file")
    outer_bench.changes()
    inner_bench.sh("echo again > file")
    inner_bench.commit()
    with pytest.raises(ConflictError) as caught:
        outer_bench.commit()
    assert caught.value.paths == (b"inner/file",)


def test_a_workspace_that_is_a_mount_point_or_holds_one_works(make: Callable[[str], Path]) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    outer = make("outer")
    mounted = outer / "mounted"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mounted)], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    inner_bench, outer_bench = Bench(mounted), Bench(outer)
    try:
        (mounted / "file").write_text("on a filesystem of its own\n")
        inner_bench.sh("echo new > new; echo more >> file")
        # A mount point is an empty directory for the overlay: what is below it is none of its business.
        assert outer_bench.sh("ls mounted; echo x > mounted/x; echo x > x") == b""
        assert outer_bench.status().mount_points == (b"mounted",)
        outer_bench.commit()
        assert sorted(os.listdir(outer)) == ["file", "mounted", "x"]
        assert sorted(os.listdir(mounted)) == ["file"]
        inner_bench.commit()
        assert (mounted / "file").read_text() == "on a filesystem of its own\nmore\n"
    finally:
        for bench in (inner_bench, outer_bench):
            bench.stop()
        unmount(mounted)


# A person edits while a sandbox is warm


def _save_by_rename(path: Path, content: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(content)
    new.rename(path)


def test_the_next_command_sees_what_a_person_changed_since_the_last_one(engine: None, state: Path, repo: Path) -> None:
    bench = Bench(repo)
    bench.sh(
        "cat README.md run.sh docs/* link > /dev/null; ls -R > /dev/null; echo agent > agent; echo agent >> tool.sh"
    )
    # At once, before anybody can have set up to be told of changes.
    _save_by_rename(repo / "README.md", "person\n")
    with open(repo / "run.sh", "a") as file:
        file.write("person\n")
    (repo / "docs" / "index.md").unlink()
    (repo / "new" / "deep").mkdir(parents=True)
    (repo / "new" / "deep" / "file").write_text("person\n")
    (repo / "link").unlink()
    (repo / "link").symlink_to("new/deep/file")
    wait_until(lambda: is_marked_changed(bench.overlay), "the change is noticed")
    assert bench.sh("cat README.md link agent; tail -n 1 run.sh tool.sh -q; ls docs") == (
        b"person\nperson\nagent\nperson\nagent\nguide.md\n"
    )
    assert not is_marked_changed(bench.overlay)
    # And again, now that somebody watches.
    _save_by_rename(repo / "docs" / "guide.md", "again\n")
    wait_until(lambda: is_marked_changed(bench.overlay), "the change is noticed")
    assert bench.sh("cat docs/guide.md") == b"again\n"
    assert bench.status().conflicts == ()


def test_a_running_command_goes_on_and_is_told_that_it_may_see_the_old(engine: None, state: Path, repo: Path) -> None:
    bench = Bench(repo)
    agent = InPhases(bench, "cat README.md; phase read; cat README.md; echo agent >> README.md")
    agent.at("# project")
    agent.at("read")
    _save_by_rename(repo / "README.md", "person\n")
    wait_until(lambda: is_marked_changed(bench.overlay), "the change is noticed")
    bench.said.clear()
    assert bench.sh("cat README.md") in (b"# project\n", b"person\n")
    assert any("`workbench refresh`" in said for said in bench.said)
    agent.go_on()
    assert agent.end() in (b"# project\n", b"person\n")
    assert bench.status().conflicts == (b"README.md",)
    # A remount shows no more than that: what the agent made of the old content is the agent's.
    assert bench.sh("tail -n 1 README.md") == b"agent\n"
    with pytest.raises(WorkbenchError) as caught:
        bench.commit()
    assert caught.value.code == "conflict"
    assert (repo / "README.md").read_text() == "person\n"


def test_a_person_who_only_looks_does_not_cost_the_warm_sandbox(engine: None, state: Path, repo: Path) -> None:
    bench = Bench(repo)
    bench.sh("echo agent > agent")
    before = bench.keeper()
    assert before is not None
    git = git_in(repo)
    git("status")
    git("log")
    (repo / "README.md").read_text()
    bench.sh("true")
    after = bench.keeper()
    assert after is not None
    assert after.pid == before.pid


def test_a_commit_that_was_taken_back_is_not_taken_back_again(state: Path, tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "a").write_text("old\n")
    bench = Bench(root)
    bench.do(lambda workspace: workspace.files.write(b"a", b"new\n"))
    commit_id = bench.commit().committed.commit_id

    async def twice(workspace: Workspace) -> None:
        _, reverted = await workspace.revert(commit_id)
        assert reverted is not None
        audited = list(workspace.audit.records())
        for dry_run in (True, False):
            with pytest.raises(CommitError) as caught:
                await workspace.revert(commit_id, dry_run=dry_run)
            assert caught.value.code == "nothing_to_commit"
        assert list(workspace.audit.records()) == audited
        # What was taken back can be had again.
        await workspace.revert(reverted.commit_id)

    bench.do(twice)
    assert (root / "a").read_text() == "new\n"
