"""Deciding by flags: what was accepted lands by itself, the rest stays, and nobody is asked anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.conftest import ROOT, Cli, git_in
from tests.sandbox.users import ordinary_user
from tests.trees import snapshot
from workbench.review.audit import AuditLog

LINES = [f"line {number}\n" for number in range(30)]


@pytest.fixture
def changed(cli: Cli) -> Cli:
    """A workspace with a dozen lines of change: a file with two hunks, a new one, a deleted one, a risky one."""
    (cli.workspace / "long.txt").write_text("".join(LINES))
    (cli.workspace / "doomed").write_text("old\n")
    (cli.workspace / ".gitignore").write_text("out/\n")
    cli.sh(
        "sed -i -e 's/^line 1$/LINE ONE/' -e 's/^line 28$/LINE TWENTY-EIGHT/' long.txt; rm doomed;"
        "mkdir -p new out; echo new > new/file; echo other > new/other; echo 'x=1' > .envrc; echo built > out/x"
    )
    return cli


def review(cli: Cli, *arguments: str, **options: object) -> dict[str, object]:
    return json.loads(cli("review", "--json", *arguments, **options).stdout)  # type: ignore[arg-type]


def hunks(told: dict[str, object], path: str) -> list[str]:
    (change,) = (change for change in told["changes"] if change["path"] == path)  # type: ignore[attr-defined]
    return [hunk["id"] for hunk in change["hunks"]]


def test_what_a_program_accepted_lands_and_the_rest_stays_in_the_overlay(changed: Cli) -> None:
    bench = Bench(changed.workspace)
    view = bench.inside()
    told = review(changed)
    assert told["digest"] is None
    assert told["changes"][0]["path"] == ".envrc"  # type: ignore[index]
    changed("commit", "--accepted", code=4)
    _, second = hunks(told, "long.txt")
    told = review(
        changed, "--accept", "new/file", "--accept", "doomed", "--reject", ".envrc", "--accept-hunk", second[:8]
    )
    verdicts = {change["path"]: change["verdict"] for change in told["changes"]}  # type: ignore[attr-defined]
    assert verdicts == {
        ".envrc": "rejected",
        "doomed": "accepted",
        "long.txt": "part",
        "new/file": "accepted",
        "new/other": "undecided",
    }
    patch = changed("diff", "--accepted").stdout
    assert b"+LINE TWENTY-EIGHT" in patch
    assert b"LINE ONE" not in patch
    landed = json.loads(changed("commit", "--accepted", "--json").stdout)
    assert landed["digest"] == told["digest"]
    assert {path["path"] for path in landed["landed"]} == {"doomed", "long.txt", "new", "new/file"}
    long = list(LINES)
    long[28] = "LINE TWENTY-EIGHT\n"
    assert (changed.workspace / "long.txt").read_text() == "".join(long)
    assert not (changed.workspace / "doomed").exists()
    assert not (changed.workspace / ".envrc").exists()
    assert not (changed.workspace / "new/other").exists()
    assert bench.inside() == view
    # What was rejected is still so; what landed is gone from the review.
    told = review(changed)
    verdicts = {change["path"]: change["verdict"] for change in told["changes"]}  # type: ignore[attr-defined]
    assert verdicts == {".envrc": "rejected", "long.txt": "undecided", "new/other": "undecided"}
    assert changed("commit", "--accepted", code=4).stderr.startswith(b"workbench: Nothing is accepted.")


def test_a_file_of_decisions_says_the_same_as_flags(changed: Cli, tmp_path: Path) -> None:
    told = review(changed, "--accept", "new", "--reject", "doomed")
    file = tmp_path / "decisions.json"
    file.write_text(json.dumps({"accept": ["new"], "reject": ["doomed"]}))
    assert review(changed, "--decisions", str(file)) == told
    assert review(changed, "--decisions", "-", stdin=None, input=file.read_bytes()) == told
    for wrong in ('{"acept": []}', "nothing"):
        file.write_text(wrong)
        assert changed("review", "--decisions", str(file), code=2).stderr.startswith(b"workbench: The decisions in ")
    changed("review", "--accept", "nowhere", code=2)
    changed("review", "--accept-hunk", "0" * 16, code=2)


def test_a_risky_path_that_was_accepted_still_takes_an_explicit_yes(changed: Cli) -> None:
    review(changed, "--accept", ".envrc")
    assert b"[risky_paths]" in changed("commit", "--accepted", code=4).stderr
    changed("commit", "--accepted", "--allow-risky")
    assert (changed.workspace / ".envrc").read_text() == "x=1\n"
    assert not (changed.workspace / "new").exists()


def test_an_edit_of_a_file_of_which_a_hunk_was_accepted_is_a_conflict(changed: Cli) -> None:
    first, _ = hunks(review(changed), "long.txt")
    review(changed, "--accept-hunk", first)
    (changed.workspace / "long.txt").write_text("a person's\n")
    before = snapshot(changed.workspace)
    done = json.loads(changed("commit", "--accepted", "--json", code=3).stdout)
    assert (done["error"]["code"], done["paths"][0]["path"]) == ("conflict", "long.txt")
    assert snapshot(changed.workspace) == before


def test_what_stays_by_itself_lands_where_its_asked_for(changed: Cli) -> None:
    digest = changed("diff", "--include", "ignored", "--digest-only").stdout.decode().strip()
    assert digest != changed.digest()
    review(changed, "--include", "out", "--accept", "out/x")
    changed("commit", "--accepted")
    assert snapshot(changed.workspace)[b"out/x"]
    assert not (changed.workspace / "new").exists()


def test_the_table_names_what_is_risky_first_and_what_to_do_next(changed: Cli) -> None:
    done = changed("review", "--accept", "new")
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("Risky")
    assert lines[1].startswith("[ ] .envrc")
    assert [line.split()[1] for line in lines if line.startswith("[x]")] == ["new/file", "new/other"]
    assert b"workbench commit --accepted" in done.stderr
    assert b"RISKY .envrc" in done.stderr


def test_a_check_of_part_of_the_changes_sees_exactly_what_would_land(changed: Cli) -> None:
    bench = Bench(changed.workspace)
    review(changed, "--accept", "new/file", "--accept", "doomed")
    view, before = bench.inside(), snapshot(changed.workspace)
    seen = (
        "test -f new/file && ! test -e new/other && ! test -e doomed && ! test -e .envrc && grep -q '^line 1$' long.txt"
        " && ! test -e out && touch of-the-check"
    )
    refused = changed("commit", "--accepted", "--check", f"{seen}; echo told; exit 3", code=6)
    assert b"told" in refused.stderr
    assert b"[check_failed]" in refused.stderr
    assert snapshot(changed.workspace) == before
    assert bench.inside() == view
    assert b"refusal  check_failed" in changed("log", "--audit").stdout
    changed("commit", "--accepted", "--check", seen)
    assert (changed.workspace / "new/file").exists()
    assert not (changed.workspace / "of-the-check").exists()
    assert bench.inside() == view
    assert not (Path(bench.overlay) / "check").exists()


def test_a_check_of_all_changes_runs_on_the_merged_view(changed: Cli) -> None:
    digest = changed.digest()
    check = "test -f out/x && test -f new/other && ! test -e doomed"
    changed("commit", "--digest", digest, "--allow-risky", "--check", f"{check} && false", code=6)
    changed("commit", "--digest", digest, "--allow-risky", "--check", check)
    assert (changed.workspace / "new/other").exists()


def test_a_check_never_sees_what_came_after_the_review(changed: Cli) -> None:
    digest = changed.digest()
    changed.sh("echo later > later; echo broken > new/file")
    changed("commit", "--digest", digest, "--allow-risky", "--check", "! test -e later && grep -q new new/file")
    assert (changed.workspace / "new/file").read_text() == "new\n"
    assert not (changed.workspace / "later").exists()


def test_a_dry_run_says_what_would_land_or_why_it_cant_and_does_nothing(changed: Cli) -> None:
    before = snapshot(changed.workspace, times=False)
    review(changed, "--accept", "new")
    told = json.loads(changed("commit", "--accepted", "--dry-run", "--json").stdout)
    assert [change["path"] for change in told["changes"]] == ["new/file", "new/other"]
    changed("commit", "--digest", changed.digest(), "--dry-run", code=4)
    (changed.workspace / "new").write_text("a person's\n")
    changed("commit", "--accepted", "--dry-run", code=3)
    (changed.workspace / "new").unlink()
    assert snapshot(changed.workspace, times=False) == before


# A person who edits, removes and closes what has landed before it's read back.
EDITING = """
import os
from workbench.landing import Landing

