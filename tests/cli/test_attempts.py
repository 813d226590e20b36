"""`workbench run --attempts` and `workbench attempts`: agents side by side, and the best of what they did."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cli.conftest import leftovers
from tests.cli.terminals import terminal
from tests.conftest import ROOT, Cli
from tests.trees import snapshot
from tests.waiting import wait_until
from workbench.attempts import best
from workbench.protocol.attempts import AttemptRecord, AttemptsGroup, AttemptsReport, AttemptsRunReport, CheckResult
from workbench.protocol.messages import now
from workbench.protocol.runs import EndReason
from workbench.testing import StubCall, StubModelServer, StubReply, StubRequest
from workbench.workspace import Workspace

MODEL = "stub/m"
PRICES = '[models."stub/m"]\nprices = { input = 100000.0, output = 100000.0 }\n'
CHECK = "python3 -c 'from sums import add; assert add(1, 2) == 3'"
RIGHT = "def add(a, b):\n    return a + b\n"


def write(path: str, content: str) -> StubReply:
    return StubReply(calls=[StubCall("write_file", {"path": path, "content": content})])


WRONG = [write("sums.py", "def add(a, b):\n    return 4\n"), StubReply(text="I guess it's 4.")]
BIG = [write("sums.py", "# One\n# two\n# three\n" + RIGHT), StubReply(text="With comments.")]
SMALL = [write("sums.py", RIGHT), StubReply(text="A plus.")]
IDLE = [StubReply(text="It's fine as it is.")]


class Conversations:
    """Gives each conversation a script of its own, in the order in which they begin, and tells them apart by what it said."""

    def __init__(self, *scripts: Sequence[StubReply]) -> None:
        self._scripts = scripts
        self._begun = 0

    def __call__(self, request: StubRequest) -> StubReply | None:
        said = [each for each in request.body["messages"] if each["role"] == "assistant"]
        if not said:
            number = self._begun
            self._begun += 1
        else:
            number = int(said[0]["content"].removeprefix("Script ").split(".")[0])
        script = self._scripts[number]
        reply = script[len(said)]
        return (
            reply
            if said
            else StubReply(text=f"Script {number}. {reply.text}", calls=reply.calls, hold_after=reply.hold_after)
        )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "sums.py").write_text("def add(a, b):\n    return a - b\n")
    return directory


@pytest.fixture
def cli(project: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command on a project of its own, with sandboxes that need no engine."""
    monkeypatch.setenv("WORKBENCH_BACKEND", "namespace")
    return Cli(project)


