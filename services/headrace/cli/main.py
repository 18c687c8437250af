"""`headrace`: all commands. Stays light: each command imports what it needs itself."""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

from headrace.cli import certs, checkpoints, circuit, configuration, control, look, serve
from headrace.cli.bench import bench
from headrace.cli.export import export
from headrace.cli.logtail import ERROR_PREFIX
from headrace.cli.parent import die_with_parent
from headrace.cli.probe import probe
from headrace.cli.run import run
from headrace.cli.snapshot import snapshot
from headrace.cli.top.command import top
from headrace.cli.verify import verify_resume

USAGE = 2
"""Exit code of a user's mistake."""


class Commands(TyperGroup):
    """Says a user's mistake in a line, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Not imported above, as that would load gRPC for `headrace --help`. Whatever is no
            # error of ours goes on as it came.
            from headrace.errors import HeadraceError

            if not isinstance(error, HeadraceError):
                raise
            for line in str(error).splitlines():
                typer.echo(f"{ERROR_PREFIX}{line}", err=True)
            raise typer.Exit(USAGE) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Asynchronous RL post-training that can say, at any moment, where every prompt is.",
    epilog=(
        "Try: `headrace run examples/sort_digits.yaml`, and while it runs, in another "
        "terminal: `headrace status`, `headrace prompts -n 5`, `headrace where UID`"
    ),
)
RUN, LOOK, PARTS = "Run", "Look at a run", "One process at a time"
CONTROL = "Control a run"

app.command(rich_help_panel=RUN)(run)
app.command(rich_help_panel=RUN)(verify_resume)
app.add_typer(configuration.app, name="config", rich_help_panel=RUN)
app.add_typer(certs.app, name="certs", rich_help_panel=RUN)
for question in (look.status, top, look.where, look.prompts, look.audit):
    app.command(rich_help_panel=LOOK)(question)
app.add_typer(checkpoints.app, name="checkpoints", rich_help_panel=LOOK)
app.command(rich_help_panel=LOOK)(export)
for wish in (control.pause, control.resume, control.drain, circuit.drop, snapshot):
    app.command(rich_help_panel=CONTROL)(wish)
app.add_typer(circuit.app, name="circuit", rich_help_panel=CONTROL)
app.add_typer(serve.app, name="serve", rich_help_panel=PARTS)
app.command(rich_help_panel=PARTS)(serve.worker)
app.command(rich_help_panel=PARTS)(serve.train)
app.command(rich_help_panel=PARTS)(probe)
app.command(rich_help_panel=RUN)(bench)


def main() -> None:
    """Run the command line of this process."""
    # gRPC's own log is no JSON, and says nothing that an error would not. Read when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    die_with_parent()
    app(prog_name="headrace")


if __name__ == "__main__":
    main()
