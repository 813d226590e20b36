"""Whose files are whose: an ordinary user who may use the engine, and root in somebody else's workspace."""

from __future__ import annotations

import grp
import json
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Prompt, leftovers
from tests.conftest import git_in
from tests.needed import need_program, unavailable
from tests.sandbox.users import OrdinaryUser, change_users, ordinary_user
from tests.trees import make_tree, snapshot
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def team() -> Iterator[str]:
    """A group of this machine."""
    if os.geteuid() != 0:
        pytest.skip("making a group takes root")
    need_program("groupadd")
    name = f"wbteam{secrets.token_hex(4)}"
    made = change_users("groupadd", name)
    if made.returncode:
        unavailable(f"groupadd fails: {made.stderr.strip()}")
    try:
        yield name
    finally:
        change_users("groupdel", name).check_returncode()


@pytest.fixture(scope="module")
def user(engine: None, team: str) -> Iterator[OrdinaryUser]:
    """A user in the engine's group and the team's, with a repository of its own called `repo`."""
    try:
        grp.getgrnam("docker")
    except KeyError:
        unavailable("the engine's socket has no group called docker")
    with ordinary_user(f"docker,{team}") as made:
        may = subprocess.run(
            ["docker", "version"],
            user=made.uid,
            group=made.gid,
            extra_groups=os.getgrouplist(made.name, made.gid),
            capture_output=True,
            check=False,
        )
        if may.returncode:
            unavailable("the docker group may not use this engine")
        repo = made.directory / "repo"
        make_tree(repo)
        git = git_in(repo)
        git("init", "-q", "-b", "main")
        git("add", "-A")
        git("commit", "-q", "-m", "first")
        _give(repo, made.uid, made.gid)
        yield made
        made.workbench("stop", "-w", str(repo))
        assert leftovers(made.directory / ".local" / "state" / "workbench") == []


@pytest.fixture
def repo(user: OrdinaryUser) -> Iterator[Path]:
    """The user's repository, with an overlay that holds nothing before and after."""
    path = user.directory / "repo"
    before = snapshot(path, times=False)
    yield path
    user.workbench("discard", "--yes", "-w", str(path))
    for extra in snapshot(path, times=False).keys() - before.keys():
        full = path / os.fsdecode(extra)
        if full.is_dir() and not full.is_symlink():
            shutil.rmtree(full, ignore_errors=True)
        else:
            full.unlink(missing_ok=True)


def _give(path: Path, uid: int, gid: int) -> None:
    for directory, _, files in os.walk(path):
        os.chown(directory, uid, gid)
        for name in files:
            os.chown(os.path.join(directory, name), uid, gid, follow_symlinks=False)


def sh(user: OrdinaryUser, repo: Path, script: str, code: int | None = 0) -> str:
    done = user.workbench("exec", "-q", "-w", str(repo), "--", "sh", "-c", script, code=code)
    return (done.stdout + done.stderr).decode()


def commit(user: OrdinaryUser, repo: Path, *arguments: str, code: int = 0) -> dict[str, object]:
    digest = user.workbench("diff", "-w", str(repo), "--digest-only").stdout.decode().strip()
    done = user.workbench("commit", "--json", "-w", str(repo), "--digest", digest, *arguments, code=code)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def diff(user: OrdinaryUser, repo: Path) -> dict[str, dict[str, object]]:
    """What `diff --json` tells: by path, the changes and what is left."""
    found = json.loads(user.workbench("diff", "-w", str(repo), "--json").stdout)
    return {
        "changes": {change["path"]: change["kind"] for change in found["changes"]},
        "left": {left["path"]: left["reason"] for left in found["left"]},
    }


