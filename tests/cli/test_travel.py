"""`checkpoint`, `log`, `rewind`, `redo`, `fork` and `diff --from` as a person types them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Prompt
from tests.trees import snapshot

pytestmark = pytest.mark.engine


@pytest.fixture
def prompt(engine: None, tmp_path: Path) -> Iterator[Prompt]:
    made = Prompt(tmp_path)
    yield made
    made.end()


def log(prompt: Prompt, *arguments: str) -> list[dict[str, object]]:
    found = json.loads(prompt("log", "--json", *arguments).stdout)
    assert isinstance(found, list)
    return found


def test_a_person_goes_back_and_forth(prompt: Prompt) -> None:
    before = snapshot(prompt.workspace)
    assert b"workbench rewind start" in prompt("checkpoint", "start").stderr
    prompt.sh("echo one > README.md; echo new > new; rm empty")
    prompt("checkpoint", "second", "--label", "the second one")
    patch = prompt("diff", "--from", "start").stdout
    assert b"+++ b/new" in patch
    assert b"deleted file" in patch
    assert prompt("diff", "--from", "start", "--to", "start").stdout == b""
    assert prompt("diff", "--from", "start", "--to", "second", "--name-status").stdout.splitlines() == [
        b"M\tREADME.md",
        b"D\tempty",
        b"A\tnew",
    ]
    assert b"M\0README.md\0" in prompt("diff", "--from", "start", "--name-status", "-z").stdout
    dry = prompt("rewind", "start", "--dry-run").stdout
    assert b"--- a/new" in dry
    assert b"+# project" in dry
    assert [each["message_id"] for each in log(prompt) if each["kind"] == "message"] == ["second", "start"]
    said = json.loads(prompt("rewind", "start", "--json").stdout)
    assert [path["path"] for path in said["removed"]] == ["new"]
    assert [path["path"] for path in said["restored"]] == ["README.md", "empty"]
    assert prompt("diff").stdout == b""
    assert b"redo" in prompt("log").stdout or b"rewound to start" in prompt("log").stdout
    prompt("redo")
    assert b"+++ b/new" in prompt("diff").stdout
    failed = prompt("redo", "--json", code=1)
    assert json.loads(failed.stdout)["error"]["code"] == "nothing_to_redo"
    assert snapshot(prompt.workspace) == before


def test_what_git_keeps_for_itself_is_no_patch_and_not_counted_but_comes_back(prompt: Prompt) -> None:
    prompt("checkpoint", "start")
    prompt.sh("mkdir .git; echo internal > .git/config; echo internal > .git/HEAD; echo new > new")
    prompt("checkpoint", "made")
    assert next(entry["changes"] for entry in log(prompt) if entry["message_id"] == "made") == 1
    dry = prompt("rewind", "start", "--dry-run")
    assert b"--- a/new" in dry.stdout
    assert b"internal" not in dry.stdout
    assert b"2 changes in .git" in dry.stderr
    assert b"0 paths restored, 1 removed, .git too" in prompt("rewind", "start").stderr
    assert b"+internal" in prompt("rewind", "made", "--dry-run", "--path", ".git").stdout
    prompt("redo")
    assert prompt.sh("cat .git/config").stdout == b"internal\n"


def test_one_path_goes_back_alone(prompt: Prompt) -> None:
    prompt("checkpoint", "start")
    prompt.sh("rm -r docs; echo x > README.md")
    prompt("rewind", "start", "--path", "docs/guide.md")
    assert prompt("diff", "--name-status").stdout.splitlines() == [b"M\tREADME.md", b"D\tdocs/index.md"]
    failed = prompt("rewind", "start", "--path", "../x", code=2)
    assert b"inside the workspace" in failed.stderr


def test_a_command_that_changed_something_can_be_taken_back_by_its_number(prompt: Prompt) -> None:
    prompt.sh("echo one > a")
    prompt.sh("ls > /dev/null")
    prompt.sh("echo two > b")
    prompt("exec", "--no-checkpoint", "--", "sh", "-c", "echo three > c")
    entries = log(prompt)
    assert [(entry["label"], entry["added"]) for entry in entries] == [
        ("before: sh -c 'echo two > b'", 1),
        ("before: sh -c 'echo one > a'", 1),
    ]
    assert {entry["kind"] for entry in entries} == {"command"}
    prompt("rewind", str(entries[0]["message_id"]))
    assert prompt("diff", "--name-status").stdout == b"A\ta\n"
    prompt("rewind", str(entries[1]["message_id"]))
    assert prompt("diff").stdout == b""


def test_what_a_background_process_wrote_before_a_command_is_kept_with_what_was_there(prompt: Prompt) -> None:
    """The last look isn't what was there any more."""
    prompt.sh("echo one > a")
    prompt("stop")
    upper = prompt.overlay() / "upper"
    (upper / "behind").write_text("behind")
    prompt.sh("rm behind a")
    (entry,) = [each for each in log(prompt) if "rm behind" in str(each["label"])]
    prompt("rewind", str(entry["message_id"]))
    assert prompt("diff", "--name-status").stdout.splitlines() == [b"A\ta", b"A\tbehind"]


