"""What the command line says: to people nothing that could deceive them or their terminal, to programs what is documented."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Prompt
from tests.cli.terminals import terminal
from tests.conftest import ROOT
from tests.trees import snapshot
from workbench.protocol import reports

_ODD = {
    "escape": b"esc\x1b[31m\x1b]0;title\x07",
    "newline": b"line\nworkbench: 0 changes",
    "bidirectional": "abc\N{RIGHT-TO-LEFT OVERRIDE}txt.exe".encode(),
    "invisible": "a\N{ZERO WIDTH SPACE}b".encode(),
    "control": b"bell\x07back\x08\x08\x08delete\x7f",
    "second half of the controls": "next\u0085\u009b31m".encode(),
    "not UTF-8": b"bad\xff\x9b31m",
}
_MAKE = """
import base64, sys
for name in sys.argv[1:]:
    with open(base64.b64decode(name), "wb") as file:
        file.write(b"content\\n")
with open("docs/index.md", "w", encoding="utf-8") as file:
    file.write("\\x1b[2Jcleared\\r\\x1b]52;c;eA==\\x07\\n\\\u202eoverridden\\u061c\\U000e0041\\n\\x9b31m\\n")
"""
# All that may reach a terminal: printable characters, line ends, tabs, and colours of our own.
_COLOUR = re.compile(r"\x1b\[(0|1|2|31|32|36)m")


@pytest.fixture(scope="module")
def odd(prompt: Prompt) -> Prompt:
    """A prompt whose overlay holds names and contents that no terminal should see raw."""
    names = [base64.b64encode(name).decode() for name in _ODD.values()]
    prompt.run("python3", "-c", _MAKE, *names)
    prompt.sh(
        "mkdir -p .github/workflows; echo 'on: push' >.github/workflows/ci.yml; rm run.sh; chmod +x docs/guide.md"
    )
    return prompt


@pytest.fixture(autouse=True)
def _looking_changes_nothing(odd: Prompt) -> Iterator[None]:
    before = snapshot(odd.workspace)
    yield
    assert snapshot(odd.workspace) == before


def in_terminal(prompt: Prompt, command: str, *arguments: str, **environment: str) -> tuple[str, int]:
    """What a command shows in a terminal, and its exit code."""
    argv = [os.fsdecode(word) for word in prompt.argv(command, *arguments)]
    surroundings = {**prompt.environment, **environment}
    with terminal(argv, cwd=prompt.workspace, environment=surroundings) as shown:
        code = shown.wait()
        return shown.screen.decode(), code


def told(prompt: Prompt, command: str, *arguments: str, code: int = 0) -> dict[str, object]:
    """What `--json` printed: one object on one line, and nothing else on stdout."""
    line = prompt(command, "--json", *arguments, code=code).stdout
    assert line.count(b"\n") == 1
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


# For people


@pytest.mark.parametrize(
    "command", [("diff",), ("diff", "--stat"), ("diff", "--name-status"), ("diff", "--json"), ("status",)]
)
def test_no_control_character_of_the_agents_reaches_a_terminal(odd: Prompt, command: tuple[str, ...]) -> None:
    screen, code = in_terminal(odd, *command)
    assert code == 0
    assert "docs/index.md" in screen or command == ("status",)
    plain = _COLOUR.sub("", screen).replace("\r\n", "\n")
    assert {character for character in plain if not character.isprintable()} <= {"\n", "\t"}


def test_talk_beside_a_redirected_patch_is_as_careful(odd: Prompt) -> None:
    said = odd("diff").stderr.decode()
    assert "RISKY .github/workflows/ci.yml" in said
    assert "docs/guide.md" in said
    assert {character for character in said if not character.isprintable()} <= {"\n"}
    odd.sh("mkfifo \"$(printf 'pipe\\nworkbench: all is well\\033[31m')\"")
    said = odd("status").stderr.decode() + odd("diff").stderr.decode()
    assert "FIFO" in said
    assert not any(line.startswith("workbench: all is well") for line in said.splitlines())
    assert {character for character in said if not character.isprintable()} <= {"\n"}
    odd.sh("rm -f pipe*")


def test_errors_show_what_they_name_safely(odd: Prompt) -> None:
    said = odd("exec", "--", b"no\x1b[31mred\nsuch", code=127).stderr
    assert b"\x1b" not in said
    said = odd("diff", "-w", b"/nonexistent\x1b[31m\n", code=None).stderr
    assert b"\x1b" not in said


def test_a_patch_that_is_redirected_is_byte_for_byte_gits(odd: Prompt, tmp_path: Path) -> None:
    patch = odd("diff").stdout
    assert b"+\x1b[2Jcleared\r\x1b]52;c;eA==\x07\n" in patch
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", odd.workspace, copy], check=True)
    subprocess.run(["git", "apply", "-"], input=patch, cwd=copy, check=True)
    for name in _ODD.values():
        assert (Path(os.fsdecode(os.path.join(os.fsencode(copy), name)))).read_bytes() == b"content\n"
    assert not (copy / "run.sh").exists()


def test_colours_are_for_terminals_that_want_them(odd: Prompt) -> None:
    assert _COLOUR.search(in_terminal(odd, "diff")[0])
    assert not _COLOUR.search(in_terminal(odd, "diff", NO_COLOR="1")[0])
    assert "\x1b" not in in_terminal(odd, "status", NO_COLOR="1")[0]
    assert b"\x1b[1m" not in odd("diff").stdout + odd("status").stdout


def test_quiet_says_nothing_but_results_and_errors(odd: Prompt) -> None:
    assert odd("exec", "-q", "--", "sh", "-c", "echo out").stderr == b""
    assert odd("diff", "-q", "README.md").stderr == b""
    assert b"[command_not_found]" in odd("exec", "-q", "--", "no-such-command", code=127).stderr
    assert odd("stop", "-q").stderr == b""
    assert odd("refresh", "-q").stderr == b""


def test_status_says_what_there_is_and_what_to_do_next(odd: Prompt) -> None:
    shown = odd("status").stdout.decode()
    for word in (str(odd.workspace), "default", "docker", "changes", "workbench diff", "workbench commit"):
        assert word in shown


def test_without_a_command_the_status_is_shown(odd: Prompt) -> None:
    argv = [sys.executable, "-m", "workbench"]
    shown = subprocess.run(argv, cwd=odd.workspace, env=odd.environment, capture_output=True, check=True)
    named = subprocess.run([*argv, "status"], cwd=odd.workspace, env=odd.environment, capture_output=True, check=True)
    assert shown.stdout == named.stdout
    elsewhere = {**odd.environment, "WORKBENCH_SESSION": "another"}
    shown = subprocess.run(argv, cwd=odd.workspace, env=elsewhere, capture_output=True, check=True)
    assert b"another" in shown.stdout


# The forms of diff


def test_diff_forms_tell_the_same_changes(odd: Prompt) -> None:
    listed = odd("diff", "--name-status").stdout.splitlines()
    assert b"D\trun.sh" in listed
    assert b"M\tdocs/index.md" in listed
    assert b'A\t"bad\\377\\23331m"' in listed
    fields = odd("diff", "--name-status", "-z").stdout.split(b"\0")
    assert (b"A", _ODD["not UTF-8"]) in zip(fields[::2], fields[1::2], strict=False)
    assert len(fields) == 2 * len(listed) + 1
    odd("diff", "-z", code=2)
    stat = odd("diff", "--stat").stdout.splitlines()
    assert len(stat) == len(listed) + 1
    assert f"{len(listed)} files changed".encode() in stat[-1]
    changes = told(odd, "diff")["changes"]
    assert isinstance(changes, list)
    assert len(changes) == len(listed)


def test_diff_can_be_limited_to_paths(odd: Prompt) -> None:
    assert odd("diff", "--name-status", "docs").stdout == b"M\tdocs/guide.md\nM\tdocs/index.md\n"
    assert odd("diff", "--name-status", "./docs/index.md", "run.sh").stdout == b"M\tdocs/index.md\nD\trun.sh\n"
    assert odd("diff", "--name-status", "README.md").stdout == b""
    assert odd("diff", "--name-status", os.fsdecode(_ODD["not UTF-8"])).stdout == b'A\t"bad\\377\\23331m"\n'
    odd("diff", "../elsewhere", code=2)


def test_diff_ends_with_1_for_changes_only_where_asked_to(odd: Prompt) -> None:
    odd("diff", code=0)
    odd("diff", "--exit-code", code=1)
    odd("diff", "--exit-code", "README.md", code=0)
    odd("diff", "--exit-code", "--json", code=1)
    odd("diff", "--exit-code", "--session", "another", code=0)


def test_the_digest_alone_is_one_line_that_a_commit_takes(odd: Prompt) -> None:
    digest = odd("diff", "--digest-only").stdout.decode()
    assert re.fullmatch(r"[0-9a-f]{64}\n", digest)
    assert told(odd, "diff")["digest"] == digest.strip()
    assert told(odd, "diff", "docs")["digest"] == digest.strip()
    said = odd("commit", "--digest", digest.strip(), code=4).stderr
    assert b"[risky_paths]" in said


# For programs


def test_what_json_prints_is_what_the_models_say(odd: Prompt) -> None:
    for command, model in (
        ("status", reports.StatusReport),
        ("diff", reports.DiffReport),
        ("doctor", reports.DoctorReport),
    ):
        found = told(odd, command)
        read = model.model_validate(found)
        assert read.model_dump(mode="json") == found
    read = reports.ExecReport.model_validate(told(odd, "exec", "--", "true"))
    assert read.exit_code == 0
    assert read.changes


def test_a_name_that_isnt_utf8_comes_as_bytes_too(odd: Prompt) -> None:
    found = reports.DiffReport.model_validate(told(odd, "diff"))
    by_bytes = {base64.b64decode(change.path_bytes) for change in found.changes if change.path_bytes}
    assert by_bytes == {_ODD["not UTF-8"]}
    by_text = {change.path for change in found.changes if not change.path_bytes}
    assert {name.decode() for name in _ODD.values() if name not in by_bytes} <= by_text


def test_json_errors_are_an_object_with_code_message_and_hint(odd: Prompt) -> None:
    found = told(odd, "commit", "--digest", "0" * 64, code=4)
    error = reports.ErrorReport.model_validate(found).error
    assert error["code"] == "digest_unknown"
    assert error["message"]
    assert error["hint"]
    assert odd("commit", "--json", "--digest", "0" * 64, code=4).stderr == b""


def test_json_is_readable_whatever_the_locale(odd: Prompt) -> None:
    environment = {**odd.environment, "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    found = reports.DiffReport.model_validate_json(odd("diff", "--json", env=environment).stdout)
    assert _ODD["bidirectional"].decode() in {change.path for change in found.changes}
    assert b"abc" in odd("status", env=environment).stdout or odd("diff", "--stat", env=environment).stdout


def test_reports_come_whole_through_a_reader_that_leaves(odd: Prompt) -> None:
    argv = [os.fsdecode(word) for word in odd.argv("diff")]
    done = subprocess.run(
        ["bash", "-c", '"$@" | head -n 1; exit "${PIPESTATUS[0]}"', "sh", *argv],
        cwd=ROOT,
        env=odd.environment,
        capture_output=True,
        check=False,
    )
    assert done.stdout.startswith(b"diff --git")
    assert b"Traceback" not in done.stderr


# Help


_COMMANDS = (
    "exec",
    "shell",
    "refresh",
    "stop",
    "status",
    "diff",
    "ls",
    "sessions",
    "doctor",
    "commit",
    "discard",
    "images",
)


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_explains_itself(odd: Prompt, command: str) -> None:
    for option in ("--help", "-h"):
        done = subprocess.run(
            [sys.executable, "-m", "workbench", command, option], env=odd.environment, capture_output=True, check=True
        )
        shown = done.stdout.decode()
        assert f"Usage: workbench {command}" in shown
        if command not in ("doctor", "images", "prune", "sessions"):
            assert "--session" in shown


@pytest.mark.parametrize(
    ("command", "codes"),
    [("exec", "124 125 126 127"), ("commit", "0 3 4"), ("diff", "0 1"), ("prune", "0 1 4"), ("", "0 1 2 3 4")],
)
def test_help_tells_exit_codes_where_they_matter(odd: Prompt, command: str, codes: str) -> None:
    argv = [sys.executable, "-m", "workbench", *filter(None, [command]), "--help"]
    shown = subprocess.run(argv, env=odd.environment, capture_output=True, text=True, check=True).stdout
    for code in codes.split():
        assert re.search(rf"\b{code}\b", shown), shown


def test_the_overview_names_every_command(odd: Prompt) -> None:
    argv = [sys.executable, "-m", "workbench", "--help"]
    shown = subprocess.run(argv, env=odd.environment, capture_output=True, text=True, check=True).stdout
    for command in _COMMANDS:
        assert re.search(rf"^\W*{command} ", shown, re.MULTILINE)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_be_taught_to_complete(odd: Prompt, shell: str) -> None:
    script = subprocess.run(
        [sys.executable, "-m", "workbench", "--show-completion", shell],
        env={**odd.environment, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "_WORKBENCH_COMPLETE" in script
    assert "python" not in script


def test_completion_offers_commands_and_options(odd: Prompt) -> None:
    def offered(words: str) -> list[str]:
        environment = {
            **odd.environment,
            "_WORKBENCH_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        done = subprocess.run(
            [sys.executable, "-m", "workbench"], env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout.split()

    assert {"commit"} == set(offered("workbench com"))
    assert {"--stat", "--name-status"} <= set(offered("workbench diff --"))
