"""`headrace certs init`: what `security` needs, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make certificates and a token.", no_args_is_help=True)

HostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="NAME",
        help="A name or an IP address that a process of the run is called by; give it again for "
        "more. localhost, 127.0.0.1 and ::1 are always there.",
        show_default=False,
    ),
]


# A single command would be `headrace certs DIR`; there will be more of them.
@app.callback()
def certs() -> None:
    """Make certificates and a token."""


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go.")],
    host: HostOption = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long they are valid.")] = 365,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Make a certificate for all processes of a run, the authority it comes from, and a token.

    For development and for machines of your own. The authority's key is thrown away: to add a
    host, make everything anew with --force, and start the processes again.

    Example: `headrace certs init certs --host replay --host store --host 10.0.0.5`
    """
    from datetime import UTC, datetime

    from headrace.cli.credentials import make_credentials

    made = make_credentials(directory, host or (), days=days, force=force, now=datetime.now(UTC))
    for path in made.paths:
        typer.echo(f"wrote {path}")
    typer.echo(
        "\nPut this into the configuration, and start the processes again:\n\n"
        f"{made.configuration}\n"
        "To look at the run by its address:\n\n"
        f"headrace status --replay HOST:PORT --token-file {made.token} --ca {made.ca}"
    )
