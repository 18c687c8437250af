"""Sends weights over one NCCL group: a process of the trainer's, started for the group.

    {"device", "receiver_count"} ─► {"unique_id", …} ─► {"joined"}
    {"send": directory}          ─► {"sending"}      ─► {"sent"}        any number of times

Lines of JSON come on standard input and go out on standard output; after {"error"} it ends. A call
of NCCL whose peer is gone may hang for good, and no other thread can end it. A process can be
killed, whatever it does, and training knows nothing of it. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

Tell = Callable[[dict[str, Any]], None]


def serve(orders: SimpleQueue[dict[str, Any]], tell: Tell) -> None:
    """Open a group and send what is asked for, for ever.

    Raises:
        Exception: Whatever vLLM, NCCL and torch raise.

    """
    from headrace.trainer.nccl import PACKED_BUFFER_BYTES, PACKED_BUFFER_COUNT, Link

    first = orders.get()
    link = Link(first["device"])
    tell(
        {
            "unique_id": link.id_base64,
            "packed_buffer_bytes": PACKED_BUFFER_BYTES,
            "packed_buffer_count": PACKED_BUFFER_COUNT,
        }
    )
    link.join(first["receiver_count"])
    tell({"joined": True})
    while True:
        link.send(Path(orders.get()["send"]), begun=lambda: tell({"sending": True}))
        tell({"sent": True})


def _read(orders: SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    os._exit(0)


def _own_output() -> IO[str]:
    """Keep standard output for answers; what NCCL and others print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def main(serve: Callable[[SimpleQueue[dict[str, Any]], Tell], None] = serve) -> None:
    """Serve until the input ends or something fails."""
    answers = _own_output()

    def tell(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    orders: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True, name="orders").start()
    try:
        serve(orders, tell)
    except ImportError as error:
        tell(
            {
                "error": f"{error}: the trainer's environment needs vLLM: pip install 'headrace[vllm]'"
            }
        )
    except Exception as error:  # told to who started this, whatever it is
        tell({"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]})
    os._exit(1)


if __name__ == "__main__":
    main()
