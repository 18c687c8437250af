"""`headrace verify-resume`: the user's own run, killed on purpose and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.arguments import ConfigArgument, Overrides

KillsOption = Annotated[int, typer.Option(min=0, help="Processes killed at random moments.")]
SeedOption = Annotated[int, typer.Option(help="Of who is killed when, and of the rollouts.")]
StepsOption = Annotated[int, typer.Option(min=6, help="Steps of a rehearsal, at most.")]
RoundsOption = Annotated[
    int, typer.Option(min=1, help="Rehearsals, at most, until each named point has killed once.")
]
LimitOption = Annotated[float, typer.Option(min=10, help="Seconds for one rehearsal.")]
DirectoryOption = Annotated[
    Path, typer.Option(help="Where the rehearsals keep their files; what is there is removed.")
]


def verify_resume(
    config: ConfigArgument,
    overrides: Overrides = None,
    kills: KillsOption = 20,
    seed: SeedOption = 0,
    steps: StepsOption = 60,
    rounds: RoundsOption = 3,
    limit_s: LimitOption = 900.0,
    directory: DirectoryOption = Path("runs/.verify-resume"),
) -> None:
    """Check that this configuration loses nothing, whatever is killed.

    It is run on scripted rollouts and a tiny model with its real services: once undisturbed, then
    killing processes at random moments and at each named point of a save and of a resume. A recorder
    outside keeps the history, and what comes of it is compared. Nothing of yours is touched.

    Example: `headrace verify-resume examples/sort_digits.yaml --kills 20 --seed 7`

    Exit codes: 0 everything holds, 1 something does not, 2 it cannot be rehearsed.
    """
    from rich.console import Console

    from headrace.cli.preflight import preflight
    from headrace.verify.command import Wanted, table_of, verify
    from headrace.verify.rehearsal import REPLACED

    checked = preflight(config, overrides or ())
    console = Console(highlight=False, soft_wrap=True)
    console.print("a rehearsal of your data, batch sizes, window, staleness and filter, in which")
    for line in REPLACED:
        console.print(f"- {line}")
    wanted = Wanted(
        directory=directory.absolute(),
        kills=kills,
        seed=seed,
        steps=steps,
        rounds=rounds,
        limit_s=limit_s,
    )
    outcome = verify(checked.config, wanted, console.print)
    console.print()
    if not outcome.lines:
        console.print("[red]the undisturbed rehearsal did not end well:[/]")
        for line in outcome.undisturbed.reasons:
            console.print(f"  {line}")
        raise typer.Exit(1)
    console.print(table_of(outcome))
    killed = outcome.struck[0].strikes.killed
    console.print(
        f"\n{sum(killed.values())} random kills "
        f"({', '.join(f'{name} {count}' for name, count in sorted(killed.items()))}), "
        f"{len(outcome.reached)} of {len(outcome.reached) + len(outcome.unreached)} named points "
        f"reached in {len(outcome.struck)} rehearsals"
    )
    if outcome.unreached:
        console.print(f"not reached: {', '.join(outcome.unreached)}")
    words = " ".join([str(config), *(overrides or ())])
    console.print(
        f"again: headrace verify-resume {words} --kills {kills} --seed {seed} --steps {steps} "
        f"--rounds {rounds}",
        style="dim",
    )
    console.print(f"histories, logs and checkpoints: {wanted.directory}", style="dim")
    raise typer.Exit(0 if outcome.ok else 1)
