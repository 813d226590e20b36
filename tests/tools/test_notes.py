"""Notes that are taken one by one and merged into a document."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.tools.called import Called
from workbench.errors import ModelRequestError
from workbench.files import Files
from workbench.protocol.messages import CompletionRequest, CompletionResponse, ModelInfo, TokenDelta
from workbench.tools.standard import note_tools
from workbench.workspace import Workspace

pytestmark = pytest.mark.anyio


class Merger:
    """A model that answers with every note it's given after the document, and does something before that."""

    info = ModelInfo(id="merger", provider="test")

    def __init__(self) -> None:
        self.before: Callable[[], Awaitable[object]] | None = None
        self.finish_reason = "stop"
        self.requests: list[CompletionRequest] = []

    async def generate(
        self, request: CompletionRequest, on_delta: Callable[[TokenDelta], None] | None = None
    ) -> CompletionResponse:
        self.requests.append(request)
        if self.before is not None:
            await self.before()
        asked = request.messages[-1].content
        document = asked.split("<document>\n")[1].split("\n</document>")[0]
        notes = [part.split("\n</note>")[0] for part in asked.split("<note>\n")[1:]]
        return CompletionResponse(
            content="\n".join(filter(None, (document.strip(), *notes))), finish_reason=self.finish_reason
        )


@pytest.fixture
def merger() -> Merger:
    return Merger()


@pytest.fixture
def call(workspace: Workspace, merger: Merger) -> Called:
    return Called(note_tools(workspace, merger))


def notes(workspace: Workspace) -> list[bytes]:
    try:
        return [name for name, _ in workspace.view.entries(b"_notes")]
    except FileNotFoundError:
        return []


async def test_notes_are_merged_in_the_order_in_which_they_were_taken_and_are_gone(
    workspace: Workspace, call: Called, merger: Merger
) -> None:
    """ "register add_note(text) that writes _notes/<uuid>.md, and consolidate_notes(target_path) that reads the notes and
    the target, merges them with one llm.Collect call, writes the target and deletes the notes"."""
    assert await call("list_notes") == "There are no notes."
    assert await call("consolidate_notes", target_path="doc.md") == "There are no notes to merge."
    for number in range(20):
        await call("add_note", text=f"note {number}")
    assert len({uuid.UUID(name.decode().removesuffix(".md")) for name in notes(workspace)}) == 20
    listed = await call("list_notes")
    assert [line for line in listed.splitlines() if line.startswith("note ")] == [f"note {n}" for n in range(20)]
    assert "20 notes" in await call("consolidate_notes", target_path="docs/doc.md")
    assert workspace.view.read_bytes(b"docs/doc.md") == b"".join(b"note %d\n" % number for number in range(20))
    assert notes(workspace) == []
    assert len(merger.requests) == 1
    await call("add_note", text="later")
    await call("consolidate_notes", target_path="docs/doc.md")
    assert workspace.view.read_bytes(b"docs/doc.md").endswith(b"note 19\nlater\n")


async def test_notes_are_no_files_of_the_workspace(workspace: Workspace, call: Called) -> None:
    """ "Set HideHiddenPaths so the notes stay out of listings (the _ prefix)"; here: the scratch directory always
    does."""
    await call("add_note", text="hidden")
    assert list(workspace.view.find(b"")) == []
    changes = await workspace.changes()
    assert [change.path for change in changes.shown] == []


async def test_a_note_added_during_the_merge_survives_it(workspace: Workspace, call: Called, merger: Merger) -> None:
    await call("add_note", text="first")

    async def add() -> None:
        await call("add_note", text="meanwhile")

    merger.before = add
    assert await call("consolidate_notes", target_path="doc.md") == "Merged 1 note into doc.md."
    assert workspace.view.read_bytes(b"doc.md") == b"first\n"
    assert "meanwhile" in await call("list_notes")


@pytest.mark.parametrize("failure", ["error", "length", "changed", "empty", "binary"])
async def test_a_merge_that_fails_changes_nothing(
    workspace: Workspace, call: Called, merger: Merger, failure: str
) -> None:
    await call("add_note", text=" " if failure == "empty" else "first")
    workspace.view.write_bytes(b"doc.md", b"\0" if failure == "binary" else b"" if failure == "empty" else b"old\n")
    merger.finish_reason = "length" if failure == "length" else "stop"

    async def fail() -> None:
        if failure == "error":
            raise ModelRequestError("The model is gone.", provider="test", code="network")
        if failure == "changed":
            workspace.view.write_bytes(b"doc.md", b"person's\n")

    merger.before = fail
    before = notes(workspace)
    await call.refused("consolidate_notes", target_path="doc.md")
    assert notes(workspace) == before
    assert workspace.view.read_bytes(b"doc.md") in (b"old\n", b"person's\n", b"", b"\0")


async def test_a_merge_cut_short_anywhere_is_whole_or_nothing_at_the_next_call(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CutError(BaseException):
        pass

    for steps in range(9):
        target = f"doc{steps}.md"
        async with Workspace.open(root, session=f"s{steps}") as workspace:
            call = Called(note_tools(workspace, Merger()))
            for number in range(3):
                await call("add_note", text=f"note {number}")
            left = [steps]
            with monkeypatch.context() as patched:
                for name in ("write", "unlink", "makedirs"):
                    patched.setattr(Files, name, cut(getattr(Files, name), left, CutError))
                try:
                    await call("consolidate_notes", target_path=target)
                except CutError:
                    pass
                else:
                    assert left[0] >= 0
                    break
        async with Workspace.open(root, session=f"s{steps}") as workspace:
            call = Called(note_tools(workspace, Merger()))
            listed = await call("list_notes")
            is_written = workspace.view.kind(target.encode()) is not None
            assert listed.count("note ") == (0 if is_written else 3)
            assert len(notes(workspace)) == (0 if is_written else 3)
    else:
        pytest.fail("the merge never came to its end")


def cut(change: Callable[..., Awaitable[None]], left: list[int], error: type[BaseException]) -> Callable[..., Any]:
    """A change that is made so many times, and then never more."""

    async def made(*arguments: Any, **options: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise error
        await change(*arguments, **options)
        await anyio.lowlevel.checkpoint()

    return made
