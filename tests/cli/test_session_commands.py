"""`sessions show`, `export`, `rename` and `delete`: one session by its name, whatever became of its directory."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner, Result

from tests.cli.conftest import Prompt
from tests.cli.screens import screen
from tests.cli.terminals import terminal
from tests.cli.test_sessions import surroundings, use, workbench
from tests.trees import make_tree, snapshot
from tests.waiting import wait_until
from workbench.agent.locks import FileLocker
from workbench.agent.workspace_session import WorkspaceSession
from workbench.cli.app import app
from workbench.protocol.session_reports import DeletedReport, SessionsReport, ShownSessionReport
from workbench.protocol.sessions import SessionDetail
from workbench.review.audit import AuditLog
from workbench.testing import ScriptedModel, StubCall, StubModelServer, StubReply, Turn
from workbench.workspace import Workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_tree(tmp_path / "root")
    return tmp_path / "root"


def talk(root: Path, session: str, prompt: str, *turns: Turn) -> Path:
    """Have a session with a conversation; the conversation's file."""

    async def work() -> Path:
        async with (
            Workspace.open(root, session=session) as workspace,
            WorkspaceSession.open(workspace, model=ScriptedModel(*turns)) as conversation,
        ):
            await (await conversation.start(prompt)).result()
            return Path(workspace.conversation_path, "session.json")

    return anyio.run(work)


def ran(*arguments: str, code: int = 0) -> Result:
    """`workbench sessions`, in this process: starting another one takes most of the time."""
    result = CliRunner().invoke(app, ["sessions", *arguments])
    assert result.exit_code == code, result.output
    return result


def listed() -> dict[str, dict[str, Any]]:
    """What the list tells, by name of the session."""
    found = json.loads(ran("--json").stdout)
    assert SessionsReport.model_validate(found).model_dump(mode="json") == found
    return {session["session"]: session for session in found["sessions"]}


def refused(*arguments: str, code: int = 1) -> dict[str, Any]:
    """The error of a command that fails, as programs get it."""
    error = json.loads(ran(*arguments, "--json", code=code).stdout)["error"]
    assert error["message"].endswith(".")
    return error  # type: ignore[no-any-return]


def shown(*arguments: str) -> ShownSessionReport:
    found = json.loads(ran("show", *arguments, "--json").stdout)
    assert ShownSessionReport.model_validate(found).model_dump(mode="json") == found
    return ShownSessionReport.model_validate(found)


def test_a_conversation_is_listed_shown_exported_and_renamed(
    state: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = StubReply(text="I'll write it.", calls=[StubCall("write_file", {"path": "new", "content": "1"})])
    with StubModelServer(write, StubReply(text="It's there.\nLook."), StubReply(text="Once more.")) as stub:
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "config.toml").write_text(
            f'[providers.stub]\napi = "chat"\nbase_url = "{stub.url}/v1"\n'
        )
        monkeypatch.setenv("WORKBENCH_CONFIG", str(tmp_path / "config"))
        run = ("run", "-w", str(root), "--session", "talks", "--model", "stub/m")
        workbench(*run, "Write a\nnew file", code=7)
        use(root, "silent")
        talked = listed()["talks"]["conversation"]
        assert (talked["title"], talked["messages"], talked["model"]) == ("Write a", 4, "stub/m")
        assert listed()["silent"]["conversation"] is None
        assert "\tWrite a (4 messages)" in ran("list", "-w", str(root)).stdout

        found = shown("talks")
        assert (found.session, found.workspace.path, found.entries) == ("talks", str(root), 1)
        assert found.checkpoints >= 1
        assert found.prompt is not None
        assert found.reply is not None
        assert (found.prompt.content, found.reply.content) == ("Write a\nnew file", "It's there.\nLook.")
        text = ran("show", "talks").stdout
        for words in (str(root), "stub/m", "Write a", "  Look.", "workbench review", "tokens in"):
            assert words in text
        everything = ran("show", "talks", "--messages").stdout
        for words in ("I'll write it.", "write_file", "It's there."):
            assert words in everything
        assert shown("silent").prompt is None
        assert refused("rename", "silent", "It talks")["code"] == "no_conversation"

        workbench("sessions", "rename", "talks", " A file,\nwritten ")
        assert listed()["talks"]["conversation"]["title"] == "A file, written"
        refused("rename", "talks", " ", code=2)
        workbench(*run, "--continue", "Go on", code=7)
        assert (listed()["talks"]["conversation"]["title"], shown("talks").reply.content) == (  # type: ignore[union-attr]
            "A file, written",
            "Once more.",
        )

    target = tmp_path / "talks.json"
    workbench("sessions", "export", "talks", "--format", "json", "-o", str(target))
    exported = SessionDetail.model_validate_json(target.read_bytes())
    (kept,) = state.glob("workspaces/*/sessions/talks/session.json")
    assert exported == SessionDetail.model_validate_json(kept.read_bytes())
    assert [message.role for message in exported.messages] == [
        *("user", "assistant", "tool", "assistant"),
        *("user", "assistant"),
    ]
    before = target.read_bytes()
    ran("export", "talks", "-o", str(target), code=1)
    assert target.read_bytes() == before
    assert "no_conversation" in ran("export", "silent", code=1).stderr


