"""In place of vLLM's end of an NCCL group, as there is no GPU: what is "sent" is read from a file.

Put into vLLM's processes, whose transfer engine then does all the rest as on a GPU.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from safetensors import safe_open

HANGS = "hangs"
"""Instead of a tensor's name: nothing ever comes."""


class FileLink:
    """Gives the model one tensor after the other, in the order of what is announced."""

    def __init__(self, path: Path, spoiled: str) -> None:
        self.model: Any = None
        self._path = path
        self._spoiled = spoiled

    def receive_weights(self, announced: Any) -> None:
        if self._spoiled == HANGS:
            time.sleep(3600)
        with safe_open(self._path, framework="pt", device="cpu") as file:
            for name, dtype, shape in zip(
                announced.names, announced.dtype_names, announced.shapes, strict=True
            ):
                tensor = file.get_tensor(name)
                assert (str(tensor.dtype), list(tensor.shape)) == (f"torch.{dtype}", shape)
                if name == self._spoiled:
                    tensor.view(-1)[-1] += 1
                self.model.load_weights([(name, tensor)])

    def shutdown(self) -> None:
        """Do nothing."""


def put(worker: Any, path: str, spoiled: str) -> None:
    """Have a vLLM worker's transfer engine be in a group."""
    worker = getattr(worker, "worker", worker)
    worker.weight_transfer_engine._link = FileLink(Path(path), spoiled)
