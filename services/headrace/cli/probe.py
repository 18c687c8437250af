"""`headrace probe`: whether a process is ready, or lives, for health checks of containers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TIMEOUT_S = 3.0


def probe(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The process to ask.")],
    ca: Annotated[
        Path | None, typer.Option(help="The authority of its certificate, if it uses TLS.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Ask whether it lives, not whether it is ready.")
    ] = False,
) -> None:
    """Exit with 0 if the process there is ready, with 1 if not. Needs no token.

    Example: `headrace probe localhost:7000 --ca certs/ca.pem`
    """
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from headrace.rpc.channel import open_sync_channel
    from headrace.rpc.health import LIVE
    from headrace.rpc.security import Security

    security = Security.for_tool(ca=ca)
    with open_sync_channel(address, security) as channel:
        try:
            check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]  # no stub
            answer = check(
                health_pb2.HealthCheckRequest(service=LIVE if live else ""), timeout=TIMEOUT_S
            )
        except grpc.RpcError as error:
            typer.echo(f"{address}: {error.code().name}: {error.details()}", err=True)
            raise typer.Exit(1) from None
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    typer.echo(f"{address}: {status}")
    raise typer.Exit(0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1)
