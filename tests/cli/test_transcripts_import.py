"""`workbench transcripts import`: another agent's session, gone on with, gone back in, and reviewed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner, Result

from tests.conftest import ROOT, git_in
from tests.models.asking import FORMATS, model_at
from tests.transcripts.homes import HOMES, T0, T1, T2, lines
from tests.transcripts.reading_sessions import heads
from tests.trees import snapshot
from tests.waiting import wait_until
from workbench.agent.repair import repaired
from workbench.agent.workspace_session import WorkspaceSession
from workbench.cli.app import app
from workbench.importing.session import import_session
from workbench.models.adapter import WireModel
from workbench.testing import StubCall, StubModelServer, StubReply
from workbench.transcripts import LocalPlatform, SessionRef
from workbench.transcripts.importing import ImportedSession, load_to_import
from workbench.workspace import Workspace

WHERE = "/somewhere/else/project"


class Importer:
    """The command in this process, on a directory of its own; nothing here needs an engine."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def told(self, command: str, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(command, *arguments, "-w", str(self.workspace), "--json", code=code).stdout)

    def bring(self, session: Path | str, *arguments: str, code: int = 0, here: bool = True) -> Any:
        """What an import reports; of an error its object."""
        where = ["-w", str(self.workspace)] if here else []
        return json.loads(self("transcripts", "import", str(session), *where, *arguments, "--json", code=code).stdout)

    def digest(self, session: str) -> str:
        return str(self.told("diff", "--session", session)["digest"])


@pytest.fixture
def cli(state: Path, tmp_path: Path) -> Importer:
    directory = tmp_path / "project"
    directory.mkdir()
    git = git_in(directory)
    git("init", "-q", "-b", "main")
    (directory / "sums.py").write_text("one = 1\ntwo = 2\n")
    (directory / "old.py").write_text("old\n")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    return Importer(directory)


def claude(path: Path, *turns: tuple[str, list[dict[str, Any]]], cwd: str = WHERE) -> Path:
    """A session of Claude Code: each turn a prompt, and a reply for each call, all of which went well."""
    chain = {"sessionId": "s", "cwd": cwd, "isSidechain": False, "timestamp": T0}
    records: list[dict[str, Any]] = []
    for prompt, calls in turns:
        records.append({"type": "user", "message": {"role": "user", "content": prompt}})
        for call in calls:
            id = f"toolu_{len(records)}"
            made = {"type": "tool_use", "id": id, **call}
            records.append({"type": "assistant", "message": {"id": id, "role": "assistant", "content": [made]}})
            result = {"type": "tool_result", "tool_use_id": id, "content": "ok"}
            came = {"type": "create" if call["name"] == "Write" else "update", "filePath": call["input"]["file_path"]}
            answer = {"role": "user", "content": [result]}
            records.append({"type": "user", "message": answer, "toolUseResult": came})
        done = {"id": f"m{len(records)}", "role": "assistant", "content": [{"type": "text", "text": f"{prompt}: done"}]}
        records.append({"type": "assistant", "message": done})
    lines(path, *({"uuid": f"u{number}", **chain, **record} for number, record in enumerate(records)))
    return path


def write(path: str, content: str) -> dict[str, Any]:
    return {"name": "Write", "input": {"file_path": path, "content": content}}


def edit(path: str, old: str, new: str) -> dict[str, Any]:
    return {"name": "Edit", "input": {"file_path": path, "old_string": old, "new_string": new}}


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """Two turns: in the first a file is changed and one made, in the second both are changed."""
    return claude(
        tmp_path / "talk.jsonl",
        ("begin", [edit(f"{WHERE}/sums.py", "one = 1", "one = 10"), write(f"{WHERE}/lib/new.py", "new\n")]),
        ("go on", [edit("sums.py", "two = 2", "two = 20"), edit(f"{WHERE}/lib/new.py", "new", "newer")]),
    )


AFTER = {b"sums.py": b"one = 10\ntwo = 20\n", b"lib/new.py": b"newer\n"}


def shows(cli: Importer, session: str) -> dict[bytes, bytes | None]:
    async def look() -> dict[bytes, bytes | None]:
        async with Workspace.open(cli.workspace, session=session) as workspace:
            return {
                path: await workspace.files.read(path) if await workspace.files.kind(path) is not None else None
                for path in AFTER
            }

    return anyio.run(look)