def test_a_session_that_is_open_keeps_the_title_that_it_was_given_elsewhere(state: Path, root: Path) -> None:
    async def work() -> None:
        model = ScriptedModel(Turn(text="Hi"), Turn(text="Hi again"))
        async with (
            Workspace.open(root, session="s") as workspace,
            WorkspaceSession.open(workspace, model=model) as conversation,
        ):
            await (await conversation.start("Hello")).result()
            await anyio.to_thread.run_sync(lambda: ran("rename", "s", "Greetings"))
            await (await conversation.start("Hello again")).result()

    anyio.run(work)
    talked = listed()["s"]["conversation"]
    assert (talked["title"], talked["messages"]) == ("Greetings", 4)


HOSTILE = [
    "<script>alert(1)</script>",
    "a <img src=x onerror=alert(1)> b",
    "![x](http://example.com/x.png)",
    "[click](javascript:alert(1)) [more](data:text/html;base64,x)",
    "\x1b](javascript:alert(1))",
    "```\nnever closed",
    "~~~\n## User, never closed",
    "<!-- never closed",
    "# User\n\nI say: yes",
    "| a | b |\n|---|---|\n| \x1b[31m | \u202e |",
    "[Agent]: http://example.com/\n\nsee [Agent]",
    "\x1b]0;title\x07\x9b2J\rover",
]


def test_what_is_hostile_in_a_conversation_does_nothing_on_a_screen_or_in_a_document(state: Path, root: Path) -> None:
    call = Turn.call("no_such\x1b[31m_tool</details><script>", {"x": "```\n<script>alert(2)</script>\n````"})
    talk(root, "odd", "\x1b[31m|[t](javascript:x)<b>\t`", Turn(text="a", tool_calls=[call]), *map(_said, HOSTILE[:1]))
    for text in HOSTILE[1:]:
        talk(root, "odd", text, _said(text))

    document = ran("export", "odd").stdout
    assert all(character.isprintable() or character in "\n\t" for character in document)
    reader = MarkdownIt("commonmark")
    # One that follows every link that there is.
    reader.validateLink = lambda url: True  # type: ignore[method-assign]
    tokens = reader.parse(document)
    kinds = {each.type for token in tokens for each in (token, *(token.children or ()))}
    assert not kinds & {"html_block", "html_inline", "image", "link_open"}
    headings = [tokens[number + 1].content for number, token in enumerate(tokens) if token.type == "heading_open"]
    said = len(HOSTILE)
    assert [heading.split(",")[0] for heading in headings[1:]] == ["User", "Agent", *["Agent", "User"] * said][
        : 2 * said + 1
    ]

    page = ran("export", "odd", "--format", "html").stdout
    assert "<script" not in page
    assert "<img" not in page
    assert 'href="javascript' not in page
    assert "default-src 'none'" in page
    assert (
        len(SessionDetail.model_validate_json(ran("export", "odd", "--format", "json").stdout).messages) == 2 * said + 2
    )

    lines = ran().stdout.splitlines()
    assert len(lines) == 2
    assert "^[[31m|" in lines[1]
    for command in ([], ["show", "odd"], ["show", "odd", "--messages"], ["export", "odd", "--format", "json"]):
        argv = [sys.executable, "-m", "workbench", "sessions", *command]
        with terminal(argv, cwd=root, environment={**surroundings(), "NO_COLOR": "1", "COLUMNS": "400"}) as screen:
            assert screen.wait() == 0
            assert not {b"\x1b[31m", b"\x1b]", b"\x9b2", b"\x07"} & {
                bad for bad in (b"\x1b[31m", b"\x1b]", b"\x9b2", b"\x07") if bad in screen.screen
            }
            assert "\u202e" not in screen.screen.decode()


