"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The configuration, a YAML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Keys to override, such as rollout.n=8; see docs/configuration.md.",
        show_default=False,
    ),
]
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")
]
MetricsPortOption = Annotated[
    int,
    typer.Option(min=0, max=65535, help="The port of Prometheus's /metrics; 0 takes a free one."),
]
HealthPortOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        help="A port for gRPC's health service alone, without TLS and token: for the probes of "
        "Kubernetes.",
        show_default=False,
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --replay: the file with its token, if it wants one."),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="With --replay: the certificate of the authority that its own comes from, if it "
        "uses TLS.",
    ),
]
AnnounceOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the addresses there, as JSON, once they are known."),
]
