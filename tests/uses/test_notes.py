"""The third use: an agent takes notes turn by turn and merges them into a document, with a rewind in the middle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from tests.trees import snapshot
from tests.uses.conftest import Configure
from tests.uses.scripts import MODEL, call, say
from workbench import Workspace, WorkspaceSession
from workbench.testing import StubModelServer, StubReply

DOCUMENT = "docs/FINDINGS.md"
BEGINNING = "# Findings\n"
SECONDS = 180

MERGES = (3, 6, 8, 10)
FAILED_MERGES = {4: StubReply(text="# Fin", finish="length"), 9: StubReply(status=400, text="That's too much.")}


@dataclass(frozen=True)
class State:
    """What there has to be: the document, the notes that aren't in it yet, and what the person has said."""

    document: str = BEGINNING
    notes: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """A turn with what the model replies in it, or, without replies, a rewind to before it; and what there is then."""

    message: str
    replies: tuple[StubReply, ...]
    after: State


def turn(number: int, message: str, before: State) -> Step:
    """Two notes; in some turns they are merged, or that fails."""
    taken = tuple(f"- {which} of {message}" for which in ("one", "two"))
    replies = [call("add_note", text=note) for note in taken]
    document, notes = before.document, before.notes + taken
    if number in FAILED_MERGES:
        replies += [call("consolidate_notes", target_path=DOCUMENT), FAILED_MERGES[number]]
    elif number in MERGES:
        document, notes = document + "".join(f"{note}\n" for note in notes), ()
        replies += [call("consolidate_notes", target_path=DOCUMENT), say(document)]
    return Step(message, (*replies, say(f"That was {message}.")), State(document, notes, (*before.said, message)))


def ten_turns_with_a_rewind() -> Iterator[Step]:
    """Six turns, back to before the fourth, and on to the tenth."""
    states = [State()]
    for number in range(1, 7):
        step = turn(number, f"turn {number}", states[-1])
        states.append(step.after)
        yield step
    yield Step("turn 4", (), states[3])
    del states[4:]
    for number in range(4, 11):
        step = turn(number, f"turn {number}, again", states[-1])
        states.append(step.after)
        yield step


async def state_of(session: WorkspaceSession) -> State:
    files = session.workspace.files
    names = [name for name, _ in await files.list(b"_notes")]
    return State(
        (await files.read(DOCUMENT.encode())).decode(),
        tuple([(await files.read(b"_notes/" + name)).decode() for name in names]),
        tuple(message.content for message in session.agent.detail().messages if message.role == "user"),
    )


@pytest.mark.anyio
async def test_a_document_grows_over_ten_turns_with_a_rewind_in_the_middle(
    state: Path, tmp_path: Path, configure: Configure
) -> None:
    root = tmp_path / "project"
    (root / "docs").mkdir(parents=True)
    (root / DOCUMENT).write_text(BEGINNING)
    before = snapshot(root)
    steps = list(ten_turns_with_a_rewind())
    with StubModelServer(*(reply for step in steps for reply in step.replies)) as stub:
        configure(stub)
        async with Workspace.open(root) as workspace, WorkspaceSession.open(workspace, model=MODEL) as session:
            for step in steps:
                if step.replies:
                    with anyio.fail_after(SECONDS):
                        await (await session.start(step.message, message_id=step.message)).result()
                else:
                    await session.rewind(step.message)
                assert await state_of(session) == step.after, step.message
                assert snapshot(root) == before
            assert len(steps[-1].after.said) == 10
            changes = await workspace.changes()
            assert [change.path for change in changes.shown] == [DOCUMENT.encode()]
            await workspace.commit(workspace.reviewed(changes))
    assert (root / DOCUMENT).read_text() == steps[-1].after.document
    assert sorted(os.listdir(root)) == ["docs"]