def said(cli: Importer, session: str) -> list[str]:
    async def look() -> list[str]:
        async with (
            Workspace.open(cli.workspace, session=session) as workspace,
            WorkspaceSession.open_to_travel(workspace) as found,
        ):
            return [message.content for message in found.agent.detail().messages if message.role == "user"]

    return anyio.run(look)


def test_edits_become_checkpoints_to_go_back_to_and_nothing_of_the_workspace_changes(cli: Importer, talk: Path) -> None:
    before = snapshot(cli.workspace)
    told = cli.bring(talk)
    assert (told["session"], told["agent"], told["messages"]) == ("claude-code-talk", "claude-code", 12)
    assert told["counts"] == {"applied": 4, "already": 0, "conflict": 0, "outside": 0, "unrecorded": 0}
    assert snapshot(cli.workspace) == before
    assert shows(cli, told["session"]) == AFTER
    log = cli.told("log", "--session", told["session"])
    assert [entry["label"] for entry in log] == ["go on", "begin"]
    second, first = (entry["message_id"] for entry in log)
    assert {change["path"] for change in cli.told("diff", "--session", told["session"])["changes"]} == {
        "sums.py",
        "lib/new.py",
    }
    assert cli.told("rewind", second, "--session", told["session"])["messages"] == 6
    assert shows(cli, told["session"]) == {b"sums.py": b"one = 10\ntwo = 2\n", b"lib/new.py": b"new\n"}
    assert said(cli, told["session"]) == ["begin"]
    cli.told("rewind", first, "--session", told["session"])
    assert shows(cli, told["session"]) == {b"sums.py": b"one = 1\ntwo = 2\n", b"lib/new.py": None}
    assert said(cli, told["session"]) == []
    cli.told("redo", "--session", told["session"])
    cli.told("redo", "--session", told["session"])
    assert shows(cli, told["session"]) == AFTER
    assert said(cli, told["session"]) == ["begin", "go on"]
    cli.told("rewind", first, "--step", "1", "--session", told["session"])
    assert shows(cli, told["session"]) == {b"sums.py": b"one = 10\ntwo = 2\n", b"lib/new.py": None}
    assert snapshot(cli.workspace) == before


def test_what_was_imported_lands_as_everything_does(cli: Importer, talk: Path) -> None:
    session = cli.bring(talk)["session"]
    cli.told("commit", "--digest", cli.digest(session), "--session", session)
    for path, content in AFTER.items():
        assert (cli.workspace / os.fsdecode(path)).read_bytes() == content


def test_edits_that_the_workspace_has_already_can_be_gone_back_to(cli: Importer, talk: Path) -> None:
    (cli.workspace / "lib").mkdir()
    for path, content in AFTER.items():
        (cli.workspace / os.fsdecode(path)).write_bytes(content)
    (cli.workspace / "lib" / "new.py").chmod(0o755)
    told = cli.bring(talk)
    assert told["counts"]["already"] == 4
    assert cli.told("diff", "--session", told["session"])["changes"] == []
    second, first = (entry["message_id"] for entry in cli.told("log", "--session", told["session"]))
    cli.told("rewind", second, "--session", told["session"])
    assert shows(cli, told["session"]) == {b"sums.py": b"one = 10\ntwo = 2\n", b"lib/new.py": b"new\n"}
    cli.told("rewind", first, "--session", told["session"])
    assert shows(cli, told["session"]) == {b"sums.py": b"one = 1\ntwo = 2\n", b"lib/new.py": None}


def test_what_fits_no_more_is_left_out_and_named(cli: Importer, talk: Path) -> None:
    (cli.workspace / "sums.py").write_text("a person's\n")
    told = cli.bring(talk)
    assert told["counts"] == {"applied": 2, "already": 0, "conflict": 2, "outside": 0, "unrecorded": 0}
    assert {each["path"] for each in told["edits"] if each["status"] == "conflict"} == {f"{WHERE}/sums.py", "sums.py"}
    assert shows(cli, told["session"])[b"sums.py"] == b"a person's\n"
    shown = cli("transcripts", "import", str(talk), "-w", str(cli.workspace), "--dry-run")
    assert shown.stdout.splitlines()[:3] == ["EDITS\tNUMBER", "applied\t2", "already\t0"]
    assert f"conflict: edit {WHERE}/sums.py: the old text isn't there" in shown.stderr


