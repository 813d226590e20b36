"""A run killed at any moment: the conversation goes on where it was whole, over files that a checkpoint or a step left."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.cli.conftest import leftovers
from tests.conftest import ROOT
from tests.trees import snapshot
from tests.uses.conftest import Configure
from tests.uses.scripts import MODEL, call, say
from tests.waiting import wait_until
from workbench.agent.repair import repaired
from workbench.agent.stores import FileSessionStore
from workbench.protocol.messages import ChatMessage
from workbench.testing import StubModelServer, StubReply
from workbench.vfs.storage import Kind
from workbench.workspace import Workspace

Files = dict[str, str]
Wait = Callable[[subprocess.Popen[bytes], StubModelServer], None]

SEED = int(os.environ.get("WORKBENCH_SEED", "20"))
SECONDS = 180
SAID = "All is done."


def script(name: str) -> list[StubReply]:
    """Four steps that each change the files at one moment, and the end."""
    return [
        call("write_file", path=f"{name}/a", content="one\n"),
        call("shell", command=f"touch {name}/b"),
        call("edit_file", path=f"{name}/a", old_text="one", new_text="two"),
        call("shell", command=f"mkdir {name}/d; mv {name}/b {name}/d/c"),
        say(SAID),
    ]


def states(before: Files, name: str) -> list[Files]:
    """What the files are before the first step, and after each."""
    steps = [
        {f"{name}/a": "one\n"},
        {f"{name}/a": "one\n", f"{name}/b": ""},
        {f"{name}/a": "two\n", f"{name}/b": ""},
        {f"{name}/a": "two\n", f"{name}/d/c": ""},
    ]
    return [before, *({**before, **step} for step in steps)]


class Agent:
    """Somebody's runs in one session, of which some are killed, and what there has to be after each."""

    def __init__(self, root: Path, directory: Path, configure: Configure) -> None:
        self.root = root
        self.bench = Bench(root)
        self.events = directory / "events"
        self._configure = configure
        self._number = 0
        self._files: Files = {}
        self._said: list[str] = []

    @property
    def name(self) -> str:
        """Of the run under way, and of the directory that it works in."""
        return f"run{self._number}"

    @property
    def event_count(self) -> int:
        """How many events the run under way has told."""
        return self.events.read_bytes().count(b"\n") if self.events.exists() else 0

    def begin(self, stub: StubModelServer, *options: str) -> subprocess.Popen[bytes]:
        """Start `workbench run --continue`, in a process group of its own."""
        self._configure(stub)
        self.events.unlink(missing_ok=True)
        task = ["--continue", "--model", MODEL, "--events", str(self.events), *options, f"Do {self.name}."]
        return subprocess.Popen(
            [sys.executable, "-m", "workbench", "run", "-w", str(self.root), *task],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self) -> tuple[int, float]:
        """A run that nobody kills, in the conversation and over the files as they have to be; its events, its seconds."""
        self._number += 1
        begun = time.monotonic()
        with StubModelServer(*script(self.name)) as stub:
            process = self.begin(stub)
            _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 7, errors
        self._check_asked(stub)
        self._said += [f"Do {self.name}.", SAID]
        self._files = states(self._files, self.name)[-1]
        assert self.bench.do(files_of) == self._files
        return self.event_count, time.monotonic() - begun

    def killed(
        self,
        wait: Wait,
        *options: str,
        hold: int | None = None,
        waits: bool = False,
        keeper: bool = False,
    ) -> None:
        """A run that is killed when `wait` is over, whereupon all that is promised is looked at.

        The model never ends its reply `hold`; if it `waits`, its last command doesn't end; with `keeper` the process that
        holds the sandbox is killed, too.
        """
        self._number += 1
        replies = script(self.name)
        if hold is not None:
            replies[hold] = StubReply(text="Let me think.", hold_after=2)
        if waits:
            replies[3] = call("shell", command=f"touch {self.name}/begun; tail -f /dev/null")
        untouched, before = snapshot(self.root), real_files(self.root)
        with StubModelServer(*replies, repeat=True) as stub:
            process = self.begin(stub, *options)
            wait(process, stub)
            found = self.bench.keeper() if keeper else None
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            if found is not None:
                os.kill(found.pid, signal.SIGKILL)
            process.communicate(timeout=SECONDS)
        self._check_asked(stub)
        self._look(hold if hold is not None else 3 if waits else None)
        if "--commit" in options:
            # All of it or nothing, and nothing of its making.
            assert real_files(self.root) in (before, self._files)
        else:
            assert snapshot(self.root) == untouched

    def _check_asked(self, stub: StubModelServer) -> None:
        """Every request held the conversation as it has to be, and what the run had said and done so far."""
        for request in stub.requests:
            told = [message["content"] for message in request.body["messages"] if message["role"] == "user"]
            assert told == [*self._said[::2], f"Do {self.name}."]

    def _look(self, steps: int | None) -> None:
        """Files and conversation are whole; then the last checkpoint is gone back to.

        `steps` is how many of the run have been done, where that's known.
        """
        allowed = states(self._files, self.name)
        where = f"seed {SEED}, {self.name}"
        self.bench.stop()
        left = self.bench.do(files_of)
        begun = left.pop(f"{self.name}/begun", None)
        assert left in (allowed if steps is None else [allowed[steps]]), where
        assert begun is None or steps == 3

        messages = self.bench.do(messages_of)
        assert repaired(messages) == messages
        whole = [*self._said, f"Do {self.name}.", SAID]
        said = [each.content for each in messages if each.role != "tool" and not each.tool_calls]
        assert said in (self._said, whole), where
        self._said = said

        message_id, last = self.bench.do(partial(last_checkpoint, label=f"Do {self.name}."))
        if message_id:
            self.bench.do(lambda workspace: workspace.rewind(message_id, step=last))
        self._files = self.bench.do(files_of)
        assert self._files == allowed[last], where
        assert steps in (None, last), where


