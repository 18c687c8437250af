"""What runs in the processes of a vLLM server that takes weights from headrace.

Several workers may use one server. What they must not do at the same time, they do in turns; which
weights the server has is what it loaded itself, from files that it checked itself:

    headrace_check(uri, checksum, …)   reads and checks files, beside generation; asked until done
    headrace_take_turn(owner, …)       at most one owner at a time, for as long as it renews the turn
    start ─► update(tag) ─► finish     vLLM's weight transfer; loads what was checked, nothing else
    headrace_weights()                 what was loaded

Needs vLLM; knows nothing of HTTP.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm.distributed.weight_transfer.base import WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from headrace.errors import HeadraceError
from headrace.rollout.engines import vllm_weights
from headrace.rollout.engines.vllm_server.tag import Tag
from headrace.rollout.engines.weights import confirm
from headrace.v1 import prompt_pb2

BACKEND: Final = "headrace_checked"
EXTENSION: Final = f"{__name__}.ServerExtension"
_WEIGHTS: Final = "model.safetensors"

_reader: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights check")
_checks: Final[dict[str, Future[Path]]] = {}
"""By tag, the last ones."""
_MOST_CHECKS: Final = 4


@dataclass
class CheckedUpdate(WeightTransferUpdateInfo):
    """Which weights to load."""

    tag: str


class CheckedFileEngine(vllm_weights.FileEngine):
    """Loads files that this process has checked, and remembers which."""

    update_info_cls = CheckedUpdate
    tag: str = ""
    """Of what is loaded; empty before the first, and while it is another's turn."""
    _coming: str = ""

    def start_weight_update(self) -> None:
        """Forget what is loaded: it is gone from here on."""
        self.tag = self._coming = ""
        super().start_weight_update()

    def receive_weights(self, update_info: Any) -> None:
        """Load what was checked under this tag.

        Raises:
            ValueError: Nothing was.

        """
        check = _checks.get(update_info.tag)
        if check is None or not check.done() or check.exception() is not None:
            msg = f"{update_info.tag} was not checked here"
            raise ValueError(msg)
        path = check.result() / _WEIGHTS
        super().receive_weights(vllm_weights.FileUpdate(path=str(path)))
        self._coming = update_info.tag

    def finish_weight_update(self) -> None:
        """Have vLLM work on the layers again. Only now the weights are there."""
        super().finish_weight_update()
        self.tag = self._coming


class ServerExtension(vllm_weights.Extension):
    """Methods of vLLM's worker, called through `/collective_rpc`. All arguments are text."""

    _headrace_owner = ""
    _headrace_until = 0.0

    def headrace_check(self, uri: str, checksum: str, lineage: str, version: str) -> dict[str, str]:
        """Check the files of published weights; say whether that is under way, done, or what is wrong.

        Repeated, it tells how the same check ended; one that failed is made again, and so is one of
        files that are gone: workers may have some of their own each.
        """
        tag = str(Tag(lineage, int(version), checksum))
        check = _checks.get(tag)
        if check is not None and check.done():
            if (error := check.exception()) is not None:
                del _checks[tag]
                return {"state": "wrong", "why": _reason(error)}
            if not (check.result() / _WEIGHTS).exists():
                del _checks[tag]
                check = None
        if check is None:
            while len(_checks) >= _MOST_CHECKS:
                del _checks[next(iter(_checks))]
            published = prompt_pb2.PublishedWeights(
                id=prompt_pb2.WeightsId(lineage=lineage, version=int(version)),
                uri=uri,
                checksum=checksum,
            )
            check = _checks[tag] = _reader.submit(confirm, published)
        return {"state": "checked" if check.done() else "checking", "why": ""}

    def headrace_take_turn(self, owner: str, seconds: str) -> dict[str, str]:
        """Be the only one who updates for so long, or learn who is.

        A turn begins anew: what somebody left in the middle of an update is forgotten, as vLLM
        would wait for the rest of it.
        """
        now = time.monotonic()
        if self._headrace_owner not in ("", owner) and now < self._headrace_until:
            return {"owner": self._headrace_owner}
        self._weight_update_active = False
        self._headrace_owner, self._headrace_until = owner, now + float(seconds)
        return {"owner": owner}

    def headrace_renew_turn(self, owner: str, seconds: str) -> dict[str, str]:
        """Have the turn for so long from now on, if it is still the owner's."""
        if self._headrace_owner == owner:
            self._headrace_until = time.monotonic() + float(seconds)
        return {"owner": self._headrace_owner}

    def headrace_end_turn(self, owner: str) -> dict[str, str]:
        """Let the next have it."""
        if self._headrace_owner == owner:
            self._headrace_owner = ""
        return {"owner": self._headrace_owner}

    def headrace_weights(self) -> dict[str, str]:
        """Say which weights are loaded."""
        engine = getattr(self, "weight_transfer_engine", None)
        return {"tag": getattr(engine, "tag", "")}


def _reason(error: BaseException) -> str:
    if isinstance(error, HeadraceError):
        return str(error)
    return f"{type(error).__name__}: {error}"


WeightTransferEngineFactory.register_engine(BACKEND, CheckedFileEngine)
