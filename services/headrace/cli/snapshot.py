"""`headrace snapshot`: has a running run saved now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.arguments import CaOption, TokenFileOption
from headrace.cli.look import ReplayOption, RunOption

if TYPE_CHECKING:
    from headrace.v1.trainer_pb2 import GetTrainerStatusResponse


def snapshot(
    run: RunOption = None,
    replay: ReplayOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    wait_s: Annotated[
        float, typer.Option("--wait", metavar="S", min=0, help="How long to wait for it.")
    ] = 1800.0,
) -> None:
    """Have the whole run saved at the end of the step that is being trained, and wait for it.

    Training goes on meanwhile.

    Example: `headrace snapshot --run runs/sort-digits`
    """
    from headrace.cli.find import tool_security
    from headrace.cli.places import Places
    from headrace.client.checkpoints import take_snapshot
    from headrace.rpc.channel import open_sync_channel

    places = Places.find(run, replay, tool_security(replay, token_file, ca))
    with open_sync_channel(places.find_process("trainer"), places.security) as channel:
        step = take_snapshot(lambda: channel, wait_s=wait_s, watch=_Progress().tell)
    typer.echo(f"step {step} is saved")


class _Progress:
    """Says a line each time something has changed."""

    def __init__(self) -> None:
        self._said = ""

    def tell(self, step: int, trainer: GetTrainerStatusResponse) -> None:
        """Say where the trainer is."""
        from headrace.v1.trainer_pb2 import TRAINER_PHASE_SAVING

        if trainer.saved_step >= step:
            return
        if trainer.phase == TRAINER_PHASE_SAVING:
            words = f"step {step} is being copied"
        elif trainer.step <= step:
            words = f"step {step} is being trained, and is saved when it is done"
        else:
            words = f"step {step} is being written; the trainer is at step {trainer.step}"
        if words != self._said:
            self._said = words
            typer.echo(words)
