"""Tensors by name in a directory, in the format of torch.distributed.checkpoint.

Only tensors: nothing that is loaded from here can run code. One process writes them whole; the
format lets others read them cut up differently. Knows nothing of what the tensors are.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from headrace.errors import HeadraceError

INDEX: Final = ".metadata"
"""The file that says what there is, and where."""

_KNOWN: Final = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "device"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}
"""What an index consists of, by module; and torch's number formats."""


class ShardsDamagedError(HeadraceError):
    """The directory does not hold what its index says, or no index."""


def write(directory: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors that lie in this machine's memory.

    Raises:
        OSError: it cannot be written; the disk is full.

    """
    # They are copied to the checkpoint's storage next, which syncs them there.
    writer = dcp.FileSystemWriter(
        directory, single_file_per_rank=True, sync_files=False, thread_count=1
    )
    _be_quiet()
    try:
        dcp.save(dict(tensors), storage_writer=writer)
    except dcp.CheckpointException as error:
        for failure in error.failures.values():
            raise failure[0] from error
        raise


def read(
    directory: Path, wanted: Callable[[str], bool] = lambda _name: True
) -> dict[str, torch.Tensor]:
    """Read tensors into this machine's memory.

    Args:
        directory: where they are.
        wanted: says by a tensor's name whether it is read.

    Raises:
        ShardsDamagedError: they are not there, or not whole.

    """
    try:
        index = _Reader(directory).read_metadata()
        tensors = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in index.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata) and wanted(name)
        }
        _be_quiet()
        if tensors:
            dcp.load(tensors, storage_reader=_Reader(directory))
    except dcp.CheckpointException as error:
        reasons = "; ".join(str(failure[0]) for failure in error.failures.values())
        raise ShardsDamagedError(f"{directory}: {reasons}") from error
    except (OSError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ShardsDamagedError(f"{directory}: {error!r}") from error
    return tensors


class _Reader(dcp.FileSystemReader):
    """Reads an index without running what it may hold."""

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """Read the index."""
        data = (Path(self.path) / INDEX).read_bytes()
        index = _IndexUnpickler(io.BytesIO(data)).load()
        if not isinstance(index, Metadata):
            raise ShardsDamagedError(f"{self.path}/{INDEX} is no index")
        if index.storage_meta is None:
            return index
        index.storage_meta.load_id = self.load_id
        return index


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Find what an index may consist of.

        Raises:
            pickle.UnpicklingError: it is something else.

        """
        is_format = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_format or name in _KNOWN.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in an index of tensors")


def _be_quiet() -> None:
    """Have torch not warn that one process does this alone. Safe to repeat."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
