"""The main job as a library: run a command on a directory, look at what would change, land it if it succeeded.

python examples/library.py DIRECTORY COMMAND...
"""

import sys
from functools import partial

import anyio

from workbench import Command, Workspace


async def main(directory: str, *argv: str) -> None:
    async with Workspace.open(directory) as workspace:
        result = await workspace.exec(Command(argv, output_limit=1 << 20))
        sys.stdout.buffer.write(result.stdout)
        changes = await workspace.changes()
        for change in changes.shown:
            print(f"{change.kind:<12} {change.path.decode(errors='replace')}")
        if result.exit_code == 0 and not changes.risky:
            landed = await workspace.commit(workspace.reviewed(changes))
            print(f"landed as {landed.committed.commit_id}")
        await workspace.stop()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    anyio.run(partial(main, *sys.argv[1:]))