def test_a_discard_is_taken_back(prompt: Prompt) -> None:
    prompt.sh("echo x > a")
    prompt("discard")
    prompt("redo")
    assert prompt("diff", "--name-status").stdout == b"A\ta\n"


def test_what_is_said_to_take_a_redo_back_does(prompt: Prompt) -> None:
    prompt.sh("echo x > a")
    said = prompt("discard").stderr.decode()
    assert f"; `workbench redo -w {prompt.workspace}` takes that back" in said
    said = prompt("redo").stderr.decode()
    command, message_id, *_ = said.partition("; `workbench ")[2].partition("` takes that back")[0].split()
    assert command == "rewind"
    prompt("rewind", message_id)
    assert prompt("diff").stdout == b""


def test_what_is_said_to_do_next_is_about_the_session_it_is_said_of(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a process that keeps the sandbox warm as for one that starts it, and for each command that says what to do."""
    for _ in range(2):
        done = prompt("exec", "--session", "other", "--", "sh", "-c", "echo x >> a; echo y > b")
        assert f"2 files changed: workbench review -w {prompt.workspace} --session other\n" in done.stderr.decode()
    said = [
        prompt("checkpoint", "here", "--session", "other").stderr,
        prompt("status", "--session", "other").stdout,
        prompt("diff", "--session", "other").stderr,
        prompt("review", "--accept", "a", "--session", "other").stderr,
        prompt("discard", "b", "--session", "other").stderr,
        prompt("redo", "--session", "other").stderr,
    ]
    for text in said:
        commands = [line for line in text.decode().splitlines() if "workbench " in line.removeprefix("workbench: ")]
        assert commands
        assert all("--session other" in line for line in commands), text
    # Where the name needn't be typed, it isn't said.
    monkeypatch.setenv("WORKBENCH_SESSION", "other")
    assert f"changed: workbench review -w {prompt.workspace}\n" in prompt("exec", "--", "true").stderr.decode()


def test_some_changes_are_discarded_and_taken_back(prompt: Prompt) -> None:
    prompt.sh("echo x > a; mkdir d; echo y > d/b; echo z > c; mkdir _notes; echo note > _notes/n")
    (prompt.workspace / ".gitignore").write_text("out/\n")
    done = prompt("discard", "a", "d/")
    assert b"discarded 2 changes, 1 change left; `workbench redo -w " in done.stderr
    assert prompt("diff", "--name-status").stdout == b"A\tc\n"
    prompt("redo")
    assert prompt("diff", "--name-status").stdout == b"A\ta\nA\tc\nA\td/b\n"
    assert b"what isn't listed, 3 changes left" in prompt("discard", "_notes").stderr
    prompt.sh("test ! -e _notes/n")
    for wrong in (["nothing-here"], ["../other"], ["a", "--rejected"], ["--rejected"]):
        prompt("discard", *wrong, code=2)
    assert prompt("diff", "--name-status").stdout == b"A\ta\nA\tc\nA\td/b\n"


def test_one_name_of_a_rename_takes_the_whole_back(prompt: Prompt) -> None:
    (prompt.workspace / "old").write_text("a text\n" * 9)
    prompt.sh("mv old new; echo x > a")
    assert prompt("diff", "--name-status").stdout == b"A\ta\nR100\told\tnew\n"
    assert json.loads(prompt("discard", "new", "--json").stdout)["discarded"] == 1
    assert prompt("diff", "--name-status").stdout == b"A\ta\n"


def test_what_was_rejected_is_discarded_alone(prompt: Prompt) -> None:
    (prompt.workspace / "old").write_text("a text\n" * 9)
    prompt.sh("mv old new; echo x > a; echo x > b")
    prompt("review", "--reject", "old", "--reject", "a")
    prompt("discard", "--rejected")
    assert prompt("diff", "--name-status").stdout == b"A\tb\n"
    failed = prompt("discard", "--rejected", "--json", code=2)
    assert json.loads(failed.stdout)["error"]["code"] == "invalid_options"


def test_a_fork_has_a_name_and_is_drawn(prompt: Prompt) -> None:
    prompt.sh("echo x > a")
    prompt("checkpoint", "here")
    prompt.sh("echo x > b")
    assert json.loads(prompt("fork", "here", "--json").stdout)["session"] == "default-2"
    prompt("fork", "here", "--name", "side")
    assert prompt("diff", "--session", "side", "--name-status").stdout == b"A\ta\n"
    assert b"forked: side" in prompt("log", "--graph").stdout
    prompt("rewind", "here")
    assert b"| * " in prompt("log", "--graph").stdout
    failed = prompt("fork", "here", "--name", "side", "--json", code=1)
    assert json.loads(failed.stdout)["error"]["code"] == "session_exists"


def test_what_landed_is_listed_with_what_led_to_it(prompt: Prompt) -> None:
    prompt("checkpoint", "message one")
    prompt.sh("echo x > a")
    commit = json.loads(prompt.commit("--json").stdout)["commit_id"]
    (landed,) = json.loads(prompt("log", "--commits", "--json").stdout)
    assert landed["commit_id"] == commit
    assert landed["messages"] == ["message one", "before: sh -c 'echo x > a'"]
    audit = prompt("log", "--audit").stdout.decode()
    assert commit in audit
    assert landed["digest"] in audit
    assert "A\ta" in audit
    # It can be taken back, and that reviewed and landed.
    prompt("rewind", "message one")
    assert prompt("diff", "--name-status").stdout == b"D\ta\n"
    assert (prompt.workspace / "a").exists()
    prompt.commit()
    assert not (prompt.workspace / "a").exists()


def test_an_id_of_any_text_is_shown_safely_and_found(prompt: Prompt) -> None:
    odd = "a 'b'\n\x1b[31m\u202eü"
    prompt("checkpoint", odd, "--label", "\x1b]0;x\x07")
    shown = prompt("log").stdout
    assert b"\x1b" not in shown
    assert len(shown.splitlines()) == 1
    prompt.sh("echo x > a")
    prompt("rewind", odd)
    failed = prompt("checkpoint", odd, "--json", code=1)
    assert json.loads(failed.stdout)["error"]["code"] == "checkpoint_exists"
    prompt("checkpoint", odd, "--replace")
    assert json.loads(prompt("rewind", "nobody", "--json", code=1).stdout)["error"]["code"] == "checkpoint_not_found"


def test_checkpoints_are_dropped_purged_and_verified(prompt: Prompt) -> None:
    prompt.sh("echo hunter2 > secret")
    prompt("checkpoint", "with")
    prompt.sh("rm secret")
    prompt("checkpoint", "without")
    assert b"can be restored, 0 can't" in prompt("checkpoint", "--verify").stdout
    assert b"held secret" in prompt("checkpoint", "--purge", "secret").stderr
    prompt("rewind", "with")
    assert prompt("diff").stdout == b""
    prompt("redo", code=None)
    assert b"dropped with" in prompt("checkpoint", "--drop", "with").stderr
    assert "with" not in [entry["message_id"] for entry in log(prompt)]
    assert json.loads(prompt("checkpoint", "--verify", "--json").stdout)["broken"] == []
    audited = [(line["action"], line["message"]) for line in json.loads(prompt("log", "--audit", "--json").stdout)]
    assert [each for each in audited if each[0] in ("drop", "purge")] == [("drop", "with"), ("purge", "secret")]
    prompt("checkpoint", "--drop", "a", "--verify", code=2)


def test_a_damaged_store_is_said_and_gone_on_from(prompt: Prompt) -> None:
    prompt.sh("echo x > a")
    prompt("checkpoint", "first")
    (store,) = prompt.state.glob("workspaces/*/checkpoints.git")
    tip = (store / "refs/workbench/default/tip").read_text().strip()
    prompt.sh("echo y > b")
    prompt("checkpoint", "second")
    # The newest pack goes: what the second one needs.
    packs = sorted((store / "objects/pack").glob("*.pack"), key=lambda pack: pack.stat().st_mtime_ns)
    packs[-1].unlink()
    said = prompt("checkpoint", "third").stderr.decode()
    assert "was set aside as" in said
    assert "were taken over" in said
    assert "first" in [entry["message_id"] for entry in log(prompt)]
    prompt("rewind", "first")
    assert prompt("diff", "--name-status").stdout == b"A\ta\n"
    assert tip


def test_from_a_subdirectory_the_whole_overlay_goes_back(prompt: Prompt) -> None:
    prompt.sh("mkdir -p sub; echo one > sub/f; echo one > beside")
    prompt("checkpoint", "one")
    prompt.sh("echo two > sub/f; echo two > beside")
    for command, expected in ((("rewind", "one"), b"one\none\n"), (("redo",), b"two\ntwo\n")):
        argv = [sys.executable, "-m", "workbench", *command]
        below = prompt.workspace / "src"
        subprocess.run(argv, env=prompt.environment, cwd=below, check=True, capture_output=True)
        assert prompt.sh("cat sub/f beside").stdout == expected
