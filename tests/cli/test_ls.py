"""`ls`, and the paths that `ls` and `diff` are given: the merged view, as git names what is in it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Prompt
from tests.cli.test_sessions import use, workbench
from tests.conftest import Cli
from tests.trees import snapshot
from tests.waiting import wait_until
from workbench.cli.places import inside
from workbench.errors import OptionsError
from workbench.protocol.reports import ListReport
from workbench.vfs.changed_mark import is_marked_changed


@pytest.fixture
def root(repo: Path) -> Path:
    return repo


def names(*arguments: str, cwd: Path) -> list[str]:
    return workbench("ls", *arguments, cwd=cwd).stdout.decode().splitlines()


def entries(*arguments: str, cwd: Path) -> dict[str, dict[str, Any]]:
    found = json.loads(workbench("ls", "--json", *arguments, cwd=cwd).stdout)
    assert ListReport.model_validate(found).model_dump(mode="json") == found
    return {entry["path"]: entry for entry in found["entries"]}


def overlaid(root: Path) -> Path:
    """Have an overlay with something new, something changed, and notes; its upper."""
    upper = use(root, files=("new.txt", "src/main.py", "src/added.py", "_notes/plan")) / "upper"
    (upper / "src" / "link").symlink_to("../elsewhere\n")
    return upper


def test_without_an_engine_the_merged_view_is_listed(state: Path, root: Path) -> None:
    overlaid(root)
    expected = sorted({*(name for name in os.listdir(root)), "new.txt"})
    assert names(cwd=root) == expected
    assert names("src", cwd=root) == names(cwd=root / "src") == ["added.py", "deep", "link", "main.py"]
    assert names("src/main.py", cwd=root) == ["main.py"]


def test_what_the_overlay_hides_is_listed_only_where_it_is_asked_for(state: Path, root: Path) -> None:
    overlaid(root)
    (root / "_posts").mkdir()
    assert "_notes" not in names(cwd=root)
    assert "_posts" in names(cwd=root)
    assert "_notes" in names("-a", cwd=root)
    assert names("_notes", cwd=root) == names("-a", "_notes", cwd=root) == ["plan"]
    assert names("_notes/plan", cwd=root) == ["plan"]


def test_marks_tell_what_is_the_overlays(state: Path, root: Path) -> None:
    overlaid(root)
    found = entries(cwd=root)
    assert {path: entry["mark"] for path, entry in found.items() if entry["mark"]} == {"new.txt": "A", "src": "M"}
    found = entries("src", cwd=root)
    marks = {path: entry["mark"] for path, entry in found.items()}
    assert marks == {"src/added.py": "A", "src/deep": None, "src/link": "A", "src/main.py": "M"}
    assert found["src/link"]["target"]["path"] == "../elsewhere\n"
    main = os.stat(root / "src" / "deep")
    assert (found["src/deep"]["mode"], found["src/deep"]["mtime_ns"]) == (f"{main.st_mode:06o}", main.st_mtime_ns)
    lines = workbench("ls", "-l", "src", cwd=root).stdout.decode().splitlines()
    assert [line[0] for line in lines] == ["A", " ", "A", "M"]
    assert lines[1][2] == "d"
    assert lines[2].endswith("link -> ../elsewhere\\n")


def test_a_name_of_any_bytes_is_one_line_and_comes_whole_to_programs(state: Path, root: Path) -> None:
    odd = b"bad\xff\n\x1b[31m"
    upper = overlaid(root)
    (upper / os.fsdecode(odd)).touch()
    assert "bad\\xff\\n\\u001b[31m" in names(cwd=root)
    (found,) = (entry for entry in entries(cwd=root).values() if entry["path_bytes"])
    assert base64.b64decode(found["path_bytes"]) == odd
    assert names(os.fsdecode(odd), cwd=root) == ["bad\\xff\\n\\u001b[31m"]


def test_what_isnt_there_is_an_error(state: Path, root: Path) -> None:
    workbench("ls", "nothing", cwd=root, code=1)
    workbench("ls", "README.md/below", cwd=root, code=1)
    workbench("ls", "..", cwd=root, code=2)


def test_listing_changes_nothing_of_the_workspace(state: Path, root: Path) -> None:
    overlaid(root)
    before = snapshot(root)
    workbench("ls", "-la", cwd=root)
    assert snapshot(root) == before


def test_a_running_sandbox_shows_the_same(cli: Cli, repo: Path) -> None:
    cli.sh("rm -r src; mkdir src; echo 1 >src/only; mv docs moved; mkfifo pipe; echo note >_notes")
    lines = cli.sh("stat -c '%n %f %s' .[!.]* *").stdout.decode().splitlines()
    told = {name: (int(mode, 16), int(size)) for name, mode, size in (line.split() for line in lines)}
    del told["_notes"]
    found = json.loads(cli("ls", "--json").stdout)["entries"]
    directories = {entry["path"] for entry in found if entry["kind"] == "dir"}
    assert {entry["path"]: int(entry["mode"], 8) for entry in found} == {name: mode for name, (mode, _) in told.items()}
    assert {entry["path"]: entry["size"] for entry in found if entry["path"] not in directories} == {
        name: size for name, (_, size) in told.items() if name not in directories
    }
    assert cli("ls", "src").stdout == b"only\n"
    cli("ls", "docs", code=1)


def test_what_changed_under_a_sandbox_is_listed_and_said(fresh_prompt: Prompt) -> None:
    fresh_prompt.run("true")
    assert fresh_prompt("ls").stderr == b""
    (fresh_prompt.workspace / "by a person").touch()
    wait_until(lambda: is_marked_changed(str(fresh_prompt.overlay())), "the change is noticed")
    done = fresh_prompt("ls")
    assert b"by a person\n" in done.stdout
    assert b"workbench refresh" in done.stderr


# Which path is meant


def test_paths_are_named_from_the_current_directory_as_git_does(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsencode(os.path.realpath(root))
    (tmp_path / "way").symlink_to(root)
    (root / "out").symlink_to("/etc")

    def meant(named: str) -> bytes:
        return inside(real, named)

    monkeypatch.chdir(tmp_path)
    assert (meant("src/main.py"), meant("."), meant("./src//deep/")) == (b"src/main.py", b"", b"src/deep")
    assert meant(str(root / "src")) == meant(str(tmp_path / "way" / "src")) == b"src"
    assert meant(str(root)) == b""
    assert meant(f"{root}/out/passwd") == b"out/passwd"
    monkeypatch.chdir(root / "src")
    assert (meant("main.py"), meant("."), meant(".."), meant("../docs")) == (b"src/main.py", b"src", b"", b"docs")
    assert meant("deep/../gone/file") == b"src/gone/file"
    monkeypatch.chdir(tmp_path / "way" / "src")
    assert meant("main.py") == b"src/main.py"


@pytest.mark.parametrize("named", ["..", "../repo-evil", "/etc/passwd", "src/../../x", ""])
def test_a_path_that_leads_out_is_refused(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    (tmp_path / "repo-evil").mkdir()
    monkeypatch.chdir(root)
    with pytest.raises(OptionsError):
        inside(os.fsencode(os.path.realpath(root)), named)
    with pytest.raises(OptionsError):
        inside(os.fsencode(os.path.realpath(root)), str(tmp_path / "repo-evil" / "x"))


def test_diff_takes_paths_from_the_current_directory_too(state: Path, root: Path) -> None:
    overlaid(root)

    def shown(*named: str, cwd: Path) -> set[str]:
        lines = workbench("diff", "-w", str(root), "--name-status", *named, cwd=cwd).stdout.decode().splitlines()
        return {line.split("\t")[1] for line in lines}

    assert shown("main.py", cwd=root / "src") == {"src/main.py"}
    assert shown(".", cwd=root / "src") == {"src/added.py", "src/link", "src/main.py"}
    assert shown("..", cwd=root / "src") == shown(cwd=root) == shown(str(root), cwd=root.parent)
    assert shown(str(root / "src" / "main.py"), cwd=root.parent) == {"src/main.py"}
    assert shown("src/main.py", cwd=root.parent) == {"src/main.py"}
    assert shown("main.py", cwd=root) == set()
    workbench("diff", "../elsewhere", cwd=root, code=2)