def test_a_hostile_session_gets_no_further_than_the_overlay_and_the_review(cli: Importer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (cli.workspace / "link").symlink_to(outside)
    (cli.workspace / "hooks").symlink_to(".git/hooks")
    traps = ["../outside/x", str(outside / "x"), "link/x", ".git/hooks/post-checkout", "hooks/post-checkout", "a\0b"]
    traps += [f"{WHERE}/../../../..{outside}/x", "sub/.GIT/config", "/etc/workbench-import"]
    session = claude(tmp_path / "h.jsonl", ("go", [write(path, "evil") for path in (*traps, ".envrc", "fine")]))
    before = snapshot(tmp_path, skip=(b"state",))
    told = cli.bring(session)
    assert told["counts"]["outside"] == len(traps)
    assert told["counts"]["applied"] == 2
    assert snapshot(tmp_path, skip=(b"state",)) == before
    changes = {each["path"]: each["risk"] for each in cli.told("diff", "--session", told["session"])["changes"]}
    assert changes.keys() == {".envrc", "fine"}
    assert changes[".envrc"]
    refused = cli.told("commit", "--digest", cli.digest(told["session"]), "--session", told["session"], code=4)
    assert refused["error"]["code"] == "risky_paths"


def test_codex_s_patches_change_move_and_delete(cli: Importer, tmp_path: Path) -> None:
    patch = (
        "*** Begin Patch\n*** Update File: sums.py\n@@\n-one = 1\n+one = 10\n two = 2\n"
        "*** Update File: old.py\n*** Move to: kept/moved.py\n@@\n-old\n+moved\n*** Add File: b.py\n+b\n*** End Patch"
    )
    script = "apply_patch <<'EOF'\n*** Begin Patch\n*** Delete File: b.py\n*** End Patch\nEOF"
    (cli.workspace / "old.py").chmod(0o755)
    path = tmp_path / "rollout-2026-03-01T10-00-00-0199a213.jsonl"
    about = {"id": "0199a213", "timestamp": T0, "cwd": WHERE}
    ran = {"call_id": "2", "name": "shell", "arguments": json.dumps({"command": ["bash", "-lc", script]})}
    items = [
        {"type": "custom_tool_call", "name": "apply_patch", "call_id": "1", "input": patch},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "ok"},
        {"type": "function_call", **ran},
        {"type": "function_call_output", "call_id": "2", "output": "ok"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    ]
    lines(
        path,
        {"timestamp": T0, "type": "session_meta", "payload": about},
        {"timestamp": T0, "type": "event_msg", "payload": {"type": "user_message", "message": "tidy up"}},
        *({"timestamp": T1, "type": "response_item", "payload": item} for item in items),
        {"timestamp": T2, "type": "event_msg", "payload": {"type": "agent_message", "message": "Done."}},
    )
    told = cli.bring(path)
    assert told["session"] == "codex-0199a213"
    assert [(each["action"], each["status"]) for each in told["edits"]] == [
        ("edit", "applied"),
        ("move", "applied"),
        ("add", "applied"),
        ("delete", "applied"),
    ]
    assert told["commands"] == 1
    [entry] = cli.told("log", "--session", told["session"])
    cli.told("rewind", entry["message_id"], "--step", "1", "--session", told["session"])
    changes = {each["path"]: each for each in cli.told("diff", "--session", told["session"])["changes"]}
    assert changes.keys() == {"sums.py", "b.py", "kept/moved.py", "old.py"}
    assert changes["kept/moved.py"]["new_mode"].endswith("755")


SAMPLE = "claude_code/episodic-memory/long-conversation.jsonl"
SAMPLE_CWD = "/Users/testuser/Documents/GitHub/example-org/example-project/"


def recorded_states(sample: Path) -> tuple[dict[str, str], dict[str, str]]:
    """What a real session's own record says that its files held: before its first edits, and after the last ones."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for line in sample.read_text().splitlines():
        result = json.loads(line).get("toolUseResult")
        if not isinstance(result, dict) or "filePath" not in result:
            continue
        path = result["filePath"].removeprefix(SAMPLE_CWD)
        if result.get("type") == "create":
            after[path] = result["content"]
        else:
            if path not in after:
                before[path] = result["originalFile"]
            after[path] = result["originalFile"].replace(result["oldString"], result["newString"])
    return before, after


def test_a_real_session_leads_from_what_was_there_to_what_it_recorded(cli: Importer, samples: Path) -> None:
    before, after = recorded_states(samples / SAMPLE)
    assert (len(before), len(after)) == (1, 18)

    def put(files: dict[str, str]) -> None:
        for path, content in files.items():
            (cli.workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (cli.workspace / path).write_text(content, newline="")

    async def read(session: str) -> dict[str, str]:
        async with Workspace.open(cli.workspace, session=session) as workspace:
            return {path: (await workspace.files.read(os.fsencode(path))).decode() for path in after}

    put(before)
    told = cli.bring(samples / SAMPLE, "--session", "before")
    assert told["counts"]["applied"] == len(told["edits"]) == 31
    assert anyio.run(read, "before") == after
    put(after)
    told = cli.bring(samples / SAMPLE, "--session", "after")
    assert told["counts"]["already"] == 31
    assert anyio.run(read, "after") == after
    assert cli.told("diff", "--session", "after")["changes"] == []
    first = cli.told("log", "-n", "0", "--session", "after")[-1]["message_id"]
    cli.told("rewind", first, "--session", "after")
    changes = {each["path"]: each["kind"] for each in cli.told("diff", "--session", "after")["changes"]}
    assert changes == {path: "modified" if path in before else "deleted" for path in after}


@pytest.mark.parametrize("agent", HOMES)
def test_every_agent_s_session_can_be_gone_on_with(agent: str, cli: Importer, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    HOMES[agent](tmp_path / "home")
    [head] = heads(agent, tmp_path / "home")
    dry = cli.bring(head.ref.path, "--agent", agent, "--dry-run")
    told = cli.bring(head.ref.path, "--agent", agent)
    assert (dry["counts"], dry["messages"]) == (told["counts"], told["messages"])
    assert {each["status"] for each in told["edits"]} <= {"applied", "unrecorded"}
    assert said(cli, told["session"]) == ["fix the parser"]


@pytest.mark.parametrize("kind", FORMATS)
def test_every_wire_format_takes_the_conversation(kind: type[WireModel], cli: Importer, talk: Path) -> None:
    session = cli.bring(talk)["session"]

    async def go_on() -> str:
        with StubModelServer(StubReply(text="As you say.")) as stub:
            async with (
                Workspace.open(cli.workspace, session=session) as workspace,
                WorkspaceSession.open(workspace, model=model_at(stub, kind)) as found,
            ):
                messages = found.agent.detail().messages
                assert all(one is other for one, other in zip(repaired(messages), messages, strict=True))
                result = await (await found.start("and now?")).result()
                assert result.text == "As you say."
            return json.dumps(stub.requests[0].body)

    asked = anyio.run(go_on)
    for text in ("begin: done", "go on: done", "one = 10", "and now?"):
        assert text in asked


def test_a_run_goes_on_with_it(cli: Importer, talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = cli.bring(talk)["session"]
    call = StubCall("edit_file", {"path": "sums.py", "old_text": "two = 20", "new_text": "two = 200"})
    with StubModelServer(StubReply(calls=[call]), StubReply(text="Done.")) as stub:
        config = tmp_path / "config"
        config.mkdir()
        (config / "config.toml").write_text(f'[providers.stub]\napi = "chat"\nbase_url = "{stub.url}/v1"\n')
        monkeypatch.setenv("WORKBENCH_CONFIG", str(config))
        where = ("-w", str(cli.workspace), "--session", session)
        cli("run", "--continue", "--model", "stub/m", *where, "more", code=7)
    messages = stub.requests[0].body["messages"]
    assert [each["content"] for each in messages if each["role"] == "user"] == ["begin", "go on", "more"]
    assert shows(cli, session)[b"sums.py"] == b"one = 10\ntwo = 200\n"
    newest = cli.told("log", "--session", session)[0]
    cli.told("rewind", newest["message_id"], "--session", session)
    assert shows(cli, session) == AFTER


def test_a_part_alone_is_imported_when_asked_for(cli: Importer, talk: Path) -> None:
    told = cli.bring(talk, "--only", "files", "--session", "files")
    assert (told["messages"], told["counts"]["applied"]) == (0, 4)
    assert (shows(cli, "files"), said(cli, "files")) == (AFTER, [])
    told = cli.bring(talk, "--only", "conversation", "--session", "talk")
    assert (told["messages"], told["edits"]) == (12, [])
    assert (shows(cli, "talk")[b"lib/new.py"], said(cli, "talk")) == (None, ["begin", "go on"])


def test_a_dry_run_leaves_nothing_and_a_session_in_use_is_never_written_over(cli: Importer, talk: Path) -> None:
    told = cli.bring(talk, "--dry-run")
    assert (told["dry_run"], told["checkpoints"], told["counts"]["applied"]) == (True, 0, 4)
    assert cli.told("sessions")["sessions"] == []
    assert cli.bring(talk)["session"] == "claude-code-talk"
    assert cli.bring(talk)["session"] == "claude-code-talk-2"
    before = shows(cli, "claude-code-talk")
    assert cli.bring(talk, "--session", "claude-code-talk", code=1)["error"]["code"] == "session_exists"
    assert shows(cli, "claude-code-talk") == before
    assert cli.bring("nobody", code=1)["error"]["code"] == "session_not_found"


def test_a_session_in_which_nothing_was_said_is_refused(cli: Importer, tmp_path: Path) -> None:
    lines(tmp_path / "e.jsonl", {"type": "summary", "summary": "x", "leafUuid": "u", "sessionId": "s"})
    assert cli.bring(tmp_path / "e.jsonl", code=1)["error"]["code"] == "transcript_empty"
    assert cli.told("sessions")["sessions"] == []


def test_the_workspace_is_where_the_agent_worked_or_what_stands_for_it(cli: Importer, tmp_path: Path) -> None:
    below = cli.workspace / "sub"
    below.mkdir()
    session = claude(tmp_path / "d.jsonl", ("go", [write("x", "1"), write(f"{cli.workspace}/y", "2")]), cwd=str(below))
    told = cli.bring(session, here=False)
    assert told["workspace"]["path"] == str(cli.workspace)
    assert {each["path"] for each in cli.told("diff", "--session", told["session"])["changes"]} == {"sub/x", "y"}
    told = cli.bring(session, "--from-dir", str(below), "--session", "moved")
    assert [each["status"] for each in told["edits"]] == ["applied", "outside"]
    assert {each["path"] for each in cli.told("diff", "--session", "moved")["changes"]} == {"x"}


def test_an_import_that_was_killed_leaves_no_session(cli: Importer, tmp_path: Path, state: Path) -> None:
    session = claude(tmp_path / "k.jsonl", *((f"turn {n}", [write(f"f{n}", str(n))]) for n in range(1000)))
    before = snapshot(cli.workspace)
    argv = [sys.executable, "-m", "workbench", "transcripts", "import", str(session), "--session", "k"]
    process = subprocess.Popen([*argv, "-w", str(cli.workspace)], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: list(state.glob("workspaces/*/overlays/k/upper/f1")), "the second turn is replayed")
        assert cli.told("log", "--session", "k", code=1)["error"]["code"] == "overlay_busy"
        refused = cli("sessions", "delete", "k", "-w", str(cli.workspace), "--with-changes", "--yes", "--json", code=1)
        assert json.loads(refused.stdout)["error"]["code"] == "session_busy"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL
    shown = cli("log", "-w", str(cli.workspace), "--session", "k", "--json")
    assert json.loads(shown.stdout) == []
    assert "the import into the session 'k' was cut short" in shown.stderr
    assert snapshot(cli.workspace) == before
    short = claude(tmp_path / "k.jsonl", ("again", [write("f", "1")]))
    assert cli.bring(short, "--session", "k")["counts"]["applied"] == 1


def test_an_import_that_fails_leaves_no_session(cli: Importer, talk: Path) -> None:
    def full(done: int, total: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def fail() -> None:
        found = await load_to_import(LocalPlatform(), SessionRef(agent="claude-code", path=str(talk)))
        assert isinstance(found, ImportedSession)
        await import_session(os.fsencode(cli.workspace), found, session="full", told=full)

    with pytest.raises(OSError, match="No space"):
        anyio.run(fail)
    assert cli.told("sessions")["sessions"] == []
    assert cli.bring(talk, "--session", "full")["counts"]["applied"] == 4
