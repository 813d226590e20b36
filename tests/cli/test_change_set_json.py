"""The change set as JSON: its schema is published, and the same changes are the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jsonschema import Draft202012Validator

from tests.bench import Bench
from tests.conftest import ROOT
from workbench.cli.report import diff_report
from workbench.workspace import Workspace


def report_of(directory: Path, paths: Sequence[bytes]) -> str:
    """What `diff --json` prints of a workspace in which the same was done, path by path in this order."""
    (directory / "d").mkdir(parents=True)
    (directory / "f").write_text("one\ntwo\n")
    (directory / "link").symlink_to("f")
    (directory / "gone").write_bytes(b"\0")

    async def work(workspace: Workspace) -> str:
        for path in paths:
            if path == b"_notes/x":
                await workspace.files.mkdir(b"_notes")
            if path == b"gone":
                await workspace.files.unlink(path)
            elif path == b"link":
                await workspace.files.unlink(path)
                await workspace.files.symlink(b"d", path)
            elif path == b".envrc":
                await workspace.files.create(path, mode=0o755)
            else:
                await workspace.files.write(path, b"one\nthree\xff\n")
        changes = await workspace.changes()
        return diff_report(workspace, changes, changes.shown).model_dump_json()

    return Bench(directory).do(work)


PATHS = [b"f", b"d/\xff", b"gone", b"link", b".envrc", b"_notes/x"]


def test_equal_changes_are_equal_bytes_whenever_and_in_whatever_order_they_were_made(
    state: Path, tmp_path: Path
) -> None:
    first = report_of(tmp_path / "first", PATHS)
    assert report_of(tmp_path / "second", PATHS[::-1]) == first
    assert report_of(tmp_path / "third", PATHS[:-2]) != first


def test_what_is_printed_fits_the_schema_that_is_printed(state: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "workbench", "diff", "--schema"]
    schema = json.loads(subprocess.run(argv, cwd=ROOT, capture_output=True, check=True).stdout)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    report = json.loads(report_of(tmp_path / "project", PATHS))
    validator.validate(report)
    kinds = {change["path"]: change["kind"] for change in report["changes"]}
    assert kinds == {".envrc": "added", "d/�": "added", "f": "modified", "gone": "deleted", "link": "modified"}
    del report["digest"]
    assert not validator.is_valid(report)


def test_no_field_of_the_schema_goes() -> None:
    """What programs may count on; fields are only ever added to it."""
    argv = [sys.executable, "-m", "workbench", "diff", "--schema"]
    schema = json.loads(subprocess.run(argv, cwd=ROOT, capture_output=True, check=True).stdout)
    assert set(schema["required"]) >= {"digest", "changes"}
    assert set(schema["properties"]) >= {"version", "digest", "changes", "left"}
    change, hunk = schema["$defs"]["ChangeReport"], schema["$defs"]["HunkReport"]
    assert set(change["properties"]) >= {
        *("path", "path_bytes", "kind", "old_mode", "new_mode", "binary", "risk", "renamed_from", "hunks"),
    }
    assert set(hunk["required"]) >= {"id", "old_start", "old_lines", "new_start", "new_lines", "lines"}
