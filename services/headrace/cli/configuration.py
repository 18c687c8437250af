"""`headrace config show | check`: what a configuration amounts to."""

from __future__ import annotations

import typer

from headrace.cli.arguments import ConfigArgument, Overrides

app = typer.Typer(help="Look at a configuration without starting anything.", no_args_is_help=True)


@app.command()
def show(config: ConfigArgument, overrides: Overrides = None) -> None:
    """Print the whole configuration as a run would use it, defaults and overrides included.

    Example: `headrace config show examples/sort_digits.yaml rollout.n=8`
    """
    from headrace.config.load import dump_config, load_config

    typer.echo(dump_config(load_config(config, overrides or ())), nl=False)


@app.command()
def check(config: ConfigArgument, overrides: Overrides = None) -> None:
    """Say what is wrong with a configuration, its data set and its tokenizer included.

    Example: `headrace config check examples/sort_digits.yaml`
    """
    from headrace.cli.preflight import preflight

    for warning in preflight(config, overrides or ()).warnings:
        typer.secho(f"warning: {warning}", fg="yellow", err=True)
    typer.echo(f"{config}: nothing is wrong")


@app.command(hidden=True)
def docs() -> None:
    """Print docs/configuration.md."""
    from headrace.config.reference import reference

    typer.echo(reference(), nl=False)
