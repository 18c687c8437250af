"""`headrace run`: the whole system on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.arguments import ConfigArgument, Overrides

PlainOption = Annotated[bool, typer.Option("--plain", help="Plain lines instead of the live view.")]


def run(config: ConfigArgument, overrides: Overrides = None, plain: PlainOption = False) -> None:
    """Train on this machine: start every process, watch over them, sum up.

    Ctrl-C stops it in order: the trainer saves its step first. A second one stops it at once. The
    same command again goes on from the newest checkpoint; of a finished run it says so.

    Examples:
    - `headrace run examples/sort_digits.yaml`

    - `headrace run examples/sort_digits.yaml rollout.workers=2 trainer.optim.lr=5e-4`

    Exit codes:

    - 0 done, 130 interrupted

    - 2 something is configured wrongly, or no batch came of the data: all prompts were dropped

    - 3 there are checkpoints, and all are damaged

    - 4 the trainer died and cannot go on, 6 another process could not be kept alive

    - 5 stalled, with `watchdog.on_stall=fail`

    - 1 the run is done, and the audit found its books broken; or anything else
    """
    from headrace.cli.local import run_here

    raise typer.Exit(run_here(config, overrides or (), plain=plain))
