"""A model works on a directory through an overlay, and what it changed lands only after you said so.

    python examples/agent.py DIRECTORY [MODEL [TASK]]

MODEL is provider/model, such as anthropic/claude-sonnet-4.6, with its key in the usual variable. Without one a model
answers that only plays a script, so that you can see it work without a key.
"""

from __future__ import annotations

import sys
from functools import partial

import anyio

from workbench import Workspace, WorkspaceSession
from workbench.testing import ScriptedModel, Turn

SCRIPT = ScriptedModel(
    Turn(tool_calls=[Turn.call("write_file", {"path": "HELLO.md", "content": "# Hello\n"})]),
    Turn(deltas=["I wrote ", "HELLO.md."]),
)


async def main(directory: str, model: str = "", task: str = "Write a HELLO.md.") -> None:
    async with (
        Workspace.open(directory) as workspace,
        WorkspaceSession.open(workspace, model=model or SCRIPT) as session,
    ):
        async with await session.run(task) as run:
            async for event in run:
                if event.type == "text":
                    print(event.text, end="", flush=True)
                elif event.type == "tool_call":
                    print(f"[{event.tool_call.name}]")
                elif event.type == "error":
                    print(f"failed: {event.error.message}")
            result = await run.result()
        print()

        changes = await workspace.changes()
        for change in changes.shown:
            print(change.kind.value, change.path.decode(errors="replace"))
        if result.ok and input("Commit? [y/N] ") == "y":
            await workspace.commit(workspace.reviewed(changes))
        else:
            await session.rewind(result.message_id or "")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    anyio.run(partial(main, *sys.argv[1:]))
