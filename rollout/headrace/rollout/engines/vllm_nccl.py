"""New weights for a running vLLM, from the trainer's GPU: what runs in vLLM's own processes.

vLLM has one way of weight transfer in its life. This one takes files, as the other does, and once
it has joined a group of the trainer's also what is sent there, through vLLM's own NCCL engine:

    init_weight_transfer_engine(unique id)                                  joins, or joins another
    start_weight_update ─► update_weights(names, …, digests) ─► finish_weight_update

Needs vLLM; knows nothing of the process that asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from vllm.distributed.weight_transfer.base import WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLWeightTransferEngine,
    NCCLWeightTransferInitInfo,
    NCCLWeightTransferUpdateInfo,
)

from headrace.rollout.engines import vllm_weights
from headrace.weights.digest import digest, text_of

BACKEND: Final = "headrace_trainer"
EXTENSION: Final = f"{__name__}.Extension"


@dataclass
class SentUpdate(WeightTransferUpdateInfo):
    """What is sent, in this order."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    digests: list[str]
    """Of each tensor's bytes, as the trainer published them."""


class TrainerEngine(vllm_weights.FileEngine):
    """Loads files, and what the trainer sends."""

    init_info_cls = NCCLWeightTransferInitInfo
    _link: Any = None
    """vLLM's end of the group; None before the first."""

    def init_transfer_engine(self, init_info: Any) -> None:
        """Join a group of the trainer's; leave the one before."""
        self.shutdown()
        link = NCCLWeightTransferEngine(self.config, self.vllm_config, self.device, self.model)
        link.init_transfer_engine(init_info)
        self._link = link

    def parse_update_info(self, update_dict: dict[str, Any]) -> Any:
        """Tell what is sent from a file."""
        if "digests" in update_dict:
            return SentUpdate(**update_dict)
        return super().parse_update_info(update_dict)

    def receive_weights(self, update_info: Any) -> None:
        """Load a file, or receive what is sent.

        Raises:
            ValueError: The file, or a tensor that came, is not what was published; or a weight of
                the model is missing.
            RuntimeError: No group was joined.

        """
        if not isinstance(update_info, SentUpdate):
            super().receive_weights(update_info)
            return
        if self._link is None:
            raise RuntimeError("no group was joined")
        checked = CheckedModel(self.model)
        self._link.model = checked
        self._link.receive_weights(
            NCCLWeightTransferUpdateInfo(
                update_info.names, update_info.dtype_names, update_info.shapes
            )
        )
        checked.compare(dict(zip(update_info.names, update_info.digests, strict=True)))
        self._check_complete(checked.loaded)

    def shutdown(self) -> None:
        """Leave the group."""
        if self._link is not None:
            self._link.shutdown()
            self._link = None


class CheckedModel:
    """A model that is loaded piece by piece, and takes the digest of all that it is given.

    The device works on the digests beside the loading; they are looked at in the end.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._digests: dict[str, Any] = {}
        self.loaded: set[str] | None = set()
        """Names of the parameters that were loaded; None if the model does not say."""

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Load some more tensors."""
        pairs = list(weights)
        self._digests |= {name: digest(tensor) for name, tensor in pairs}
        loaded = self._model.load_weights(pairs)
        self.loaded = None if loaded is None or self.loaded is None else self.loaded | set(loaded)

    def compare(self, published: dict[str, str]) -> None:
        """See that all came, as it was published.

        Raises:
            ValueError: Something did not.

        """
        stacked = torch.stack(list(self._digests.values())).tolist() if self._digests else []
        found = dict(zip(self._digests, map(text_of, stacked), strict=True))
        if wrong := [name for name, wanted in published.items() if found.get(name) != wanted]:
            msg = (
                f"{len(wrong)} of {len(published)} tensors are not what was published: "
                f"{', '.join(wrong[:5])}"
            )
            raise ValueError(msg)


class Extension(vllm_weights.Extension):
    """What vLLM's worker gets from here."""


WeightTransferEngineFactory.register_engine(BACKEND, TrainerEngine)
