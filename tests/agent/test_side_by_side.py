"""Two objects of one session over one history and one locker, in one process and in several."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import anyio
import anyio.to_thread
import pytest

from tests.conftest import ROOT
from workbench.agent.history import FileHistory, History, MemoryHistory, StoreHistory
from workbench.agent.locks import FileLocker, LocalLocker, Locker
from workbench.agent.manager import SessionManager
from workbench.agent.models import ModelRegistry
from workbench.agent.repair import repaired
from workbench.agent.session import AgentSession
from workbench.agent.stores import FileSessionStore, MemorySessionStore
from workbench.errors import WorkbenchError
from workbench.protocol.events import SessionEvent
from workbench.protocol.messages import ChatMessage, CompletionRequest, ModelInfo
from workbench.protocol.sessions import CreateSessionRequest
from workbench.testing.conversations import session as stored_session
from workbench.testing.scripted_model import ScriptedModel, Turn

pytestmark = pytest.mark.anyio

# What is tested goes on in other processes.
one_loop = pytest.mark.parametrize("anyio_backend", ["asyncio"])

Kept = Callable[[Path], tuple[History, Locker]]

KEPT: dict[str, Kept] = {
    "memory": lambda place: (MemoryHistory(), LocalLocker()),
    "files": lambda place: (FileHistory(place), FileLocker(place)),
    "store": lambda place: (StoreHistory(MemorySessionStore()), LocalLocker()),
    "store in files": lambda place: (StoreHistory(FileSessionStore(place)), FileLocker(place)),
}


def turns(name: str, count: int) -> list[Turn]:
    """The replies of so many runs: a call of a tool that isn't there, then a last word."""
    return [
        turn
        for number in range(count)
        for turn in (Turn(tool_calls=[Turn.call("missing")]), Turn(text=f"answer {name}.{number}"))
    ]


def questions(messages: tuple[ChatMessage, ...]) -> list[str]:
    """What was asked, in order, of a transcript that is nothing but whole runs of `turns`."""
    asked = []
    assert len(messages) % 4 == 0
    for start in range(0, len(messages), 4):
        user, call, result, last = messages[start : start + 4]
        assert [each.role for each in (user, call, result, last)] == ["user", "assistant", "tool", "assistant"]
        assert result.tool_call_id == call.tool_calls[0].id
        assert last.content == user.content.replace("question", "answer")
        asked.append(user.content)
    return asked


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
async def test_objects_of_one_session_run_at_once_and_their_runs_do_not_mix(kept: Kept, tmp_path: Path) -> None:
    """Two objects of one session id over shared History and Locker run concurrently without interleaving.
    strands-agents/harness-sdk 1176, lucianfialho/effect-gates 64."""
    history, locker = kept(tmp_path)
    models = {name: ScriptedModel(*turns(name, 4)) for name in "ab"}

    async def work(name: str) -> None:
        session = AgentSession(id="tenant-7/s", history=history, locker=locker, model=models[name])
        async with session:
            streams = [session.run(f"question {name}.{number}") for number in range(4)]
            for stream in streams:
                assert (await stream.result()).status == "completed"

    async with anyio.create_task_group() as tasks:
        for name in models:
            tasks.start_soon(work, name)
    asked = questions(await history.read("tenant-7/s"))
    assert sorted(asked) == sorted(f"question {name}.{number}" for name in "ab" for number in range(4))
    # Each saw what had been said before it, whoever had said it.
    for model in models.values():
        for request in model.requests[::2]:
            seen = [message.content for message in request.messages if message.role == "user"]
            assert seen == asked[: len(seen)]


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
async def test_a_fresh_object_for_each_request_goes_on_where_the_last_one_was(kept: Kept, tmp_path: Path) -> None:
    """Building a fresh Session per request is fine as long as History and Locker are shared."""
    history, locker = kept(tmp_path)
    for number in range(3):
        model = ScriptedModel(Turn(text=f"answer {number}"))
        async with AgentSession(id="s", history=history, locker=locker, model=model) as session:
            await session.start(f"question {number}").result()
        seen = [message.content for message in model.requests[0].messages if message.role == "user"]
        assert seen == [f"question {each}" for each in range(number + 1)]