def real_files(root: Path) -> Files:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


async def files_of(workspace: Workspace) -> Files:
    view = workspace.view
    return {path.decode(): view.read_bytes(path).decode() for path in view.find(kind=Kind.FILE)}


async def is_there(workspace: Workspace, path: bytes) -> bool:
    return workspace.view.kind(path) is not None


async def messages_of(workspace: Workspace) -> tuple[ChatMessage, ...]:
    detail = await FileSessionStore(workspace.directory).load(workspace.session)
    return detail.messages if detail is not None else ()


async def last_checkpoint(workspace: Workspace, label: str) -> tuple[str, int]:
    """The id of the message that was said in these words and its last step; empty where it has no checkpoint."""
    for entry in workspace.timeline.log():
        if entry.checkpoint.label == label:
            return entry.checkpoint.message_id, entry.steps[-1].purpose.step if entry.steps else 0
    return "", 0


@pytest.fixture
def agent(engine: None, state: Path, tmp_path: Path, configure: Configure) -> Iterator[Agent]:
    root = tmp_path / "project"
    root.mkdir()
    agent = Agent(root, tmp_path, configure)
    yield agent
    agent.bench.stop()
    assert leftovers(state) == []


def asked(count: int) -> Wait:
    """Until the model has been asked so often."""

    def wait(process: subprocess.Popen[bytes], stub: StubModelServer) -> None:
        wait_until(lambda: len(stub.requests) >= count, f"request {count}", seconds=SECONDS)

    return wait


def test_after_a_kill_in_a_reply_or_in_a_command_the_session_goes_on_from_its_last_step(agent: Agent) -> None:
    agent.run()
    agent.killed(asked(4), hold=3)

    def in_command(process: subprocess.Popen[bytes], stub: StubModelServer) -> None:
        begun = partial(is_there, path=f"{agent.name}/begun".encode())
        wait_until(lambda: agent.bench.do(begun), "the command", seconds=SECONDS)

    agent.killed(in_command, waits=True)
    agent.killed(in_command, waits=True, keeper=True)
    agent.run()


def test_after_a_kill_at_a_random_moment_the_session_goes_on_and_all_or_nothing_has_landed(agent: Agent) -> None:
    dice = random.Random(SEED)
    count, seconds = agent.run()

    def told(process: subprocess.Popen[bytes], stub: StubModelServer) -> None:
        events = dice.randrange(count)
        wait_until(lambda: agent.event_count >= events or process.poll() is not None, "events", seconds=SECONDS)

    def for_a_while(process: subprocess.Popen[bytes], stub: StubModelServer, longest: float = seconds) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=dice.uniform(0, longest))

    def landing(process: subprocess.Popen[bytes], stub: StubModelServer) -> None:
        wait_until(lambda: agent.event_count >= count or process.poll() is not None, "its end", seconds=SECONDS)
        for_a_while(process, stub, seconds / 4)

    agent.killed(landing, "--commit", "success")
    agent.killed(told)
    agent.killed(told, keeper=True)
    agent.killed(for_a_while)
    agent.run()