@pytest.fixture
def serving(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A model that goes through scripts, one a conversation, and that the command asks."""

    @contextmanager
    def serve(*scripts: Sequence[StubReply]) -> Iterator[StubModelServer]:
        with StubModelServer(answer=Conversations(*scripts)) as stub:
            directory = tmp_path / "config"
            directory.mkdir(exist_ok=True)
            provider = f'[providers.stub]\napi = "chat"\nbase_url = "{stub.url}/v1"\n{PRICES}'
            (directory / "config.toml").write_text(provider)
            monkeypatch.setenv("WORKBENCH_CONFIG", str(directory))
            yield stub

    return serve


def attempted(cli: Cli, *arguments: str, code: int = 7) -> AttemptsRunReport:
    done = cli("run", "--model", MODEL, "--json", *arguments, "Make add add.", code=code)
    found = json.loads(done.stdout.splitlines()[-1])
    report = AttemptsRunReport.model_validate(found)
    assert report.model_dump(mode="json") == found
    assert report.exit_code == code
    return report


def listed(cli: Cli) -> AttemptsReport:
    found = json.loads(cli("attempts", "--json").stdout)
    assert AttemptsReport.model_validate(found).model_dump(mode="json") == found
    return AttemptsReport.model_validate(found)


def content(cli: Cli, path: str = "sums.py", session: str = "default") -> str:
    async def look() -> bytes:
        async with Workspace.open(cli.workspace, session=session) as workspace:
            return await workspace.read(path.encode())

    return anyio.run(look).decode()


def changed(cli: Cli, session: str = "default") -> list[str]:
    async def look() -> list[str]:
        async with Workspace.open(cli.workspace, session=session) as workspace:
            return [change.path.decode() for change in (await workspace.changes()).shown]

    return anyio.run(look)


def add(cli: Cli, name: str) -> None:
    """A file of the person's own, in the session's overlay."""

    async def work() -> None:
        async with Workspace.open(cli.workspace) as workspace:
            await workspace.files.write(name.encode(), b"x")

    anyio.run(work)


def running(state: Path) -> list[str]:
    """The sessions whose sandbox runs."""
    return [path.parent.name for path in state.glob("workspaces/*/overlays/*/keeper") if path.is_symlink()]


@pytest.mark.parametrize("scripts", [(WRONG, BIG, SMALL), (SMALL, WRONG, BIG)], ids=["last", "first"])
def test_the_smallest_that_passes_the_check_is_in_the_overlay_whichever_ended_when(
    cli: Cli, project: Path, state: Path, serving: Any, scripts: Sequence[Sequence[StubReply]]
) -> None:
    before = snapshot(project)
    with serving(*scripts):
        report = attempted(cli, "--attempts", "3", "--jobs", "1", "--check", CHECK)
    number = scripts.index(SMALL) + 1
    assert (report.offered, report.session, report.changes, report.text) == (number, "default", 1, "A plus.")
    assert (report.end_reason, report.turns) == (EndReason.STOP, 2)
    assert [each.check for each in report.attempts] == [
        CheckResult.FAILED if script is WRONG else CheckResult.PASSED for script in scripts
    ]
    assert [each.added for each in report.attempts] == [
        {0: 1, 1: 4, 2: 1}[(WRONG, BIG, SMALL).index(s)] for s in scripts
    ]
    assert report.usage.cost_usd == sum(each.usage.cost_usd or 0 for each in report.attempts) > 0
    assert running(state) == []
    # Not what the check wrote: what it saw.
    assert changed(cli) == ["sums.py"]
    assert content(cli) == RIGHT
    assert snapshot(project) == before
    cli("commit", "--digest", cli.digest())
    assert (project / "sums.py").read_text() == RIGHT


def test_side_by_side_each_has_its_own_files_and_people_see_who_does_what(cli: Cli, state: Path, serving: Any) -> None:
    with serving(WRONG, BIG, SMALL) as stub:
        done = cli("run", "--model", MODEL, "--attempts", "3", "--jobs", "3", "--check", CHECK, "Make add add.", code=7)
    assert done.stdout == b"A plus.\n"
    errors = done.stderr.decode()
    for number in (1, 2, 3):
        assert f"[{number}] → write_file path=sums.py" in errors
        assert f"[{number}] done after 2 turns, 30 tokens" in errors
    assert errors.count("] the check passed") == 2
    assert errors.count("AssertionError") == 1
    assert "3 attempts, 3 at a time" in errors
    (group,) = listed(cli).groups
    assert len(stub.requests) == 6
    (best_one,) = [each for each in group.attempts if each.offered]
    assert f"attempt {best_one.attempt} is in the overlay, 1 file changed: workbench review" in errors
    assert sorted(each.text for each in group.attempts) == ["A plus.", "I guess it's 4.", "With comments."]
    for each in group.attempts:
        assert changed(cli, each.session)[-1] == "sums.py"
        assert ("#" in content(cli, session=each.session)) == (each.text == "With comments.")


def test_what_was_taken_over_is_taken_back_with_the_conversation_by_the_message(cli: Cli, serving: Any) -> None:
    add(cli, "mine")
    with serving([*SMALL, *IDLE], BIG) as stub:
        report = attempted(cli, "--attempts", "2", "--jobs", "1")
        assert sorted(changed(cli)) == ["mine", "sums.py"]
        cli("run", "--model", MODEL, "--continue", "--commit", "never", "And?")
    said = [each["content"] for each in stub.requests[-1].body["messages"] if each["role"] == "user"]
    assert said == ["Make add add.", "And?"]
    assert report.message_id is not None
    assert json.loads(cli("rewind", report.message_id, "--json").stdout)["messages"] == 6
    assert changed(cli) == ["mine"]
    cli("redo")
    assert sorted(changed(cli)) == ["mine", "sums.py"]


def test_another_one_is_taken_instead_unless_the_session_went_on(cli: Cli, serving: Any) -> None:
    with serving(SMALL, BIG):
        report = attempted(cli, "--attempts", "2", "--jobs", "1")
    assert report.offered == 1
    cli("attempts", "take", "2")
    assert content(cli).startswith("# One\n")
    assert [each.offered for each in listed(cli).groups[0].attempts] == [False, True]
    cli("attempts", "take", "1")
    assert content(cli) == RIGHT
    assert "no attempt 3" in cli("attempts", "take", "3", code=2).stderr.decode()
    add(cli, "more")
    refused = json.loads(cli("attempts", "take", "2", "--json", code=4).stdout)
    assert refused["error"]["code"] == "session_changed"
    assert sorted(changed(cli)) == ["more", "sums.py"]


def test_the_best_lands_by_itself_after_a_check_that_it_passed_once(cli: Cli, project: Path, serving: Any) -> None:
    once = f"{CHECK} && test ! -e checked && touch checked"
    with serving(WRONG, SMALL):
        report = attempted(cli, "--attempts", "2", "--jobs", "1", "--check", once, "--commit", "success", code=0)
    assert (report.offered, report.changes) == (2, 0)
    assert report.commit_id
    assert (project / "sums.py").read_text() == RIGHT
    assert not (project / "checked").exists()
    assert "session_changed" in cli("attempts", "take", "1", code=4).stderr.decode()


def test_where_no_check_passes_nothing_is_offered(cli: Cli, project: Path, serving: Any) -> None:
    with serving(WRONG, WRONG):
        report = attempted(cli, "--attempts", "2", "--check", CHECK, "--commit", "success", code=6)
    assert (report.offered, report.commit_id, report.text) == (None, None, "")
    assert changed(cli) == []
    cli("attempts", "take", "2")
    assert changed(cli) == ["sums.py"]
    assert "return a - b" in (project / "sums.py").read_text()


def test_without_a_check_what_did_something_goes_before_what_did_nothing_and_programs_get_every_event(
    cli: Cli, serving: Any, tmp_path: Path
) -> None:
    failing = [WRONG[0], StubReply(status=401, text="bad key")]
    options = ["--json", "--events", str(tmp_path / "events"), "--attempts", "3", "--jobs", "1"]
    with serving(IDLE, BIG, failing):
        done = cli("run", "--model", MODEL, *options, "Make add add.", code=7)
    lines = done.stdout.splitlines()
    report = AttemptsRunReport.model_validate_json(lines[-1])
    assert report.offered == 2
    assert [each.state for each in report.attempts] == ["stop", "stop", "error"]
    assert report.attempts[2].error is not None
    assert report.attempts[2].files == 1
    assert (tmp_path / "events").read_bytes().splitlines() == lines[:-1]
    events = [json.loads(line) for line in lines[:-1]]
    for each in report.attempts:
        own = [event for event in events if event["attempt"] == each.attempt]
        assert {event["session_id"] for event in own} == {each.session}
        assert own[-1]["type"] == "end"
    assert {"tool_call", "tool_result", "text", "usage"} <= {event["type"] for event in events}


def test_attempts_share_the_budget_and_a_limit_has_its_own_code(cli: Cli, serving: Any) -> None:
    # Each reply costs 1.5 dollars.
    with serving(SMALL, SMALL):
        report = attempted(cli, "--attempts", "2", "--budget", "2.9", code=5)
    assert [each.state for each in report.attempts] == ["budget", "budget"]


def test_a_question_to_a_person_says_whose_it_is(cli: Cli, serving: Any, tmp_path: Path) -> None:
    with serving(SMALL, SMALL):
        with open(tmp_path / "config" / "config.toml", "a") as file:
            file.write('[[agent.permissions]]\npermission = "ask"\ntool = "write_*"\n')
        argv = [sys.executable, "-m", "workbench", "run", "-w", str(cli.workspace), "--model", MODEL]
        with terminal([*argv, "--attempts", "2", "--jobs", "2", "Make add add."], cwd=ROOT, size=(60, 200)) as shown:
            allowed = int(shown.expect(rb"\[(\d)\] Allow it")[1])
            shown.type(b"y\n")
            shown.expect(rb"\[%d\] Allow it" % (3 - allowed))
            shown.type(b"n\n")
            shown.expect(rb"attempt %d is in the overlay" % allowed)
            assert shown.wait() == 7
    assert changed(cli) == ["sums.py"]


def test_another_command_in_the_session_meanwhile_keeps_what_it_did(cli: Cli, serving: Any) -> None:
    held = [SMALL[0], StubReply(text="A plus.", hold_after=0)]
    with serving(held, held) as stub:
        process = start(cli, "--attempts", "2", "--jobs", "2")
        wait_until(lambda: len(stub.requests) == 4, "both to wait", seconds=60)
        add(cli, "mine")
        stub.release()
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 7, errors
    report = AttemptsRunReport.model_validate_json(output.splitlines()[-1])
    assert report.offered is None
    assert report.waits is not None
    assert report.waits["code"] == "session_changed"
    assert changed(cli) == ["mine"]
    assert changed(cli, report.session) == ["sums.py"]


def test_an_interrupt_ends_all_of_them_with_their_sandboxes(cli: Cli, state: Path, serving: Any) -> None:
    look = StubReply(calls=[StubCall("shell", {"command": "echo 1 >began"})])
    held = [look, StubReply(text="long", hold_after=0)]
    with serving(held, held, held) as stub:
        process = start(cli, "--attempts", "3", "--jobs", "2")
        wait_until(lambda: len(stub.requests) == 4, "two to wait", seconds=60)
        assert len(running(state)) == 2
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    report = AttemptsRunReport.model_validate_json(output.splitlines()[-1])
    assert (report.end_reason, report.offered) == (EndReason.CANCELLED, None)
    assert [each.state for each in report.attempts] == ["cancelled"] * 3
    assert running(state) == []
    assert sorted(each.files for each in report.attempts) == [0, 1, 1]


def test_an_interrupt_comes_through_while_the_forks_are_made(cli: Cli, state: Path, serving: Any) -> None:
    with serving() as stub:
        process = start(cli, "--attempts", "2000")
        wait_until(lambda: list(state.glob("workspaces/*/overlays/default.attempt-3")), "a few forks", seconds=60)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
        assert stub.requests == []
    assert process.returncode == 130, errors
    report = AttemptsRunReport.model_validate_json(output.splitlines()[-1])
    assert (report.end_reason, report.offered, len(report.attempts)) == (EndReason.CANCELLED, None, 2000)
    assert {each.state for each in listed(cli).groups[0].attempts} == {"interrupted"}
    assert len(list(state.glob("workspaces/*/overlays/*"))) < 2000
    cli("attempts", "drop", "--yes")
    assert [path.name for path in state.glob("workspaces/*/overlays/*")] == ["default"]


def test_what_was_killed_is_listed_and_dropped(cli: Cli, state: Path, serving: Any) -> None:
    look = StubReply(calls=[StubCall("shell", {"command": "echo 1 >began"})])
    held = [look, StubReply(text="long", hold_after=0)]
    with serving(held, held, IDLE) as stub:
        process = start(cli, "--attempts", "2", "--jobs", "2")
        wait_until(lambda: len(stub.requests) == 4, "both to wait", seconds=60)
        assert {each.state for each in listed(cli).groups[0].attempts} == {"running"}
        assert "session_busy" in cli("attempts", "drop", "--yes", code=1).stderr.decode()
        process.kill()
        process.communicate(timeout=60)
        assert {each.state for each in listed(cli).groups[0].attempts} == {"interrupted"}
        assert "interrupted" in cli("attempts", "take", "1", code=2).stderr.decode()
        assert "confirmation_required" in cli("attempts", "drop", code=4).stderr.decode()
        cli("attempts", "drop", "--yes")
        assert listed(cli).groups == ()
        assert running(state) == []
        assert [path.name for path in state.glob("workspaces/*/overlays/*")] == ["default"]
        # The session goes on.
        cli("run", "--model", MODEL, "Well?")


def test_later_attempts_have_numbers_of_their_own_and_those_before_stay(cli: Cli, serving: Any) -> None:
    with serving(SMALL, BIG, IDLE, BIG):
        attempted(cli, "--attempts", "2", "--jobs", "1")
        report = attempted(cli, "--attempts", "2", "--jobs", "1")
    assert [each.attempt for each in report.attempts] == [3, 4]
    assert report.offered == 4
    assert [each.attempt for group in listed(cli).groups for each in group.attempts] == [1, 2, 3, 4]
    shown = cli("attempts").stdout.decode().splitlines()
    assert [line.split("\t")[0] for line in shown] == ["", "*", "", "", "*"]
    cli("attempts", "drop", "--yes")
    assert content(cli).startswith("# One\n")


@pytest.mark.engine
def test_in_containers_too_and_none_is_left(engine: None, project: Path, state: Path, serving: Any) -> None:
    cli = Cli(project)
    with serving(WRONG, SMALL):
        report = attempted(cli, "--attempts", "2", "--jobs", "2", "--check", CHECK)
    assert sorted(each.check for each in report.attempts) == [CheckResult.FAILED, CheckResult.PASSED]
    assert report.text == "A plus."
    assert leftovers(state) == []
    assert content(cli) == RIGHT
    cli("stop")
    cli("attempts", "drop", "--yes")


def test_what_counts_is_the_check_then_the_lines_then_the_files_then_the_number() -> None:
    def record(number: int, **more: Any) -> AttemptRecord:
        fields = {"ok": True, "check": CheckResult.PASSED, "checkpoint": "c", "digest": "d", "files": 1, "added": 5}
        return AttemptRecord(number=number, session=str(number), **{**fields, **more})

    def chosen(*records: AttemptRecord, checks: bool = True) -> int | None:
        group = AttemptsGroup(
            message_id="m",
            task="t",
            model="m",
            base="b",
            digest="base",
            last_message="",
            checks=checks,
            started_at=now(),
            attempts=records,
        )
        found = best(group)
        return found.number if found is not None else None

    assert chosen(record(1), record(2, added=2, deleted=2)) == 2
    assert chosen(record(1, files=2), record(2)) == 2
    assert chosen(record(1), record(2)) == 1
    assert chosen(record(1, digest="base", added=0), record(2, added=50)) == 2
    assert chosen(record(1, digest="base", added=0)) == 1
    assert chosen(record(1, check=CheckResult.FAILED), record(2, check=CheckResult.NONE)) is None
    assert chosen(record(1, check=CheckResult.NONE), checks=False) == 1
    assert chosen(record(1, ok=False), record(2, checkpoint=""), checks=False) is None


def start(cli: Cli, *arguments: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "workbench", "run", "-w", str(cli.workspace), "--model", MODEL, "--json", *arguments]
    return subprocess.Popen([*argv, "Make add add."], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
