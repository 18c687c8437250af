"""`headrace drain | pause | resume`: wishes to a run that lives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.arguments import CaOption, TokenFileOption
from headrace.cli.look import JsonOption, ReplayOption, RunOption

if TYPE_CHECKING:
    from headrace.client.ledger import LiveLedger


def drain(
    worker: Annotated[
        str, typer.Argument(help="The worker, as `headrace status` names it: worker-0.")
    ],
    run: RunOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Send a worker home: it leases nothing more, hands back what is unfinished, and ends.

    Nothing is lost by it; `headrace run` does not start it again.

    Example: `headrace drain worker-1`
    """
    from headrace.cli.find import tool_security
    from headrace.cli.places import Places
    from headrace.cli.sending import send_home

    places = Places.find(run, replay, tool_security(replay, token_file, ca))
    groups = send_home(worker, places)
    typer.echo(f"{worker} goes home; of its {groups} groups it hands back what is unfinished")


def pause(
    run: RunOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Stop feeding and leasing. What is running goes on, and the trainer takes what is finished.

    Example: `headrace pause`
    """
    ledger = _ledger(run, replay, token_file, ca)
    before = ledger.status().paused
    ledger.pause()
    typer.echo("the run was paused already" if before else "the run is paused")


def resume(
    run: RunOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Change nothing: say what a trainer that came now would go on from. Exits with 3 "
            "if all checkpoints are damaged.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Let a paused run go on. With --plan: say from which checkpoint a run would go on.

    A run whose trainer died goes on from its newest checkpoint by itself.

    Example: `headrace resume --plan --run runs/sort-digits`
    """
    if plan:
        from headrace.cli.planning import show_plan
        from headrace.errors import UsageError

        if replay is not None:
            raise UsageError("--plan reads a run's checkpoints: name its directory with --run")
        show_plan(run, as_json=json)
        return
    ledger = _ledger(run, replay, token_file, ca)
    before = ledger.status().paused
    ledger.resume()
    typer.echo("the run goes on" if before else "the run was not paused")


def _ledger(
    run: Path | None, replay: str | None, token_file: Path | None, ca: Path | None
) -> LiveLedger:
    from headrace.cli.find import find_live, tool_security

    return find_live(run, replay, tool_security(replay, token_file, ca))
