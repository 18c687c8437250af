"""Checkpoints in a storage, made without the processes that make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.manifest import Manifest
from headrace.checkpoint.storage import Storage, write_part
from headrace.v1.prompt_pb2 import StateCounts
from headrace.v1.resume_pb2 import Lineage

L0 = Lineage(id="l0")
L1 = Lineage(id="l1", parent="l0", fork_step=5)


def directory_at(place: Path | str) -> CheckpointDirectory:
    return CheckpointDirectory(Storage(str(place)))


def position_of(step: int) -> int:
    """Give the journal position at which the checkpoint of a step is cut."""
    return 100 * step


def write_checkpoint(
    directory: CheckpointDirectory,
    step: int,
    scratch: Path,
    *,
    lineages: Sequence[Lineage] = (L0,),
    run_id: str = "r",
    facts: Mapping[str, str] | None = None,
    data_fingerprint: str = "f",
    store_incarnation: str = "s1",
    has_manifest: bool = True,
) -> Manifest:
    """Write three small parts and a manifest; not the pointer."""
    scratch.mkdir(parents=True, exist_ok=True)
    parts = []
    for name, target in (
        ("ledger", "ledger.pb"),
        ("store", "transfer_queue"),
        ("trainer", "trainer"),
    ):
        source = scratch / name
        if name == "ledger":
            source.write_bytes(f"ledger of {step}".encode())
        else:
            source.mkdir(exist_ok=True)
            (source / "data").write_bytes(f"{name} of {step}".encode())
        parts.append(
            write_part(directory.uri(step), name=name, owner=name, source=source, target=target)
        )
    manifest = Manifest(
        run_id=run_id,
        snapshot_id=f"snapshot-{step}",
        lineages=tuple(lineages),
        step=step,
        weight_version=step,
        position=position_of(step),
        counts=StateCounts(fed=12 + 4 * step, finished=12, trained=4 * step, dropped={"stale": 0}),
        data_fingerprint=data_fingerprint,
        store_incarnation=store_incarnation,
        facts=facts or {},
        unix_time_s=1.8e9 + step,
        headrace_version="0.0.1",
        parts=tuple(parts),
    )
    if has_manifest:
        directory.write_manifest(manifest)
    return manifest


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
