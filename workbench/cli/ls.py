"""`ls`: what the merged view has at a path."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable
from typing import Annotated

import typer

from workbench.cli import output
from workbench.cli.options import Context, JsonOption, SessionOption, WorkspaceOption, run
from workbench.cli.places import inside
from workbench.protocol.reports import EntryReport, ListReport, PathReport
from workbench.vfs.listing import Listed
from workbench.vfs.storage import Kind

_TYPES = {
    Kind.FILE: stat.S_IFREG,
    Kind.DIR: stat.S_IFDIR,
    Kind.SYMLINK: stat.S_IFLNK,
    Kind.FIFO: stat.S_IFIFO,
    Kind.SOCKET: stat.S_IFSOCK,
    Kind.DEVICE: stat.S_IFCHR,
}


def ls(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A directory, or one entry; from the current directory.")
    ] = ".",
    long: Annotated[
        bool, typer.Option("-l", "--long", metavar="", help="Also mark, mode, size, time, and where links lead.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("-a", "--all", metavar="", help="Also what the overlay keeps out of sight: its notes.")
    ] = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
) -> None:
    """List what commands in the sandbox see, whether one runs or not.

    With -l, A marks what is new in the overlay, M what it has a copy of its own of (a directory: something in it). Names
    that begin with a dot are always listed. A name that can't be printed comes escaped; --json has it as it is.
    """
    context = Context(workspace, session, json)
    run(_ls, context, path, long, everything, context=context)


async def _ls(context: Context, path: str, long: bool, everything: bool) -> None:
    async with context.open() as workspace:
        at = inside(workspace.root, path)
        entries, is_stale = await workspace.listing(at, everything=everything)
    if is_stale:
        refresh = output.command("refresh", context.session)
        output.say(f"the real workspace changed under the sandbox, which may still show the old: {refresh}")
    if context.json:
        output.write_json(_report(at, entries))
    elif long:
        _print_long(entries)
    else:
        for entry in entries:
            print(_name(entry))


def _report(at: bytes, entries: Iterable[Listed]) -> ListReport:
    named = ((PathReport.of(entry.path), entry) for entry in entries)
    return ListReport(
        path=PathReport.of(at),
        entries=tuple(
            EntryReport(
                path=path.path,
                path_bytes=path.path_bytes,
                kind=entry.stat.kind.value,
                mode=f"{_TYPES[entry.stat.kind] | entry.stat.mode:06o}",
                size=entry.stat.size,
                mtime_ns=entry.stat.mtime_ns,
                target=PathReport.of(entry.target) if entry.stat.kind is Kind.SYMLINK else None,
                mark=entry.mark or None,
            )
            for path, entry in named
        ),
    )


def _print_long(entries: list[Listed]) -> None:
    width = max((len(str(entry.stat.size)) for entry in entries), default=0)
    for entry in entries:
        found = entry.stat
        mode = stat.filemode(_TYPES[found.kind] | found.mode)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.mtime_ns // 1_000_000_000))
        leads = f" -> {output.path(entry.target)}" if found.kind is Kind.SYMLINK else ""
        print(f"{entry.mark or ' '} {mode} {found.size:>{width}} {when} {_name(entry)}{leads}")


def _name(entry: Listed) -> str:
    shown = output.path(os.path.basename(entry.path) or entry.path)
    return output.bold(shown) if entry.stat.kind is Kind.DIR and sys.stdout.isatty() else shown
