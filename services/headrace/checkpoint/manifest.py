"""The file that makes a directory a checkpoint: what was saved, when, of which time line.

It is written last. So a directory that has one is whole, or was damaged later. Knows the JSON form;
reads and writes no files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from headrace.checkpoint.storage import DamagedError
from headrace.v1.prompt_pb2 import StateCounts
from headrace.v1.resume_pb2 import CheckpointPart, Lineage

SCHEMA_VERSION: Final = 1
PARTS: Final = ("ledger", "store", "trainer")
"""What every checkpoint consists of."""
DIGEST: Final = "sha256_of_all_else"
"""The key of the manifest's own checksum: of its canonical form without this key."""


@dataclass(frozen=True)
class Manifest:
    """One checkpoint."""

    run_id: str
    snapshot_id: str
    """The snapshot that made it."""
    lineages: tuple[Lineage, ...]
    """The time lines up to that of the step, oldest first."""
    step: int
    """The last step in it: that many optimizer steps are in the trainer's part."""
    weight_version: int
    """The version of its weights on that line; the step."""
    position: int
    """The journal position that the ledger was cut at."""
    counts: StateCounts
    """Groups by state at the cut."""
    data_fingerprint: str
    """Digest of the data set: content, order, seed."""
    store_incarnation: str
    """The life of the store that wrote its part."""
    facts: Mapping[str, str]
    """What a resume must agree with: see `headrace.checkpoint.facts`."""
    unix_time_s: float
    """When it was complete, by the coordinator's clock."""
    headrace_version: str
    parts: tuple[CheckpointPart, ...]
    """What each process wrote: ledger, store, trainer."""

    @property
    def lineage(self) -> str:
        """The time line of the step."""
        return self.lineages[-1].id

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files, without itself."""
        return sum(file.size_bytes for part in self.parts for file in part.files)

    def part(self, name: str) -> CheckpointPart:
        """Give the part of that name."""
        return next(part for part in self.parts if part.name == name)

    def to_bytes(self) -> bytes:
        """Serialize. Equal manifests give equal bytes."""
        value = {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "snapshot_id": self.snapshot_id,
            "lineage": self.lineage,
            "lineages": [_plain(line) for line in self.lineages],
            "step": self.step,
            "weight_version": self.weight_version,
            "ledger": {"position": self.position, "counts": _plain(self.counts)},
            "data_fingerprint": self.data_fingerprint,
            "store_incarnation": self.store_incarnation,
            "facts": dict(self.facts),
            "created_unix_time_s": self.unix_time_s,
            "headrace_version": self.headrace_version,
            "parts": [_plain(part) for part in self.parts],
        }
        value[DIGEST] = _digest(value)
        return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def parse(data: bytes, *, source: str, uri: str) -> Manifest:
    """Read a manifest's bytes.

    Args:
        data: The bytes.
        source: The file, for messages.
        uri: The directory that it lies in now. The parts are there, wherever their owners saw them
            when they wrote: a checkpoint may be copied or moved as a whole.

    Raises:
        DamagedError: it is empty, torn, no manifest, one of another schema, or a value in it is not
            the one that was written.

    """
    if not data.strip():
        raise DamagedError([f"{source} is empty"])
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError([f"{source} is torn, or no JSON: {error}"]) from error
    try:
        schema = value["schema_version"]
        if schema != SCHEMA_VERSION:
            raise DamagedError(
                [f"{source}: schema version {schema} is not {SCHEMA_VERSION}, the one known here"]
            )
        if value.pop(DIGEST) != _digest(value):
            raise DamagedError([f"{source} does not have the {DIGEST} that it names"])
        return _manifest(value, uri)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        ParseError,
        TypeError,
        ValueError,
    ) as error:
        raise DamagedError([f"{source} is no manifest of a checkpoint: {error!r}"]) from error


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _manifest(value: Mapping[str, Any], uri: str) -> Manifest:
    parts = tuple(_part(part, uri) for part in value["parts"])
    missing = set(PARTS) - {part.name for part in parts}
    if missing:
        msg = f"it names no {' and no '.join(sorted(missing))} part"
        raise ValueError(msg)
    lineages = tuple(ParseDict(line, Lineage()) for line in value["lineages"])
    if not lineages or lineages[-1].id != value["lineage"]:
        msg = "its time lines do not end with its own"
        raise ValueError(msg)
    return Manifest(
        run_id=str(value["run_id"]),
        snapshot_id=str(value["snapshot_id"]),
        lineages=lineages,
        step=int(value["step"]),
        weight_version=int(value["weight_version"]),
        position=int(value["ledger"]["position"]),
        counts=ParseDict(value["ledger"]["counts"], StateCounts()),
        data_fingerprint=str(value["data_fingerprint"]),
        store_incarnation=str(value["store_incarnation"]),
        facts={str(key): str(fact) for key, fact in value["facts"].items()},
        unix_time_s=float(value["created_unix_time_s"]),
        headrace_version=str(value["headrace_version"]),
        parts=parts,
    )


def _part(value: dict[str, Any], uri: str) -> CheckpointPart:
    part = ParseDict(value, CheckpointPart())
    part.uri = uri
    return part


def _plain(message: Lineage | StateCounts | CheckpointPart) -> dict[str, Any]:
    value: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return value


def in_order(parts: Iterable[CheckpointPart]) -> tuple[CheckpointPart, ...]:
    """Sort parts as a manifest has them."""
    return tuple(sorted(parts, key=lambda part: PARTS.index(part.name)))