def _said(text: str) -> Turn:
    return Turn(text=text)


def test_a_conversation_that_is_damaged_is_said_and_the_others_are_listed(state: Path, root: Path) -> None:
    talk(root, "good", "Hello", Turn(text="Hi"))
    file = talk(root, "bad", "Hello", Turn(text="Hi"))
    for content in (b'{"id": "bad"', b"\xff\x00", b"{}", b"[]", b""):
        file.write_bytes(content)
        found = listed()
        assert found["good"]["conversation"]["messages"] == 2
        assert found["bad"]["conversation"]["problem"].endswith(".")
        assert file.read_bytes() == content
    assert "can't be read" in ran().stdout
    text = ran("show", "bad").stdout
    assert "can't be read" in text
    assert "[state_corrupt]" in ran("export", "bad", code=1).stderr
    assert refused("rename", "bad", "Better")["code"] == "state_corrupt"
    assert [path.name for path in file.parent.glob("session.json*")] == ["session.json"]
    ran("delete", "bad", "--yes")
    assert not file.parent.exists()
    assert listed().keys() == {"good"}


# By name


def test_a_session_is_resumed_from_anywhere(
    state: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(root, "talks", "Hello", Turn(text="Hi"))
    assert "needs a terminal" in ran("resume", "talks", code=2).stderr
    assert "session_not_found" in ran("resume", "talk", code=1).stderr
    (tmp_path / "config").mkdir()
    with StubModelServer(StubReply(text="Hi again")) as stub:
        (tmp_path / "config" / "config.toml").write_text(
            f'[providers.stub]\napi = "chat"\nbase_url = "{stub.url}/v1"\n'
        )
        for name, value in (("CONFIG", str(tmp_path / "config")), ("MODEL", "stub/m"), ("BACKEND", "none")):
            monkeypatch.setenv(f"WORKBENCH_{name}", value)
        argv = [sys.executable, "-m", "workbench", "sessions", "resume", "talks"]
        with screen(argv, cwd=tmp_path, environment={**surroundings(), "TERM": "xterm-256color"}) as shown_there:
            shown_there.wait(last=">")
            shown_there.say("Hello again")
            shown_there.wait("Hi again", last=">")
            shown_there.type("", "C-d")
            wait_until(lambda: listed()["talks"]["conversation"]["messages"] == 4, "the messages are kept")
        (request,) = stub.requests
    assert [each["content"] for each in request.body["messages"][1:]] == ["Hello", "Hi", "Hello again"]


def test_a_name_says_one_session_or_nothing_is_done(state: Path, root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_tree(other)
    for place, name in ((root, "both"), (other, "both"), (root, "fix-parser"), (other, "else")):
        use(place, name)
    error = refused("delete", "both", "--yes", code=2)
    assert error["code"] == "session_ambiguous"
    assert f"-w {root}" in error["hint"]
    assert f"-w {other}" in error["hint"]
    assert shown("both", "-w", str(other)).workspace.path == str(other)
    before_the_command = json.loads(ran("-w", str(root), "--json", "show", "both").stdout)
    assert before_the_command["workspace"]["path"] == str(root)
    assert shown("else").workspace.path == str(other)
    error = refused("show", "fix-parsr")
    assert error["code"] == "session_not_found"
    assert "fix-parser" in error["hint"]
    assert "fix" not in refused("show", "fix-parser", "-w", str(other))["hint"]
    refused("show", "../../overlays/both")
    ran("delete", "both", "-w", str(other), "--yes")
    assert shown("both").workspace.path == str(root)

    def offered(words: str) -> set[str]:
        about = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        done = workbench(cwd=tmp_path, _WORKBENCH_COMPLETE="complete_bash", **about)
        assert done.stderr == b""
        return set(done.stdout.decode().split())

    assert offered("workbench sessions show ") == {"both", "fix-parser", "else"}
    assert offered(f"workbench sessions delete -w {other} ") == {"else"}
    assert offered("workbench sessions rename f") == {"fix-parser"}


def _gone(root: Path) -> None:
    shutil.rmtree(root)


def _replaced(root: Path) -> None:
    root.rename(root.with_name("moved"))
    root.mkdir()


@pytest.mark.parametrize("what", [_gone, _replaced])
def test_a_session_whose_directory_is_gone_is_shown_exported_and_deleted(state: Path, root: Path, what: Any) -> None:
    talk(root, "left", "Hello", Turn(text="Hi"))
    use(root, "left", ("f",))
    what(root)
    found = shown("left", "-w", str(root))
    assert (found.standing, found.entries) == ("missing" if what is _gone else "replaced", 1)
    assert "\n\nHi\n" in ran("export", "left").stdout
    assert "workbench exec" not in ran("show", "left").stdout
    assert refused("delete", "left", "--yes", code=4)["code"] == "changes_not_landed"
    ran("delete", "left", "--with-changes", "--yes")
    assert listed() == {}


def test_the_old_one_of_two_directories_at_a_path_is_told_by_its_own(state: Path, root: Path) -> None:
    old = use(root, files=("f",)).parent.parent
    _replaced(root)
    let_go = workbench("discard", "--replaced", "--json", "-w", str(root)).stdout
    assert json.loads(let_go) == {"version": 1, "let_go": 1}
    new = use(root, files=("f", "g")).parent.parent
    hint = refused("show", "default", "-w", str(root), code=2)["hint"]
    assert f"-w {old}" in hint
    assert f"-w {new}" in hint
    assert (shown("default", "-w", str(old)).entries, shown("default", "-w", str(new)).entries) == (1, 2)


# Deleting


def _blob(content: bytes) -> str:
    """The id that git gives a content."""
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


def _has(store: Path, content: bytes) -> bool:
    return not subprocess.run(["git", "-C", store, "cat-file", "-e", _blob(content)], capture_output=True).returncode


def _of_session(directory: Path, session: str) -> list[str]:
    """Everything in a workspace's directory that is called as a session is."""
    return [str(path) for path in directory.rglob("*") if path.name in (session, f"{session}.lock")]


def test_what_is_deleted_is_gone_and_nothing_else_is_touched(state: Path, root: Path) -> None:
    talk(root, "kept", "Hello", Turn(text="Hi"))
    kept = use(root, "kept", ("mine", "shared"))
    talk(root, "gone", "Hello", Turn(text="Hi"))
    use(root, "gone", ("secret", "shared"))
    directory = kept.parent.parent
    store = directory / "checkpoints.git"
    assert _has(store, b"content of secret")
    assert len(_of_session(directory, "gone")) >= 4
    real, overlay, conversation = snapshot(root), snapshot(kept), snapshot(directory / "sessions" / "kept")
    before = listed()

    assert refused("delete", "gone", "--yes", code=4)["code"] == "changes_not_landed"
    error = refused("delete", "gone", "--with-changes", code=4)
    assert error["code"] == "confirmation_required"
    assert listed().keys() == {"kept", "gone"}

    done = json.loads(workbench("sessions", "delete", "gone", "--with-changes", "--yes", "--json").stdout)
    removed = DeletedReport.model_validate(done)
    assert (removed.session, removed.entries, removed.checkpoints) == ("gone", 2, before["gone"]["checkpoints"])
    assert removed.conversation is not None
    assert _of_session(directory, "gone") == []
    assert not list(state.glob(".removed-*"))
    assert not _has(store, b"content of secret")
    assert all(_has(store, b"content of %b" % name) for name in (b"mine", b"shared"))
    assert snapshot(root) == real
    assert snapshot(kept) == overlay
    assert snapshot(directory / "sessions" / "kept") == conversation
    after = listed()
    assert after.keys() == {"kept"}
    assert after["kept"]["checkpoints"] == before["kept"]["checkpoints"]
    (said,) = AuditLog(str(directory)).records()
    assert (said.action, said.session, said.counts["file"]) == ("delete", "gone", 2)
    assert refused("delete", "gone", "--yes")["code"] == "session_not_found"
    use(root, "gone")
    anew = listed()["gone"]
    assert (anew["entries"], anew["checkpoints"], anew["conversation"]) == (0, 1, None)


def test_on_a_terminal_it_is_said_and_asked(state: Path, root: Path) -> None:
    talk(root, "s", "Hello", Turn(text="Hi"))
    use(root, "s", ("one",))
    for answer, left in ((b"n\n", {"s"}), (b"y\n", set[str]())):
        argv = [sys.executable, "-m", "workbench", "sessions", "delete", "s", "--with-changes"]
        with terminal(argv, cwd=root, environment={**surroundings(), "COLUMNS": "400"}) as screen:
            screen.expect(rb"1 file.*never landed.*checkpoint.*Hello \(2 messages\).*\[y/N\]", seconds=120)
            screen.type(answer)
            assert screen.wait(seconds=120) == (1 if left else 0)
        assert listed().keys() == left


def test_nothing_is_deleted_under_a_command_and_an_idle_sandbox_ends_by_itself(fresh_prompt: Prompt) -> None:
    def delete(code: int) -> Any:
        arguments = ("delete", "default", "--with-changes", "--yes", "--json")
        return json.loads(fresh_prompt("sessions", *arguments, code=code).stdout)

    fresh_prompt.sh("echo new >new")
    overlay = fresh_prompt.overlay()
    fresh_prompt("exec", "-d", "--", "sh", "-c", "echo here >here; exec tail -f /dev/null")
    before = snapshot(fresh_prompt.workspace)
    assert delete(1)["error"]["code"] == "session_busy"
    assert fresh_prompt.sh("cat new").stdout == b"new\n"
    (job,) = (job for job in json.loads(fresh_prompt("ps", "--json").stdout)["jobs"])
    fresh_prompt("kill", job["id"])
    assert delete(0)["sandbox"] == {"backend": "docker", "state": "running", "jobs": 0}
    assert not overlay.exists()
    assert fresh_prompt.leftovers() == []
    assert snapshot(fresh_prompt.workspace) == before


def test_nothing_is_deleted_under_a_run_that_has_no_sandbox(state: Path, root: Path) -> None:
    file = talk(root, "s", "Hello", Turn(text="Hi"))
    kept = file.read_bytes()

    async def during_a_run() -> None:
        async with FileLocker(file.parent.parent / ".runs").lock("s"):
            error = await anyio.to_thread.run_sync(lambda: refused("delete", "s", "--yes"))
            assert error["code"] == "session_busy"
            await anyio.to_thread.run_sync(lambda: workbench("prune", "--older-than", "0s", "-w", str(root)))

    anyio.run(during_a_run)
    assert file.read_bytes() == kept
    assert listed()["s"]["checkpoints"] >= 1
    ran("delete", "s", "--yes")
    assert listed() == {}


def test_a_session_with_damaged_checkpoints_can_be_deleted_one_with_a_damaged_overlay_is_kept(
    state: Path, root: Path
) -> None:
    overlay = use(root, "bad")
    tip = overlay.parent.parent / "checkpoints.git" / "refs" / "workbench" / "bad" / "tip"
    tip.write_bytes(b"\xffnothing\n")
    assert listed()["bad"]["problem"]
    assert "problem" in ran("show", "bad").stdout
    ran("delete", "bad", "--yes")
    assert not tip.exists()
    assert listed() == {}
    shutil.rmtree(use(root, "bad") / "upper")
    assert refused("delete", "bad", "--yes", "--with-changes")["code"] == "state_corrupt"
    assert listed().keys() == {"bad"}


KILLED = """
import os, signal, sys
left, rename = int(sys.argv.pop(1)), os.rename
def renamed(*arguments, **options):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return rename(*arguments, **options)
os.rename = renamed
from workbench.__main__ import main
main()
"""


def test_a_deletion_that_is_killed_half_way_can_be_done_again(state: Path, root: Path) -> None:
    use(root, "other", ("f",))
    killed = half_way = 0
    while True:
        talk(root, "s", "Hello", Turn(text="Hi"))
        directory = use(root, "s").parent.parent
        argv = [sys.executable, "-c", KILLED, str(killed), "sessions", "delete", "s", "--yes"]
        done = subprocess.run(argv, env=surroundings(), stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if not done.returncode:
            break
        assert done.returncode == -9, done
        killed += 1
        # Once all of it has gone, checkpoints are put together.
        if "s" in listed():
            half_way += 1
            ran("delete", "s", "--yes")
        assert listed().keys() == {"other"}
        assert _of_session(directory, "s") == []
    assert half_way >= 2
    assert listed()["other"]["entries"] == 1