_WORKING = """
import sys, anyio
from pathlib import Path
from tests.agent.test_side_by_side import KEPT, turns
from workbench.agent.manager import SessionManager
from workbench.agent.models import ModelRegistry
from workbench.agent.session import AgentSession
from workbench.testing.scripted_model import ScriptedModel
async def main(kind, place, name):
    history, locker = KEPT[kind](Path(place))
    model = ScriptedModel(*turns(name, 5))
    async with AgentSession(id="s", history=history, locker=locker, model=model) as session:
        for number in range(5):
            await session.run(f"question {name}.{number}").result()
anyio.run(main, *sys.argv[1:])
"""


def python(source: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


@one_loop
@pytest.mark.parametrize("kind", ["files", "store in files"])
async def test_processes_share_one_session_in_files_and_their_runs_do_not_mix(kind: str, tmp_path: Path) -> None:
    """Runs of the same ID are serialized by the Locker; with several replicas none interleaves a transcript."""
    children = [python(_WORKING, kind, tmp_path, name) for name in "ab"]
    for child in children:
        await anyio.to_thread.run_sync(child.communicate)
        assert child.returncode == 0
    history, _ = KEPT[kind](tmp_path)
    asked = questions(await history.read("s"))
    assert sorted(asked) == sorted(f"question {name}.{number}" for name in "ab" for number in range(5))
    for name in "ab":
        assert [each for each in asked if f" {name}." in each] == [f"question {name}.{number}" for number in range(5)]


_STAYING = """
import sys, anyio
from pathlib import Path
from tests.agent.test_side_by_side import KEPT
from workbench.agent.manager import SessionManager
from workbench.agent.models import ModelRegistry
from workbench.agent.session import AgentSession
from workbench.testing.scripted_model import ScriptedModel, Turn
async def main(kind, place):
    history, locker = KEPT[kind](Path(place))
    def stay(request):
        print("asked", flush=True)
        return Turn(until=anyio.Event())
    async with AgentSession(id="s", history=history, locker=locker, model=ScriptedModel(stay)) as session:
        await session.run("a question").result()
anyio.run(main, *sys.argv[1:])
"""


@one_loop
@pytest.mark.parametrize("kind", ["files", "store in files"])
async def test_a_process_killed_in_a_run_leaves_the_transcript_as_it_was_and_the_lock_free(
    kind: str, tmp_path: Path
) -> None:
    """A failed run leaves History as it was, so a retry starts from a consistent transcript; kill -9 in a run, too."""
    history, locker = KEPT[kind](tmp_path)
    model = ScriptedModel(*turns("a", 1), *turns("b", 1))
    async with AgentSession(id="s", history=history, locker=locker, model=model) as session:
        await session.start("question a.0").result()
        before = await history.read("s")
        child = python(_STAYING, kind, tmp_path)
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "asked\n"
        waiting = session.run("question b.0")
        child.kill()
        child.wait()
        child.stdout.close()
        child.stdin.close()
        with anyio.fail_after(120):
            await waiting.result()
    after = await history.read("s")
    assert after[: len(before)] == before
    assert questions(after) == ["question a.0", "question b.0"]


_MANAGING = """
import sys, anyio
from workbench.agent.manager import SessionManager
from workbench.agent.models import ModelRegistry
from workbench.agent.stores import FileSessionStore
from workbench.protocol.sessions import CreateSessionRequest
from workbench.testing.scripted_model import ScriptedModel, Turn
from workbench.agent.options import SessionOptions
from workbench.tools.base import tool
from workbench.tools.registry import ToolRegistry
@tool()
async def stay_in_tool() -> None:
    "Stay."
    print("asked", flush=True)
    await anyio.Event().wait()
def stay_in_model(request):
    print("asked", flush=True)
    return Turn(until=anyio.Event())
async def main(place, where):
    tools = ToolRegistry()
    tools.register(stay_in_tool)
    models = ModelRegistry()
    second = stay_in_model if where == "model" else Turn(tool_calls=[Turn.call("stay_in_tool")])
    models.register(ScriptedModel(Turn(text="answer 1"), second))
    options = SessionOptions(tools=tools)
    store = FileSessionStore(place)
    async with SessionManager(models=models, default_workspace="/w", store=store, options=options) as sessions:
        await sessions.create(CreateSessionRequest(id="s"), tenant_id="t")
        await sessions.send("s", "question 1").result()
        await sessions.send("s", "question 2").result()
anyio.run(main, *sys.argv[1:])
"""


@one_loop
@pytest.mark.parametrize("where", ["model", "tool"])
async def test_a_process_killed_in_a_run_is_followed_by_one_that_goes_on_from_the_last_whole_run(
    where: str, tmp_path: Path
) -> None:
    """MoonshotAI/kimi-code 269: killed in a run; every later message and summary works, and nothing is said to run still."""
    child = python(_MANAGING, tmp_path, where)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "asked\n"
    child.kill()
    child.wait()
    child.stdout.close()
    child.stdin.close()
    store = FileSessionStore(tmp_path)
    models = ModelRegistry()
    info = ModelInfo(id="scripted", provider="p", context_window=1_000)
    model = ScriptedModel(Turn(text="answer 3"), Turn(text="SUMMARY"), Turn(text="answer 4"), info=info)
    models.register(model)
    heard: list[SessionEvent] = []
    logged = await store.event_log.read("s")
    async with SessionManager(models=models, default_workspace="/w", store=store) as sessions:
        (summary,) = sessions.list()
        assert (summary.id, summary.is_running, summary.message_count, summary.tenant_id) == ("s", False, 2, "t")
        assert sessions.get("s").detail().pending == ()
        sessions.subscribe(heard.append)
        await sessions.send("s", "question 3").result()
        contents = [message.content for message in sessions.get("s").detail().messages]
        long = "question 4" * 200
        await sessions.send("s", long).result()
    assert contents == ["question 1", "answer 1", "question 3", "answer 3"]
    system, summary_of_it, asked = model.requests[-1].messages
    assert (system.role, summary_of_it.content[-7:], asked.content) == ("system", "SUMMARY", long)
    assert await store.event_log.read("s") == (*logged, *heard)
    numbers = [event.seq for event in (*logged, *heard)]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_done_to_one_session_at_once_leaves_whole_runs_and_one_row_of_numbers(
    seed: int, tmp_path: Path
) -> None:
    """Rewinds, resets, renames, cancels and runs, in the midst of each other, by two objects over one store."""
    random = Random(seed)
    store, locker = FileSessionStore(tmp_path), FileLocker(tmp_path / "locks")
    await store.save(stored_session("s"))

    def answer(request: CompletionRequest) -> Turn:
        broken = RuntimeError("broken") if random.random() < 0.1 else None
        calls = [Turn.call("missing")] if random.random() < 0.4 else []
        return Turn(reasoning="r", text="ok", tool_calls=calls, error=broken)

    agents = [
        AgentSession(
            id="s",
            history=StoreHistory(store),
            locker=locker,
            model=ScriptedModel(*[answer] * 2_000),
            log=store.event_log,
        )
        for _ in range(2)
    ]
    heard: list[list[int]] = [[], []]
    for agent, numbers in zip(agents, heard, strict=True):
        agent.subscribe(lambda event, numbers=numbers: numbers.append(event.seq))  # type: ignore[misc]

    async def work(agent: AgentSession) -> None:
        for _ in range(10):
            with contextlib.suppress(WorkbenchError):
                match random.choice(("run", "run", "start", "rewind", "reset", "rename", "cancel")):
                    case "run":
                        async with agent.run("q") as run:
                            assert [event.type async for event in run][-1] == "end"
                    case "start":
                        await agent.start("q").wait_finished()
                    case "rewind":
                        asked = [each.id for each in agent.detail().messages if each.role == "user"]
                        await agent.rewind(random.choice(asked or ["none"]))
                    case "reset" if random.random() < 0.3:
                        await agent.reset()
                    case "rename":
                        await agent.rename("title")
                    case "cancel":
                        agent.cancel()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for agent in agents * 2:
                tasks.start_soon(work, agent)
        for agent in agents:
            await agent.close()
    kept = await store.load("s")
    assert kept is not None
    assert repaired(kept.messages) == kept.messages
    assert [each.role for each in kept.messages[:1]] in ([], ["user"])
    assert all(numbers == sorted(numbers) for numbers in heard)
    assert sorted(heard[0] + heard[1]) == list(range(1, len(heard[0] + heard[1]) + 1))


_TALKING = """
import sys, anyio
from workbench.agent.locks import FileLocker
from workbench.agent.manager import SessionManager
from workbench.agent.models import ModelRegistry
from workbench.agent.stores import FileSessionStore
from workbench.testing.scripted_model import ScriptedModel, Turn
async def main(place, runs):
    models = ModelRegistry()
    turn = lambda request: Turn(reasoning="secret thought", deltas=tuple("abcdefgh"))
    models.register(ScriptedModel(*[turn] * int(runs)))
    store = FileSessionStore(place)
    async with SessionManager(
        models=models, default_workspace="/w", store=store, locker=FileLocker(place + "/locks")
    ) as sessions:
        session = sessions.get("s")
        session.subscribe(lambda event: print(event.seq, event.type, flush=True))
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(int(runs)):
            await session.run(f"question {number}").result()
            await session.rename(f"title {number}")
anyio.run(main, *sys.argv[1:3], backend=sys.argv[3])
"""


@one_loop
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("killed", [False, True])
async def test_processes_number_the_events_of_one_session_together(backend: str, killed: bool, tmp_path: Path) -> None:
    """ "`seq` (per session, from 1, no gaps)"; `Last-Event-ID` from a numbered log: a number is one event's, whoever gave it.

    Also where one of the processes is killed in the midst of it.
    """
    store = FileSessionStore(tmp_path)
    models = ModelRegistry()
    models.register(ScriptedModel())
    heard: dict[int, str] = {}
    async with SessionManager(models=models, default_workspace="/w", store=store) as sessions:
        sessions.subscribe(lambda event: heard.update({event.seq: event.type}))
        await sessions.create(CreateSessionRequest(id="s"))
    children = [python(_TALKING, tmp_path, 1_000 if killed and name == "a" else 5, backend) for name in "abc"]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    begun: list[str] = []
    if killed:
        victim = children[0].stdout
        assert victim is not None
        begun = [victim.readline() for _ in range(30)]
        children[0].kill()
    for child in children:
        lines, _ = await anyio.to_thread.run_sync(child.communicate)
        # Of a process that was killed the last line may be half of one.
        whole = [*begun, *(line for line in lines.splitlines(keepends=True) if line.endswith("\n"))]
        begun = []
        theirs = [(int(number), type) for number, type in map(str.split, whole)]
        assert theirs
        assert [number for number, _ in theirs] == sorted({number for number, _ in theirs})
        assert not heard.keys() & dict(theirs).keys()
        heard.update(theirs)
    logged = {event.seq: event.type for event in await store.event_log.read("s")}
    assert sorted(logged) == list(logged)
    assert {number: type for number, type in heard.items() if type != "thinking"}.items() <= logged.items()
    if not killed:
        assert sorted(heard) == list(range(1, len(heard) + 1))
        assert list(heard.values()).count("run.completed") == 15
