"""A document that grows turn by turn: the agent takes notes as it reads, and merges them into the document now and then.

    python examples/notes_to_document.py DIRECTORY [MODEL]

MODEL is provider/model, such as anthropic/claude-sonnet-4.6, with its key in the usual variable. Without one a model
answers that only plays a script, so that you can see it work without a key. Notes never are files of the project: they wait
in the overlay, hidden, and what lands is the document.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import anyio

from workbench import Workspace, WorkspaceSession
from workbench.protocol.messages import CompletionRequest
from workbench.testing import ScriptedModel, Turn

DOCUMENT = "OVERVIEW.md"
QUESTIONS = ("What is here?", "What is it for?", "How is it tested?")
MERGE = f"Merge your notes into {DOCUMENT}."


async def main(directory: str, model: str = "") -> None:
    async with (
        Workspace.open(directory, session="notes") as workspace,
        WorkspaceSession.open(workspace, model=model or ScriptedModel(*script())) as session,
    ):
        for question in QUESTIONS:
            await ask(session, f"{question} Look, and note what you find with add_note.")
            await ask(session, MERGE)
            document = await workspace.read(DOCUMENT.encode())
            print(f"--- after: {question}\n{document.decode()}")

        # The last answer wasn't wanted after all: its note and what the merge made of it go, and nothing else.
        message = [each for each in session.agent.detail().messages if each.role == "user"][-2]
        await session.rewind(message.id)
        print(f"--- rewound to before: {QUESTIONS[-1]}\n{(await workspace.read(DOCUMENT.encode())).decode()}")

        changes = await workspace.changes()
        print("would land:", ", ".join(change.path.decode(errors="replace") for change in changes.shown))
        if input("Commit? [y/N] ") == "y":
            await workspace.commit(workspace.reviewed(changes))


async def ask(session: WorkspaceSession, text: str) -> None:
    """One turn, to its end."""
    run = await session.start(text)
    await run.result()


def script() -> Iterator[Turn | Callable[[CompletionRequest], Turn]]:
    """What the scripted model does: for each question it takes a note, and merges it."""
    for number, question in enumerate(QUESTIONS, start=1):
        yield Turn(tool_calls=[Turn.call("list_files")])
        yield Turn(tool_calls=[Turn.call("add_note", {"text": f"- {question} (finding {number})"})])
        yield Turn(text="Noted.")
        yield Turn(tool_calls=[Turn.call("consolidate_notes", {"target_path": DOCUMENT})])
        yield merged
        yield Turn(text="Merged.")


def merged(request: CompletionRequest) -> Turn:
    """What a model would write: here the document with the notes after it."""
    document, *notes = request.messages[-1].content.split("<note>\n")
    text = document.removeprefix("<document>\n").split("\n</document>")[0].strip() or "# Overview\n"
    return Turn(text="\n".join([text, *(note.split("\n</note>")[0] for note in notes)]))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    anyio.run(partial(main, *sys.argv[1:]))
