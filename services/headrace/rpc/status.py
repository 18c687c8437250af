"""A `WireError` on its way over the wire: into a gRPC status, and back out of one.

The status carries exactly one `google.rpc.ErrorInfo`: the reason, our domain, and the
error's metadata (https://google.aip.dev/193).
"""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from headrace.errors import WIRE_ERRORS, WireError

DOMAIN: Final = "headrace"
"""The domain of all our reasons."""


def to_status(error: WireError) -> grpc.Status:
    """Return the status to end a call with."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    detail = any_pb2.Any()
    detail.Pack(info)
    return rpc_status.to_status(
        status_pb2.Status(code=error.code.value[0], message=str(error), details=[detail])
    )


def error_from(call: grpc.RpcError) -> WireError | None:
    """Return the error that a call failed with, of the class of its reason.

    Args:
        call: What a stub raised, synchronous or not.

    Returns:
        None if the failure has no reason of ours: the network, a deadline, a mistake in the
        server.

    """
    info = _error_info(call)
    error_class = WIRE_ERRORS.get(info.reason) if info is not None else None
    if info is None or error_class is None:
        return None
    # The message is whole already, so the constructor of the subclass must not make it again.
    error = error_class.__new__(error_class)
    WireError.__init__(error, call.details() or "", **info.metadata)
    return error


def _error_info(call: grpc.RpcError) -> error_details_pb2.ErrorInfo | None:
    try:
        # The stubs know synchronous calls only; the function takes both.
        status: status_pb2.Status | None = rpc_status.from_call(call)  # type: ignore[arg-type]
    except ValueError:
        # Something on the way changed code or message; then its details are nobody's word.
        return None
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            return info
    return None
