"""Stands in for what sends over NCCL, as there is no GPU: the trainer's process, without a group.

Everything around NCCL is real. How it behaves is its argument: a `Behaviour`.
"""

from __future__ import annotations

import base64
import functools
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, Final, Literal

from headrace.trainer import sender
from headrace.trainer.sender_process import SenderProcess

Behaviour = Literal[
    "good", "refuses", "dies", "never opens", "never joins", "fails to join", "never is done",
    "fails to send",
]  # fmt: skip
UNIQUE_ID: Final = bytes(range(128))

Orders = SimpleQueue[dict[str, Any]]


def started(behaviour: Behaviour) -> Callable[[], Awaitable[SenderProcess]]:
    """Give what starts a process that behaves so, and waits until it can be asked."""

    async def start() -> SenderProcess:
        process = await SenderProcess.start((sys.executable, __file__, behaviour))
        try:
            await process.answer("up")
        except BaseException:  # a cancel, too, leaves no process behind
            await process.end()
            raise
        return process

    return start


def serve(behaviour: str, orders: Orders, tell: sender.Tell) -> None:
    tell({"up": True})
    orders.get()
    if behaviour == "refuses":
        raise ValueError("NCCL only supports CUDA and ROCm backends.")
    if behaviour == "dies":
        os._exit(9)
    if behaviour == "never opens":
        threading.Event().wait()
    id_base64 = base64.b64encode(UNIQUE_ID).decode()
    print("what NCCL prints is no answer")
    tell({"unique_id": id_base64, "packed_buffer_bytes": 2**20, "packed_buffer_count": 2})
    if behaviour == "never joins":
        threading.Event().wait()
    if behaviour == "fails to join":
        raise RuntimeError("NCCL error: remote process exited")
    tell({"joined": True})
    while True:
        orders.get()
        if behaviour == "fails to send":
            raise RuntimeError("NCCL error: no memory")
        tell({"sending": True})
        if behaviour == "never is done":
            threading.Event().wait()
        tell({"sent": True})


if __name__ == "__main__":
    sender.main(functools.partial(serve, sys.argv[1]))
