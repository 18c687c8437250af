"""`headrace circuit close` and `headrace drop`: what a user can do when workers fail."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.arguments import CaOption, TokenFileOption
from headrace.cli.look import ReplayOption, RunOption

app = typer.Typer(no_args_is_help=True, help="What stops all work when all workers fail.")


@app.callback()
def _circuit() -> None:
    pass


@app.command()
def close(
    run: RunOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Close an open circuit, once its cause is mended: what failed is tried again.

    The first success of a worker closes it, too. `headrace status` shows why it is open.

    Example: `headrace circuit close`
    """
    from headrace.cli.find import find_live, tool_security

    ledger = find_live(run, replay, tool_security(replay, token_file, ca))
    was_open = ledger.close_circuit()
    typer.echo(
        "the circuit is closed; what failed is tried again" if was_open else "it was not open"
    )


def drop(
    uids: Annotated[list[str], typer.Argument(metavar="UID", help="The prompts, such as e0r4711.")],
    run: RunOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Give up prompts that nobody can do: they are dropped as cancelled, and not trained on.

    All that are named, or none: only what is pending, running or failed can be dropped.
    `headrace prompts --state failed` lists what failed; `headrace where UID` says with what error.

    Example: `headrace drop e0r17 e0r42`
    """
    from headrace.cli.find import find_live, tool_security

    ledger = find_live(run, replay, tool_security(replay, token_file, ca))
    dropped = set(ledger.drop(uids))
    for uid in dict.fromkeys(uids):
        typer.echo(f"{uid} is dropped" if uid in dropped else f"{uid} was dropped already")
