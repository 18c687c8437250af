"""New weights for a running vLLM, from a file: what runs in vLLM's own processes.

vLLM imports this module where its model is, because it is told to extend its worker by `Extension`
(`worker_extension_cls`), and finds a way of its weight transfer here by the name `BACKEND`:

    start_weight_update ─► update_weights(path, sha256) ─► finish_weight_update

Needs vLLM; knows nothing of the process that asks.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

BACKEND: Final = "safetensors_file"
EXTENSION: Final = f"{__name__}.Extension"
OWNER_VARIABLE: Final = "HEADRACE_VLLM_OWNER"
"""The environment variable with the process id of who needs this vLLM; without it, it stays."""


@dataclass
class FileInit(WeightTransferInitInfo):
    """Nothing has to be arranged for files."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """Which weights to take."""

    path: str
    """The safetensors file, where vLLM can read it. All of the model's weights are in it."""
    sha256: str | None = None
    """Of its bytes, hexadecimal; None if who asks has seen to that on this machine."""


class FileEngine(WeightTransferEngine[FileInit, FileUpdate]):
    """Loads a file as vLLM loads a checkpoint, layer by layer, into the memory that is in use.

    An update that fails leaves the model broken: it is not to be used until another one has
    succeeded.
    """

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Do nothing."""

    def start_weight_update(self) -> None:
        """Get the model ready to be loaded: its layers are as before vLLM worked on them."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Load the file.

        Raises:
            ValueError: It has other bytes, or lacks a weight of the model.

        """
        path = Path(update_info.path)
        if update_info.sha256 is not None and (found := _sha256(path)) != update_info.sha256:
            msg = f"{path}: SHA-256 is {found}, {update_info.sha256} was published"
            raise ValueError(msg)
        with safe_open(path, framework="pt", device="cpu") as file:
            names = file.keys()
            loaded = self.model.load_weights((name, file.get_tensor(name)) for name in names)
        self._check_complete(loaded)

    def finish_weight_update(self) -> None:
        """Have vLLM work on the layers again."""
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            _repack_tied_heads(self.model)

    def shutdown(self) -> None:
        """Do nothing: there is nothing to give back."""

    def _check_complete(self, loaded: Iterable[str] | None) -> None:
        # As vLLM's own loader has it: quantized models have parameters that no file names.
        if loaded is None or self.model_config.quantization is not None:
            return
        tied = {
            f"{name}.weight"
            for name, module in self.model.named_modules()
            if isinstance(module, ParallelLMHead) and self._is_tied()
        }
        wanted = {name for name, _ in self.model.named_parameters()}
        missing = sorted(wanted - tied - set(loaded))
        if missing:
            msg = f"{len(missing)} weights are missing: {', '.join(missing[:5])}"
            raise ValueError(msg)

    def _is_tied(self) -> bool:
        return bool(getattr(self.model_config.hf_text_config, "tie_word_embeddings", False))


def _repack_tied_heads(model: Any) -> None:
    """Give heads that share the embedding's weights the new ones.

    On CPUs vLLM multiplies by a packed copy of a matrix, made when a layer is loaded. Nothing is
    loaded into a tied head, so that it would go on with the copy of the old weights.
    """
    embeddings = {
        module.weight.data_ptr()
        for module in model.modules()
        if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead)
    }
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and module.weight.data_ptr() in embeddings:
            module.quant_method.process_weights_after_loading(module)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Extension:
    """What vLLM's worker gets from here."""


def _end_with(owner: int) -> None:
    """End vLLM's processes when their owner is gone, killed or not: it cannot do so itself then.

    vLLM's engine core does not look after its parent. A worker that is its child follows it.
    """
    core = os.getpid() if os.getppid() == owner else os.getppid()
    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:
        pass  # gone already
    else:
        select.select([handle], [], [])
    if core not in (1, owner):
        os.kill(core, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _watch_owner() -> None:
    owner = int(os.environ.get(OWNER_VARIABLE, "0"))
    if owner and owner != os.getpid():
        threading.Thread(target=_end_with, args=(owner,), daemon=True, name="owner watch").start()


WeightTransferEngineFactory.register_engine(BACKEND, FileEngine)
_watch_owner()
