"""The same as `agent.py` for programs without an event loop: a model works, and what it changed lands if you say so.

    python examples/blocking.py DIRECTORY [MODEL [TASK]]

Without a MODEL one answers that only plays a script.
"""

from __future__ import annotations

import sys

from workbench.blocking import Workspace, WorkspaceSession
from workbench.testing import ScriptedModel, Turn

SCRIPT = ScriptedModel(
    Turn(tool_calls=[Turn.call("write_file", {"path": "HELLO.md", "content": "# Hello\n"})]),
    Turn(deltas=["I wrote ", "HELLO.md."]),
)


def main(directory: str, model: str = "", task: str = "Write a HELLO.md.") -> None:
    with Workspace.open(directory) as workspace, WorkspaceSession.open(workspace, model=model or SCRIPT) as session:
        for event in session.run(task):
            if event.type == "text":
                print(event.text, end="", flush=True)
        print()

        changes = workspace.changes()
        for change in changes.shown:
            print(change.kind.value, change.path.decode(errors="replace"))
        result = session.result()
        if result.ok and input("Commit? [y/N] ") == "y":
            workspace.commit(workspace.reviewed(changes))
        else:
            session.rewind(result.message_id or "")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