def commit(self, *arguments, land=Landing.commit):
    landed = land(self, *arguments)
    root = self._directory.root
    with open(os.path.join(root, b"long.txt"), "a") as file:
        file.write("more")
    os.unlink(os.path.join(root, b"new/file"))
    os.chmod(os.path.join(root, b"new/other"), 0o600)
    open(os.path.join(root, b"doomed"), "w").close()
    return landed

Landing.commit = commit
from workbench.cli.quick import main
main()
"""


def test_what_is_something_else_by_the_time_it_is_read_back_is_named_and_left_alone(changed: Cli) -> None:
    argv = [sys.executable, "-c", EDITING, "commit", "-w", str(changed.workspace), "--digest", changed.digest()]
    done = subprocess.run([*argv, "--allow-risky"], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 1
    for path in (b"doomed", b"long.txt", b"new/file", b"new/other"):
        assert b"DIFFERS " + path + b":" in done.stderr
    assert b"DIFFERS .envrc" not in done.stderr
    assert (changed.workspace / "long.txt").read_text().endswith("more")
    assert not (changed.workspace / "new/file").exists()


def test_a_commit_is_kept_with_its_message_read_back_and_can_be_reverted(changed: Cli) -> None:
    before = snapshot(changed.workspace, times=False)
    done = changed("commit", "--digest", changed.digest(), "--allow-risky", "-m", "what it's about", "--json")
    landed = json.loads(done.stdout)
    assert (landed["verified"], landed["differs"]) == (True, [])
    told = json.loads(changed("revert", landed["commit_id"], "--dry-run", "--json").stdout)
    assert told["commit_id"] is None
    reverted = json.loads(changed("revert", landed["commit_id"][:18], "--json").stdout)
    assert snapshot(changed.workspace, times=False) == before
    assert Bench(changed.workspace).told() == {}
    changed("revert", reverted["commit_id"])
    (changed.workspace / "long.txt").write_text("a person's\n")
    refused = json.loads(changed("revert", landed["commit_id"], "--json", code=3).stdout)
    assert refused["paths"][0]["path"] == "long.txt"
    changed("revert", "nothing", code=1)
    log = AuditLog(str(Path(Bench(changed.workspace).overlay).parent.parent))
    told = [(record.action, record.message, record.code) for record in log.records()]
    assert told == [
        ("commit", "what it's about", ""),
        ("revert", f"Revert {landed['commit_id']}", ""),
        ("revert", f"Revert {reverted['commit_id']}", ""),
        ("refusal", "", "conflict"),
        ("refusal", "", "commit_unknown"),
    ]
    assert next(log.records()).counts == {"added": 3, "deleted": 1, "modified": 1}
    assert log.verify().wrong == 0


def test_what_was_accepted_can_become_a_branch_and_the_overlay_keeps_it(changed: Cli) -> None:
    git = git_in(changed.workspace)
    review(changed, "--accept", "new/file")
    before, view = snapshot(changed.workspace, times=False), Bench(changed.workspace).told()
    made = json.loads(changed("commit", "--accepted", "--git", "agent", "-m", "by an agent", "--json").stdout)
    assert git("rev-parse", "agent").strip() == made["commit"]
    assert git("show", "--format=%s", "--name-status", "agent").split() == ["by", "an", "agent", "A", "new/file"]
    assert {path for path, node in snapshot(changed.workspace, times=False).items() if before.get(path) != node} <= {
        path for path in snapshot(changed.workspace) if path.startswith(b".git/")
    }
    assert Bench(changed.workspace).told() == view
    kept = ("--git", "other", "--keep-history", "--allow-risky")
    assert b"[not_landable]" in changed("commit", "--accepted", *kept, code=4).stderr
    assert b"[history_unavailable]" in changed("commit", "--digest", changed.digest(), *kept, code=1).stderr
    changed("commit", "--accepted", "--keep-history", code=2)
    assert b"[branch_exists]" in changed("commit", "--accepted", "--git", "agent", code=1).stderr
    assert b"[risky_paths]" in changed("commit", "--digest", changed.digest(), "--git", "other", code=4).stderr


def test_an_ordinary_user_lands_what_was_accepted_after_a_check(engine: None) -> None:
    with ordinary_user("docker") as user:
        workspace = user.directory / "w"
        user.run("import os; os.makedirs('w/d'); open('w/d/a', 'w').write('old\\n')")
        user.workbench("exec", "--", "sh", "-c", "echo new > d/a; echo new > d/b; echo new > c", cwd=workspace)
        user.workbench("review", "--accept", "d/a", "--accept", "c", cwd=workspace)
        user.workbench("commit", "--accepted", "--check", "! test -e d/b && test -e c", cwd=workspace)
        assert (workspace / "d/a").read_text() == "new\n"
        assert (workspace / "c").stat().st_uid == user.uid
        assert not (workspace / "d/b").exists()
        (overlay,) = user.directory.glob("**/overlays/default")
        assert not (overlay / "check").exists()
        user.workbench("stop", cwd=workspace)


def test_the_audit_log_tells_what_was_done_and_shows_where_it_was_tampered_with(changed: Cli) -> None:
    review(changed, "--accept", "new/file")
    changed("commit", "--accepted", "-m", "first")
    changed("commit", "--digest", changed.digest(), code=4)
    changed("checkpoint", "before")
    changed.sh("echo more > more")
    changed("rewind", "before")
    changed("redo")
    changed("discard", "--yes")
    told = json.loads(changed("log", "--audit", "--json").stdout)
    assert [entry["action"] for entry in reversed(told)] == ["commit", "refusal", "rewind", "redo", "discard"]
    assert told[-1]["counts"] == {"added": 1}
    assert (told[-2]["code"], told[-2]["counts"]) == ("risky_paths", {"path": 1})
    shown = changed("log", "--audit").stdout.decode()
    assert "first" in shown
    assert "A\tnew/file" in shown
    assert b"what was written: 5 lines" in changed("log", "--audit", "--verify").stdout
    path = Path(Bench(changed.workspace).overlay).parent.parent / "audit.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"risky_paths"', b'"nothing_bad"'))
    chain = json.loads(changed("log", "--audit", "--verify", "--json", code=1).stdout)
    assert (chain["lines"], chain["wrong"]) == (2, 3)
    changed("log", "--verify", code=2)
