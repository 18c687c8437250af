"""The trainer's end of an NCCL group, by vLLM's weight transfer: rank 0, which sends.

vLLM's trainer would drive vLLM itself. Here the worker does so, whose vLLM it is: what vLLM's
trainer asks of its client is nothing but the word that it begins. Needs vLLM and a GPU.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

from headrace.weights.tensors import TENSORS_NAME, WEIGHTS_NAME, parse

PACKED_BUFFER_BYTES: Final = 2**28
"""A quarter of vLLM's own: the memory is wanted for training."""
PACKED_BUFFER_COUNT: Final = 2


class Link:
    """A group of this process and the processes of one vLLM.

    Args:
        device: The GPU, as torch calls it.

    Raises:
        RuntimeError: There is none.

    """

    def __init__(self, device: str) -> None:
        if not torch.accelerator.is_available():
            raise RuntimeError("the trainer has no GPU")
        torch.accelerator.set_device_index(torch.device(device).index or 0)
        self._id = bytes(NCCLLibrary().ncclGetUniqueId().internal)
        self._group: Any = None

    @property
    def id_base64(self) -> str:
        """NCCL's name of the group."""
        return base64.b64encode(self._id).decode()

    def join(self, receiver_count: int) -> None:
        """Wait until all have joined."""
        index = torch.accelerator.current_device_index()
        self._group = uid_init_process_group(self._id, 0, receiver_count + 1, index)

    def send(self, version: Path, *, begun: Callable[[], None]) -> None:
        """Send a version's tensors, and wait until they are gone."""
        engine = NCCLTrainerWeightTransferEngine(
            client=_Begun(begun),
            source=_Version(version),
            packed=True,
            packed_buffer_size_bytes=PACKED_BUFFER_BYTES,
            packed_num_buffers=PACKED_BUFFER_COUNT,
        )
        engine.model_update_group = self._group
        engine.send_weights()


class _Begun:
    """What vLLM's trainer has for the engine that receives."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Do nothing: the worker's engine has joined."""

    def start_weight_update(self) -> None:
        """Do nothing: the worker has its engine do so."""

    def update_weights(self, update_info: Any) -> None:
        """Say that it begins."""
        self._tell()

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Do nothing: the worker has its engine do so."""


class _Version(WeightSource):
    """A published version. The file stays readable though the version is pruned meanwhile."""

    def __init__(self, directory: Path) -> None:
        path = directory / TENSORS_NAME
        self._list = parse(path.read_bytes(), source=str(path))
        self._file: Any = safe_open(directory / WEIGHTS_NAME, framework="pt", device="cpu")

    def metadata(self) -> list[Any]:
        """Say what is sent."""
        return [
            ParamMeta(each.name, getattr(torch, each.dtype), tuple(each.shape))
            for each in self._list.tensors
        ]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Bring one tensor after the other onto the GPU."""
        for each in self._list.tensors:
            yield each.name, self._file.get_tensor(each.name).to("cuda")
