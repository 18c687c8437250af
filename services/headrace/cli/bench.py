"""`headrace bench`: what this machine can do, beside TransferQueue and a bare pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TERMINATED = 143
"""Exit code after SIGTERM, as shells give it."""


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PART",
            help="ledger, feed, store, weights, wakeup, sampling, rollout; all, if none is named.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Fewer rounds and smaller sizes: a minute or two, and with `rollout` up to eight "
            "more.",
        ),
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write every round's figures there, too."),
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A Redis for the ledger's journal, with appendfsync always; without it, "
            "redis-server is started if it is installed.",
        ),
    ] = None,
) -> None:
    """Measure headrace beside TransferQueue and a bare pipeline: one table of ratios, and the goals.

    Needs the extra `store`, `rollout` needs `local`; starts its own processes and touches no run. What the lines mean is
    in docs/benchmarks.md.

    Example: `headrace bench ledger feed --quick`
    """
    import asyncio

    from headrace.bench import suite
    from headrace.bench.findings import Findings
    from headrace.errors import UsageError

    names = suite.chosen(parts or ())
    if json_file is not None and not json_file.parent.is_dir():
        raise UsageError(f"--json {json_file}: there is no folder {json_file.parent}")
    findings = Findings()
    try:
        asyncio.run(
            suite.measure(
                names,
                findings,
                is_quick=quick,
                redis_url=redis_url,
                tell=lambda line: typer.echo(line, err=True),
            )
        )
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None
    finally:  # whatever ended it, Ctrl-C too: minutes of measuring are not thrown away
        if findings.rows:
            typer.echo(findings.to_text())
    if json_file is not None:
        try:
            json_file.write_text(findings.to_json() + "\n")
        except OSError as error:
            raise UsageError(f"--json {json_file}: {error.strerror}") from error
