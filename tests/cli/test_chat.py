"""`workbench chat`, as somebody at a terminal has it: what they type, what the screen shows, and what is on disk."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import anyio
import pytest

from tests.cli.screens import Screen, screen
from tests.conftest import ROOT, Cli
from tests.waiting import wait_until
from workbench.testing import StubCall, StubModelServer, StubReply
from workbench.workspace import Workspace

MODEL = "stub/m"
ASKED = "Allow it? y (yes), n (no), a (this tool, for the rest of the chat)"
ASKS = '[[agent.permissions]]\npermission = "ask"\ntool = "*_file"\n'


class Desk:
    """A small project, a configuration, and chats about it at terminals."""

    def __init__(self, directory: Path) -> None:
        self.project = directory / "project"
        self.project.mkdir()
        self.sums = self.project / "sums.py"
        self.sums.write_text("def add(a, b):\n    return a - b\n")
        self.config = directory / "config"
        self.config.mkdir()
        self.cli = Cli(self.project)

    def configure(self, *stubs: StubModelServer, more: str = "") -> None:
        """Make providers of these: `stub`, `stub1` and so on."""
        tables = [
            f'[providers.stub{number or ""}]\napi = "chat"\nbase_url = "{stub.url}/v1"\n'
            for number, stub in enumerate(stubs)
        ]
        (self.config / "config.toml").write_text("".join((*tables, more)))

    def chat(self, *arguments: str, model: str = MODEL) -> AbstractContextManager[Screen]:
        """The command on a screen; nothing here needs an engine."""
        named = ["--model", model] if model else []
        argv = [sys.executable, "-m", "workbench", "chat", "-w", str(self.project), "--backend", "none"]
        return screen([*argv, *named, *arguments], cwd=ROOT, environment={"TERM": "xterm-256color"})

    def changes(self) -> list[bytes]:
        """The paths that would change."""

        async def find() -> list[bytes]:
            async with Workspace.open(self.project) as workspace:
                return [change.path for change in (await workspace.changes(may_stop=False)).shown]

        return anyio.run(find)


@pytest.fixture
def desk(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(tmp_path)
    monkeypatch.setenv("WORKBENCH_CONFIG", str(made.config))
    monkeypatch.delenv("WORKBENCH_MODEL", raising=False)
    return made


def call(name: str, **arguments: object) -> StubReply:
    return StubReply(calls=[StubCall(name, arguments)])


def said(stub: StubModelServer, number: int = -1) -> list[str]:
    """What the person has said, as a request had it."""
    return [each["content"] for each in stub.requests[number].body["messages"] if each["role"] == "user"]


FIX = call("edit_file", path="sums.py", old_text="a - b", new_text="a + b")


def test_a_chat_from_a_question_to_what_lands_and_back(desk: Desk) -> None:
    replies = [
        StubReply(text="Let me fix it.\n", calls=FIX.calls),
        StubReply(text="The sum is right now."),
        call("write_file", path="notes.txt", content="a secret\n\x1b[31m"),
        StubReply(text="Then I won't."),
        call("write_file", path="more.txt", content="".join(f"line {number}\n" for number in range(9))),
        call("read_file", path="more.txt"),
        StubReply(text="There is more."),
    ]
    with StubModelServer(*replies) as stub:
        desk.configure(stub, more=ASKS)
        with desk.chat() as shown:
            shown.wait("with stub/m: a new conversation", last=">")

            shown.say("Make the sum right.")
            asked = shown.wait(last=ASKED)
            assert asked.index("Let me fix it.") < asked.index("→ edit_file path=sums.py") < asked.index("@@ -1,2 +1,2")
            assert "-    return a - b\n+    return a + b\n" in asked
            assert len(stub.requests) == 1
            shown.say("y")
            done = shown.wait("done after 2 turns, 30 tokens; 1 file changed: /diff, /commit", last=">")
            assert done.index("  Edited sums.py.") < done.index("The sum is right now.")

            shown.say("Write notes.")
            assert "+a secret\n+^[[31m\n" in shown.wait("+++ b/notes.txt", last=ASKED)
            shown.say("n")
            shown.wait("✗ This call wasn't approved.", "Then I won't.", "done after 2 turns", last=">")
            assert desk.changes() == [b"sums.py"]
            assert "a - b" in desk.sums.read_text()

            shown.clear()
            shown.say("/diff")
            assert "-    return a - b\n+    return a + b\n" in shown.wait("/commit lands exactly this", last=">")
            shown.say("/commit the sum was wrong")
            shown.wait("sums.py | 2 +-", "1 change landed as commit", last=">")
            assert "a + b" in desk.sums.read_text()
            assert b"the sum was wrong" in desk.cli("log", "--commits").stdout

            shown.say("And more.")
            shown.wait("+++ b/more.txt", last=ASKED)
            shown.say("y")
            shown.wait("more.txt: 9 lines.", "→ read_file more.txt", last=ASKED)
            shown.say("a")
            shown.wait("… 6 more lines", "There is more.", "1 file changed", last=">")
            shown.clear()
            shown.say("/show")
            shown.wait("→ read_file\n  path: more.txt\n", "9       line 8", last=">")
            assert desk.changes() == [b"more.txt"]

            shown.clear()
            shown.say("/rewind")
            listed = shown.wait(last="Back to before which one? Its number, or Enter to stay:")
            assert re.search(r" 1 .* Make the sum right\.\n +2 .* Write notes\.\n +3 .* And more\.\n", listed)
            shown.say("2")
            shown.wait("10 messages taken back", "/redo takes that back", last=">")
            # What landed stays in the real directory, and is taken back in the overlay.
            assert "a + b" in desk.sums.read_text()
            assert not (desk.project / "more.txt").exists()
            assert desk.changes() == []

            shown.say("/redo")
            shown.wait("10 messages brought back", last=">")
            assert desk.changes() == [b"more.txt"]
            shown.say("/quit")
            assert shown.ended() == 0
            shown.wait("1 file changed, not landed yet: workbench review")
        assert said(stub) == ["Make the sum right.", "Write notes.", "And more."]


def test_an_interrupt_ends_the_run_and_not_the_chat_and_the_way_back_is_there(desk: Desk) -> None:
    slow = StubReply(text="a long answer " * 20, hold_after=4)
    with StubModelServer(FIX, slow, StubReply(text="Here I am.")) as stub:
        desk.configure(stub)
        with desk.chat() as shown:
            shown.wait(last=">")
            shown.say("Go on and on.")
            shown.wait("  Edited sums.py.", "a long")
            shown.type("", "C-c")
            shown.wait("cancelled after 1 turn", "1 file changed: /diff, /commit; /rewind takes back", last=">")
            assert desk.changes() == [b"sums.py"]
            shown.say("/rewind")
            shown.wait("Go on and on.  (not in the conversation: files only)")
            shown.say("1")
            shown.wait("1 path restored, 0 removed", last=">")
            assert desk.changes() == []
            shown.say("Are you there?")
            shown.wait("Here I am.", "done after 1 turn", last=">")
            assert said(stub) == ["Are you there?"]
            shown.type("", "C-c")
            shown.wait("^D ends the chat", last=">")
            shown.type("", "C-d")
            assert shown.ended() == 0


def test_a_message_has_many_lines_and_what_was_typed_comes_back_in_the_next_chat(desk: Desk, state: Path) -> None:
    with StubModelServer(StubReply(text="First answer."), repeat=True) as stub:
        desk.configure(stub)
        with desk.chat() as shown:
            shown.wait(last=">")
            shown.say("one \\")
            shown.type("two", "M-Enter")
            shown.say("three")
            shown.wait("First answer.", "done after", last=">")
            assert said(stub) == ["one \ntwo\nthree"]
            shown.paste("pasted\n/diff\nlines")
            shown.wait("… lines")
            assert len(stub.requests) == 1
            shown.type("", "Enter")
            wait_until(lambda: len(stub.requests) == 2, "the pasted message")
            assert said(stub)[-1] == "pasted\n/diff\nlines"
            shown.wait("… lines", last=">")
            shown.say("//etc is a directory")
            shown.wait("//etc", last=">")
            wait_until(lambda: len(stub.requests) == 3, "the message with a slash")
            assert said(stub)[-1] == "/etc is a directory"
            shown.wait("//etc", last=">")
            shown.type("half a message")
            shown.wait(last="> half a message")
            shown.type("", "C-c")
            shown.wait("> half a message", last=">")
            shown.type("", "C-d")
            assert shown.ended() == 0
        (history,) = state.glob("workspaces/*/chat_history")
        assert history.stat().st_mode & 0o777 == 0o600

        with desk.chat() as shown:
            shown.wait("with stub/m: 6 messages so far", "> /etc is a directory", "First answer.", last=">")
            shown.type("", "Up")
            shown.wait(last="> //etc is a directory")
            shown.type("", "Up", "Enter")
            wait_until(lambda: len(stub.requests) == 4, "the message of before")
            assert said(stub)[-1] == "pasted\n/diff\nlines"
            shown.wait("done after", last=">")
            shown.say("/new")
            shown.wait("an empty conversation", last=">")
            shown.say("Fresh.")
            wait_until(lambda: len(stub.requests) == 5, "the first message of a new conversation")
            assert said(stub) == ["Fresh."]


def test_what_fails_is_said_with_its_next_step_and_the_prompt_comes_back(desk: Desk) -> None:
    refused = StubReply(status=404, body=b'{"error": {"message": "no such model: m"}}')
    with StubModelServer(refused) as stub, StubModelServer(StubReply(text="At last.")) as other:
        desk.configure(stub, other)
        with desk.chat("--key-command", "echo a-secret-key", model="") as shown:
            shown.wait("no model yet", last=">")
            shown.say("Hello?")
            shown.wait("No model is named.", "Say /model PROVIDER/NAME", last=">")
            shown.say("/model nobody/m")
            shown.wait("There's no provider 'nobody'", last=">")
            shown.say("/modle")
            shown.wait("There is no command /modle.", "Do you mean /model?", last=">")
            shown.clear()
            shown.paste(f"/show {'9' * 5000}")
            shown.say("")
            shown.wait("there is no such call in this chat", last=">")
            shown.clear()
            shown.paste(f"/rewind {'9' * 5000}")
            shown.say("")
            shown.wait("/rewind lists them.", last=">")
            shown.say("/model stub/m")
            shown.wait("the model is stub/m", last=">")
            shown.say("Hello?")
            shown.wait("no such model: m", "The conversation is as it was before", last=">")
            assert stub.requests[0].headers["authorization"] == "Bearer a-secret-key"
            shown.say("/model stub1/m")
            shown.wait("the model is stub1/m", last=">")
            shown.say("Hello?")
            shown.wait("At last.", last=">")
            # A key is for the provider that it was given for.
            assert "a-secret-key" not in str(other.requests[0].headers)
            shown.resize(60, 12)
            shown.say("/status")
            shown.wait("chat       2 messages, with stub1/m", last=">")


def test_what_is_risky_lands_only_after_a_word_of_its_own(desk: Desk) -> None:
    hook = call("write_file", path=".envrc", content="echo hooked\n")
    with StubModelServer(hook, StubReply(text="Done.")) as stub:
        desk.configure(stub)
        with desk.chat() as shown:
            shown.wait(last=">")
            shown.say("Hook it.")
            shown.wait("1 file changed", last=">")
            shown.say("/commit")
            shown.wait("RISKY .envrc", last="Land 1 change in the real workspace [y/N]?")
            shown.say("y")
            for answer in ("y", "yes"):
                shown.wait(last="RISKY paths make a host run code or lead out of here. Land them? Type yes:")
                assert not (desk.project / ".envrc").exists()
                shown.say(answer)
                if answer == "y":
                    shown.wait("nothing was applied", last=">")
                    shown.clear()
                    shown.say("/diff")
                    shown.wait("RISKY .envrc", "/commit lands exactly this", last=">")
                    shown.say("/commit")
            shown.wait("1 change landed", last=">")
            assert (desk.project / ".envrc").read_text() == "echo hooked\n"


def test_what_was_typed_before_a_question_is_no_answer_to_it(desk: Desk) -> None:
    held = StubReply(text="I think about it.", calls=FIX.calls, hold_after=2)
    with StubModelServer(held, StubReply(text="Well.")) as stub:
        desk.configure(stub, more=ASKS)
        with desk.chat() as shown:
            shown.wait(last=">")
            shown.say("Make the sum right.")
            shown.wait("\nI")
            shown.type("y", "Enter")
            wait_until(lambda: shown.waiting() == 2, "the keys on their way")
            stub.release()
            shown.wait("+    return a + b", last=ASKED)
            assert desk.changes() == []
            shown.say("n")
            shown.wait("Well.", last=">")
            assert desk.changes() == []


def test_what_is_typed_during_a_run_is_the_next_message_and_is_not_shown_in_the_reply(desk: Desk) -> None:
    held = StubReply(text="A reply in two parts.", hold_after=2)
    with StubModelServer(held, StubReply(text="So be it.")) as stub:
        desk.configure(stub)
        with desk.chat() as shown:
            shown.wait(last=">")
            shown.say("Begin.")
            shown.wait("\nA")
            shown.type("And then?", "Enter")
            wait_until(lambda: shown.waiting() == len("And then?\n"), "the keys on their way")
            assert "And then?" not in shown.text()
            stub.release()
            shown.wait("A reply in two parts.", "> And then?", "So be it.", last=">")
            assert said(stub) == ["Begin.", "And then?"]


def test_the_whole_of_a_call_is_shown_before_it_is_allowed_control_characters_too(desk: Desk) -> None:
    script = "echo harmless" + " " * 200 + "; \x1b[8mrm -rf /\nsecond line"
    replies = [call("shell", command=script), call("edit_file", path="sums.py", old_text="x", new_text="y")]
    with StubModelServer(*replies, StubReply(text="Well.")) as stub:
        desk.configure(stub, more='[[agent.permissions]]\npermission = "ask"\n')
        with desk.chat() as shown:
            shown.wait(last=">")
            shown.say("Go.")
            shown.wait("^[[8mrm -rf /\n  | second line", last=ASKED)
            shown.say("n")
            shown.wait("it would fail: The old text isn't in the file.", last=ASKED)
            shown.say("n")
            shown.wait("Well.", last=">")


def test_a_review_is_stopped_and_ended_in_the_chat_and_its_commit_lands(desk: Desk) -> None:
    with StubModelServer(FIX, StubReply(text="Done.")) as stub:
        desk.configure(stub)
        with desk.chat() as shown:
            shown.wait(last=">")
            shown.say("Make the sum right.")
            shown.wait("1 file changed", last=">")
            shown.say("/review")
            shown.wait("Accept this hunk")
            shown.type("", "C-c")
            shown.wait("what you decided is kept", "stopped", last=">")
            shown.clear()
            shown.say("/review")
            shown.wait("Accept this hunk")
            shown.say("y")
            shown.wait("1 change accepted", last=">")
            shown.say("/commit")
            shown.wait("1 change landed", last=">")
            assert "a + b" in desk.sums.read_text()


def test_a_signal_ends_the_chat_and_leaves_the_terminal_as_it_was(desk: Desk) -> None:
    with StubModelServer() as stub:
        desk.configure(stub)
        command = f"{sys.executable} -m workbench chat -w {desk.project} --backend none --model {MODEL}"
        chat = f"sh -c 'echo $$ >../pid; exec {command}'"
        script = f"stty -a >../before; {chat}; echo ended with $?; stty -a | cmp - ../before && echo terminal as it was"
        with screen(["sh", "-c", script], cwd=desk.project, environment={"PYTHONPATH": str(ROOT)}) as shown:
            shown.wait("a new conversation", last=">")
            os.kill(int((desk.project.parent / "pid").read_text()), signal.SIGTERM)
            shown.wait(f"ended with {128 + signal.SIGTERM}", "terminal as it was")


def test_without_a_terminal_it_says_what_works_there(desk: Desk) -> None:
    refused = desk.cli("chat", "--model", MODEL, code=2)
    assert f"workbench run -w {desk.project} TASK" in refused.stderr.decode()
