"""`headrace serve | worker | train`: one process each, what `headrace run` starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.arguments import (
    AnnounceOption,
    ConfigArgument,
    HealthPortOption,
    MetricsPortOption,
    Overrides,
    PortOption,
)

app = typer.Typer(
    help="Serve one part of a run in the foreground. `headrace run` starts them all.",
    no_args_is_help=True,
)

NameOption = Annotated[
    str, typer.Option(help="The worker's name; unique among the workers of a run.")
]


@app.command()
def replay(
    config: ConfigArgument,
    overrides: Overrides = None,
    port: PortOption = 0,
    metrics_port: MetricsPortOption = 0,
    health_port: HealthPortOption = None,
    announce: AnnounceOption = None,
) -> None:
    """Serve the replay buffer: the ledger of every prompt.

    Example: `headrace serve replay my.yaml run.run_dir=/srv/run-1 --port 7001`
    """
    _serve("replay", config, overrides, "replay", port, metrics_port, health_port, announce)


@app.command()
def feeder(
    config: ConfigArgument,
    overrides: Overrides = None,
    port: PortOption = 0,
    metrics_port: MetricsPortOption = 0,
    health_port: HealthPortOption = None,
    announce: AnnounceOption = None,
) -> None:
    """Serve the prompt feeder. Needs endpoints.replay=HOST:PORT.

    Example: `headrace serve feeder my.yaml run.run_dir=/srv/run-1 endpoints.replay=127.0.0.1:7001`
    """
    _serve("feeder", config, overrides, "feeder", port, metrics_port, health_port, announce)


@app.command()
def store(
    config: ConfigArgument,
    overrides: Overrides = None,
    port: PortOption = 0,
    metrics_port: MetricsPortOption = 0,
    health_port: HealthPortOption = None,
    announce: AnnounceOption = None,
) -> None:
    """Serve the trajectory store. Needs endpoints.replay=HOST:PORT.

    Example: `headrace serve store my.yaml run.run_dir=/srv/run-1 endpoints.replay=127.0.0.1:7001`
    """
    _serve("store", config, overrides, "store", port, metrics_port, health_port, announce)


@app.command()
def checkpoint(
    config: ConfigArgument,
    overrides: Overrides = None,
    port: PortOption = 0,
    metrics_port: MetricsPortOption = 0,
    health_port: HealthPortOption = None,
    announce: AnnounceOption = None,
) -> None:
    """Serve the checkpoint coordinator: it has snapshots made, and lets a run go on from them.

    Needs endpoints.replay=HOST:PORT and endpoints.store=HOST:PORT.

    Example: `headrace serve checkpoint my.yaml run.run_dir=/srv/run-1
    endpoints.replay=127.0.0.1:7001 endpoints.store=127.0.0.1:7002`
    """
    _serve("checkpoint", config, overrides, "checkpoint", port, metrics_port, health_port, announce)


def worker(
    config: ConfigArgument,
    overrides: Overrides = None,
    name: NameOption = "worker-0",
    port: PortOption = 0,
    metrics_port: MetricsPortOption = 0,
    health_port: HealthPortOption = None,
    announce: AnnounceOption = None,
) -> None:
    """Generate and score: a rollout worker. Any number of them may come and go.

    Needs endpoints.replay=HOST:PORT and endpoints.store=HOST:PORT, and with weights.transport: grpc
    endpoints.trainer=HOST:PORT.

    Example: `headrace worker my.yaml run.run_dir=/srv/run-1 endpoints.replay=127.0.0.1:7001
    endpoints.store=127.0.0.1:7002 --name worker-1`
    """
    _serve("rollout", config, overrides, name, port, metrics_port, health_port, announce)


def train(
    config: ConfigArgument,
    overrides: Overrides = None,
    port: PortOption = 0,
    metrics_port: MetricsPortOption = 0,
    health_port: HealthPortOption = None,
    announce: AnnounceOption = None,
) -> None:
    """Train: the process that learns. A run has one.

    Needs endpoints.replay=HOST:PORT, endpoints.store=HOST:PORT and endpoints.feeder=HOST:PORT.

    Example: `headrace train my.yaml run.run_dir=/srv/run-1 endpoints.replay=127.0.0.1:7001
    endpoints.store=127.0.0.1:7002 endpoints.feeder=127.0.0.1:7003`
    """
    _serve("trainer", config, overrides, "trainer", port, metrics_port, health_port, announce)


def _serve(
    package: str,
    config: Path,
    overrides: list[str] | None,
    name: str,
    port: int,
    metrics_port: int,
    health_port: int | None,
    announce: Path | None,
) -> None:
    from headrace.cli.single import serve

    raise typer.Exit(
        serve(package, config, overrides or (), name, port, metrics_port, health_port, announce)
    )
