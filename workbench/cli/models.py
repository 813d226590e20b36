"""`models`: which language models can be asked, and whether one does what an agent needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from workbench.cli import output
from workbench.cli.failure import EXIT_ERROR
from workbench.cli.options import JsonOption, failing
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.models.resolving import Settings
    from workbench.protocol.messages import Usage
    from workbench.protocol.model_reports import ProviderReport, TrialReport

models = typer.Typer(no_args_is_help=False)

KeyCommandOption = Annotated[
    str, typer.Option("--key-command", metavar="CMD", help="Take the key from the first line that this command prints.")
]


@models.callback(invoke_without_command=True)
def default(context: typer.Context, json: JsonOption = False) -> None:
    """List the language models that can be asked, and try one out.

    By itself it lists the providers: which have a key, which answer. Keys come from the usual variables, such as
    ANTHROPIC_API_KEY, or from a key_command in config.toml. A model is named provider/model. `workbench models list
    PROVIDER` names a provider's models, `workbench models test NAME` tries one out.
    """
    if context.invoked_subcommand is None:
        show(provider=None, json=json)


@models.command("list")
def show(
    provider: Annotated[str | None, typer.Argument(metavar="PROVIDER", help="Name the models of this one.")] = None,
    json: JsonOption = False,
) -> None:
    """List the providers, or the models that one of them offers."""
    # Imported here: the command line must not wait for an HTTP client that it seldom needs.
    from workbench.models import discovery, resolving
    from workbench.models.catalog import catalog
    from workbench.protocol.model_reports import ModelsReport

    with failing(json):
        settings = resolving.load()
        if provider is not None:
            resolving.configured(provider, settings)
        wanted = None if provider is None else resolving.canonical(provider)
        found = anyio.run(discovery.look, settings, wanted)
    if json:
        output.write_json(ModelsReport(catalog_date=catalog().date, providers=found))
    elif provider is None:
        _show_providers(found)
    elif found[0].reachable:
        _show_models(found[0], settings)
    else:
        output.error(_failure(found[0]), as_json=False)
        raise typer.Exit(EXIT_ERROR)


@models.command("test")
def try_out(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model, as provider/model.")],
    key_command: KeyCommandOption = "",
    json: JsonOption = False,
) -> None:
    """Ask a model for one small tool call, streamed, and say what worked."""
    from workbench.models import discovery, resolving

    with failing(json):
        model = resolving.resolve(name, key_command=key_command)
        trial = anyio.run(discovery.try_out, model)
    if json:
        output.write_json(trial)
    else:
        _show_trial(trial)
    if not trial.works:
        raise typer.Exit(EXIT_ERROR)


def _show_providers(found: tuple[ProviderReport, ...]) -> None:
    _print(
        ("PROVIDER", "STATE", "KEY", "BASE URL"),
        [(report.name, _state(report), report.key or _variables(report), report.base_url) for report in found],
    )
    if not any(report.reachable for report in found):
        output.say("No provider answers. Set a variable of the column KEY, or start a server on this machine.")


def _failure(report: ProviderReport) -> WorkbenchError:
    """Why a provider lists nothing."""
    if report.error is not None:
        return WorkbenchError(report.error.message, code=report.error.code, hint=report.error.hint)
    hint = "Set it, or name a key_variable or a key_command in config.toml."
    return WorkbenchError(report.missing or f"{report.name} lists no models.", code="auth", hint=hint)


def _state(report: ProviderReport) -> str:
    if report.reachable:
        return f"answers, {output.count(len(report.models), 'model')}"
    if report.missing is not None:
        return report.missing.removeprefix(f"{report.name} has ").partition(":")[0]
    if report.error is not None and report.reachable is False and report.error.code == "network":
        return "doesn't answer"
    return report.error.message if report.error is not None else ""


def _variables(report: ProviderReport) -> str:
    """The variables that would hold its key."""
    from workbench.models.providers import PROVIDERS

    provider = PROVIDERS.get(report.name)
    return " or ".join(f"${name}" for name in provider.keys) if provider and not provider.local else ""


def _show_models(report: ProviderReport, settings: Settings) -> None:
    from workbench.models.resolving import facts

    rows = []
    for name in report.models:
        known = facts(f"{report.name}/{name}", settings)
        window = "" if known.context_window is None else f"{known.context_window:,}"
        costs = ("", "") if known.prices is None else (f"{known.prices.input:g}", f"{known.prices.output:g}")
        rows.append((f"{report.name}/{name}", window, *costs))
    _print(("MODEL", "CONTEXT", "$ IN", "$ OUT"), rows)


def _print(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table at a terminal; elsewhere a line for each, whole, with tabs between."""
    if not sys.stdout.isatty():
        for row in (head, *rows):
            print("\t".join(output.text(cell) or "-" for cell in row))
        return
    table = Table(box=None, pad_edge=False)
    for name in head:
        # Folded: of a URL that is cut nobody can tell where it leads.
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(output.text(cell)) for cell in row))
    Console().print(table)


def _show_trial(trial: TrialReport) -> None:
    rows = [("answers", trial.answered, "" if trial.error is None else trial.error.message)]
    if trial.answered:
        rows += [
            ("streams", trial.pieces > 0, output.count(trial.pieces, "piece")),
            ("calls tools", trial.called, "" if trial.called else f"it ended with {trial.finish_reason}"),
            ("gets the arguments right", trial.arguments_right, ""),
            ("reports its usage", trial.usage is not None, "" if trial.usage is None else _used(trial.usage)),
        ]
    table = Table.grid(padding=(0, 2))
    for what, worked, detail in rows:
        table.add_row("yes" if worked else "no", what, escape(output.text(detail)))
    Console().print(table)
    if trial.error is not None and trial.error.hint:
        output.say(trial.error.hint)


def _used(usage: Usage) -> str:
    tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
    cost = "cost unknown" if usage.cost_usd is None else f"${usage.cost_usd:.6f}"
    return tokens if usage.duration is None else f"{tokens}, {cost}, {usage.duration:.1f} s"