def test_the_main_job_needs_no_root(user: OrdinaryUser, repo: Path) -> None:
    before = snapshot(repo)
    said = sh(
        user, repo, "id -u; id -g; rm -rf docs; mkdir docs; echo new >docs/a; chmod +x run.sh; echo more >>README.md"
    )
    assert said.split() == [str(user.uid), str(user.gid)]
    assert snapshot(repo) == before
    assert diff(user, repo)["changes"] == {
        "docs/a": "added",
        "docs/guide.md": "deleted",
        "docs/index.md": "deleted",
        "run.sh": "mode",
        "README.md": "modified",
    }
    commit(user, repo)
    assert (repo / "docs" / "a").read_text() == "new\n"
    assert os.listdir(repo / "docs") == ["a"]
    assert stat.S_IMODE((repo / "run.sh").stat().st_mode) == 0o755
    for path in ("docs", "docs/a", "run.sh", "README.md"):
        assert ((repo / path).stat().st_uid, (repo / path).stat().st_gid) == (user.uid, user.gid)
    git_in(repo)("-c", "safe.directory=*", "checkout", "-q", "-f", "HEAD")
    _give(repo, user.uid, user.gid)
    assert diff(user, repo)["changes"] == {}


def test_nothing_of_the_state_is_roots_or_open_to_others(user: OrdinaryUser, repo: Path) -> None:
    sh(user, repo, "echo new >new-file; mkdir sub; chmod 000 sub")
    user.workbench("stop", "-w", str(repo))
    state = user.directory / ".local" / "state" / "workbench"
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    for directory, directories, files in os.walk(state):
        if os.path.basename(directory) == "work":
            continue  # the kernel's own, in the overlay's work directory
        for name in directories + files:
            assert os.lstat(os.path.join(directory, name)).st_uid == user.uid, (directory, name)


_CLOSE_ALL = (
    "find . -depth -mindepth 1 -not -path './.git*' -not -name open -not -type l -exec chmod 000 {} +; chmod 000 ."
)


def test_what_was_closed_to_everybody_inside_can_be_looked_at_and_discarded(user: OrdinaryUser, repo: Path) -> None:
    before = snapshot(repo)
    sh(user, repo, f"echo new >docs/new; echo open >open; {_CLOSE_ALL}")
    assert snapshot(repo) == before
    found = diff(user, repo)
    assert found["changes"] == {"open": "added"}
    assert {"", "docs", "docs/new", "README.md", "src/deep/leaf.txt"} <= found["left"].keys()
    assert set(found["left"].values()) == {"unreadable"}
    assert user.workbench("status", "-w", str(repo)).returncode == 0
    user.workbench("discard", "--yes", "-w", str(repo))
    assert diff(user, repo) == {"changes": {}, "left": {}}
    assert sh(user, repo, "cat README.md") == "# project\n"
    assert snapshot(repo) == before


def test_what_was_closed_to_everybody_inside_never_closes_the_real_workspace(user: OrdinaryUser, repo: Path) -> None:
    before = snapshot(repo, times=False)
    sh(user, repo, f"mkdir -p new/deep; echo 1 >new/deep/file; {_CLOSE_ALL}")
    user.workbench("stop", "-w", str(repo))
    commit(user, repo)
    assert snapshot(repo, times=False) == before
    assert diff(user, repo)["changes"] == {}


def test_directories_without_write_permission_land_and_go_again(user: OrdinaryUser, repo: Path) -> None:
    sh(user, repo, "mkdir -p cache/module; echo 1 >cache/module/file; chmod -R a-w cache")
    commit(user, repo)
    assert stat.S_IMODE((repo / "cache" / "module").stat().st_mode) == 0o555
    sh(user, repo, "chmod -R u+w cache; rm -rf cache")
    commit(user, repo)
    assert not (repo / "cache").exists()


def test_a_file_closed_inside_doesnt_cost_the_warm_sandbox(user: OrdinaryUser, repo: Path) -> None:
    sh(user, repo, "echo kept >/tmp/beside; echo closed >closed; chmod 000 closed")
    assert sh(user, repo, "cat /tmp/beside") == "kept\n"


