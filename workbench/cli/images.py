"""`images`: the sandbox images of our own."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from workbench.cli import output
from workbench.cli.options import JsonOption, failing
from workbench.protocol.reports import ImageReport, ImagesReport
from workbench.sandbox import images as own

images = typer.Typer(help="List, build and remove the sandbox images.", no_args_is_help=False)

NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="base, python, node, or an agent's.")]


@images.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """List, build and remove the sandbox images."""
    if context.invoked_subcommand is None:
        show(json=False)


@images.command("list")
def show(json: JsonOption = False) -> None:
    """List our own images: which are built, how big they are."""
    with failing(json):
        found = own.list()
    if json:
        reports = tuple(
            ImageReport(name=i.name, reference=i.reference, built=bool(i.identifier), size=i.size, current=i.current)
            for i in found
        )
        output.write_json(ImagesReport(images=reports))
        return
    table = Table("IMAGE", "STATE", "SIZE", box=None, pad_edge=False)
    for image in found:
        state = "built" if image.current else "built of an older recipe" if image.identifier else "not built yet"
        table.add_row(image.reference, state, f"{image.size / 1e6:,.0f} MB" if image.identifier else "")
    Console().print(table)


@images.command()
def build(
    names: NamesArgument = None,
    anew: Annotated[bool, typer.Option("--anew", metavar="", help="Build also what is built.")] = False,
) -> None:
    """Build images, base and python by default: where no registry answers out of Debian packages."""
    with failing(False), Console(stderr=True).status("Building") as progress:

        def report(line: str) -> None:
            if progress.console.is_terminal:
                progress.update(output.visible(line.encode())[: progress.console.width - 4])
            else:
                output.say(line)

        for image in own.list():
            if image.name not in (names or own.BASIC) and image.reference not in (names or ()):
                continue
            if anew or not image.current:
                own.build(image.name, report)
            output.say(f"{image.reference} is built")


@images.command()
def remove(names: NamesArgument = None) -> None:
    """Remove images; the next command that needs one builds it again."""
    with failing(False):
        for image in reversed(own.list()):
            if (not names or image.name in names or image.reference in names) and own.remove(image.name):
                output.say(f"{image.reference} is removed")