def test_groups_inside_are_the_callers_but_never_roots_or_the_engines(
    user: OrdinaryUser, repo: Path, team: str
) -> None:
    groups = {int(word) for word in sh(user, repo, "id -G").split()}
    assert groups == {user.gid, grp.getgrnam(team).gr_gid}


def test_a_teams_directory_stays_the_teams(user: OrdinaryUser, repo: Path, team: str) -> None:
    gid = grp.getgrnam(team).gr_gid
    shared = repo / "shared"
    shared.mkdir()
    (shared / "minutes").write_text("first\n")
    for path, uid, mode in ((shared, 0, 0o2775), (shared / "minutes", user.uid, 0o664)):
        os.chown(path, uid, gid)
        path.chmod(mode)
    sh(
        user,
        repo,
        "umask 002; echo second >>shared/minutes; echo new >shared/new; mkdir shared/sub; echo x >shared/sub/x",
    )
    assert sh(user, repo, "stat -c '%g %a' shared shared/sub").split("\n")[:2] == [f"{gid} 2775"] * 2
    commit(user, repo)
    assert (shared / "minutes").read_text() == "first\nsecond\n"
    found = shared.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, gid, 0o2775)
    for path in (shared / "new", shared / "sub", shared / "sub" / "x", shared / "minutes"):
        assert (path.stat().st_uid, path.stat().st_gid) == (user.uid, gid), path
    assert stat.S_IMODE((shared / "sub").stat().st_mode) == 0o2775


def test_a_colleagues_file_is_never_taken_over_without_a_word(user: OrdinaryUser, repo: Path, team: str) -> None:
    gid = grp.getgrnam(team).gr_gid
    (repo / "colleagues").write_text("first\n")
    os.chown(repo / "colleagues", 54321, gid)
    (repo / "colleagues").chmod(0o664)
    before = snapshot(repo)
    sh(user, repo, "echo second >>colleagues; echo new >new-file")
    assert diff(user, repo)["changes"] == {"colleagues": "modified", "new-file": "added"}
    refused = commit(user, repo, code=1)
    assert isinstance(refused["error"], dict)
    assert "'colleagues'" in refused["error"]["message"]
    assert refused["error"]["hint"]
    assert snapshot(repo) == before
    assert sh(user, repo, "cat colleagues new-file") == "first\nsecond\nnew\n"


def test_files_of_others_can_go_where_the_user_could_remove_them(user: OrdinaryUser, repo: Path) -> None:
    (repo / "roots").write_text("root's\n")
    (repo / "roots").chmod(0o644)
    assert "Permission denied" in sh(user, repo, "cat roots; echo x >>roots", code=None)
    sh(user, repo, "rm -f roots")
    assert diff(user, repo)["changes"] == {"roots": "deleted"}
    commit(user, repo)
    assert not (repo / "roots").exists()


def test_what_the_user_cant_read_is_left_alone_and_never_fatal(user: OrdinaryUser, repo: Path) -> None:
    (repo / "secret").write_text("secret\n")
    (repo / "secret").chmod(0o600)
    (repo / "secrets").mkdir(0o700)
    (repo / "secrets" / "key").write_text("key\n")
    assert "Permission denied" in sh(user, repo, "cat secret secrets/key; echo new >new-file", code=None)
    assert "secret" in sh(user, repo, "ls")
    assert diff(user, repo)["changes"] == {"new-file": "added"}
    assert user.workbench("status", "-w", str(repo)).returncode == 0
    commit(user, repo)
    assert (repo / "new-file").read_text() == "new\n"
    assert (repo / "secret").read_text() == "secret\n"
    assert (repo / "secrets" / "key").read_text() == "key\n"


def test_what_the_user_cant_read_and_moved_stays_where_it_is(user: OrdinaryUser, repo: Path) -> None:
    (repo / "secret").write_text("secret\n")
    (repo / "secret").chmod(0o600)
    sh(user, repo, "mv secret elsewhere; echo new >new-file", code=None)
    assert diff(user, repo) == {
        "changes": {"new-file": "added"},
        "left": {"secret": "unreadable", "elsewhere": "omitted"},
    }
    assert user.workbench("status", "-w", str(repo)).returncode == 0
    assert b"new-file" in user.workbench("diff", "-w", str(repo)).stdout
    commit(user, repo)
    assert (repo / "secret").read_text() == "secret\n"
    assert not (repo / "elsewhere").exists()
    user.workbench("discard", "--yes", "-w", str(repo))
    assert diff(user, repo)["changes"] == {}
    assert "secret" in sh(user, repo, "ls")


def test_a_sandbox_is_another_users_neither_to_use_nor_to_see(user: OrdinaryUser, repo: Path, tmp_path: Path) -> None:
    sh(user, repo, "true")
    sockets = list(Path(f"/tmp/workbench-{user.uid}").rglob("socket"))
    assert sockets
    refused = subprocess.run(
        ["python3", "-c", "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])", str(sockets[0])],
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PermissionError" in refused.stderr


def test_a_killed_keeper_of_an_ordinary_user_leaves_nothing(user: OrdinaryUser, repo: Path) -> None:
    sh(user, repo, "echo kept >new-file")
    keepers = subprocess.run(
        ["pgrep", "-u", str(user.uid), "-f", "workbench.sandbox.keeper_process"],
        capture_output=True,
        text=True,
        check=True,
    )
    (pid,) = map(int, keepers.stdout.split())
    os.kill(pid, 9)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the keeper has ended")
    assert sh(user, repo, "cat new-file") == "kept\n"


# Root, in a workspace that is somebody else's


@pytest.mark.parametrize(("uid", "gid"), [(12345, 23456), (65534, 65534)])
def test_root_works_as_the_workspaces_owner(fresh_prompt: Prompt, uid: int, gid: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("this is about root")
    workspace = fresh_prompt.workspace
    _give(workspace, uid, gid)
    before = snapshot(workspace)
    shown = fresh_prompt.sh("id -u; id -g; id -G; echo new >new-file; mkdir dir; echo more >>README.md; rm run.sh")
    assert shown.stdout.decode().split() == [str(uid), str(gid), str(gid)]
    assert snapshot(workspace) == before
    fresh_prompt.commit()
    for name in ("new-file", "dir", "README.md"):
        found = (workspace / name).stat()
        assert (found.st_uid, found.st_gid) == (uid, gid), name
    assert not (workspace / "run.sh").exists()
    assert (workspace / "README.md").read_text() == "# project\nmore\n"


def test_root_never_runs_commands_as_root_in_somebody_elses_workspace(fresh_prompt: Prompt) -> None:
    if os.geteuid() != 0:
        pytest.skip("this is about root")
    _give(fresh_prompt.workspace, 12345, 23456)
    (fresh_prompt.workspace / "roots").write_text("root's\n")
    (fresh_prompt.workspace / "roots").chmod(0o600)
    said = fresh_prompt.run("cat", "roots", code=1)
    assert b"Permission denied" in said.stderr
    fresh_prompt("status")
    assert json.loads(fresh_prompt("diff", "--json").stdout)["changes"] == []


# Absolute paths inside


def test_a_virtual_environments_scripts_run_inside_as_outside(fresh_prompt: Prompt) -> None:
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("there is no /usr/bin/python3")
    environment = fresh_prompt.workspace / ".venv"
    made = subprocess.run([python, "-m", "venv", environment], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip("python3-venv isn't installed")
    script = environment / "bin" / "tool"
    script.write_text(f"#!{environment}/bin/python\nimport sys\nprint(sys.prefix, *sys.argv[1:])\n")
    script.chmod(0o755)
    expected = f"{environment} one two\n".encode()
    assert subprocess.run([script, "one", "two"], capture_output=True, check=True).stdout == expected
    assert fresh_prompt.run(".venv/bin/tool", "one", "two").stdout == expected
    assert fresh_prompt.sh(". .venv/bin/activate && tool one two").stdout == expected
