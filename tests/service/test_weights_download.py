"""Weights over gRPC: got whole, once, and only if they are what was published."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from weights_world import MIB, Town, made_town, publish

from headrace.errors import InvalidFieldError, NotReadyError, WeightsGoneError
from headrace.rollout.download import DownloadError, TrainerAwayError
from headrace.rpc.status import error_from
from headrace.v1 import trainer_pb2 as pb
from headrace.weights.directory import prune, verify

BIG = 5 * MIB + 17


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    async with made_town(tmp_path) as made:
        yield made


async def test_a_version_arrives_as_it_was_written_in_pieces_of_a_mebibyte(town: Town) -> None:
    weights = publish(town.given, 3, size_bytes=BIG)

    here = await town.downloads.get(weights)

    manifest, checksum = verify(Path(here.uri))
    assert (checksum, manifest.version) == (weights.checksum, 3)
    assert here.id == weights.id
    assert set(manifest.files) == {"config.json", "model.safetensors", "empty"}
    assert town.giver.asked[0] == ("manifest.json", 0)
    assert max(size for sizes in town.giver.sizes for size in sizes) == MIB


async def test_a_broken_connection_costs_nothing_that_has_arrived(town: Town) -> None:
    size_bytes = 32 * MIB + 17
    weights = publish(town.given, 0, size_bytes=size_bytes)

    def two_mebibytes_are_here() -> bool:
        files = list(town.got.glob("*/model.safetensors"))
        return bool(files) and files[0].stat().st_size >= 2 * MIB

    town.wire.cut_when = two_mebibytes_are_here
    here = await town.downloads.get(weights)

    verify(Path(here.uri))
    [first, second] = [
        number for number, (file, _) in enumerate(town.giver.asked) if file == "model.safetensors"
    ]
    assert town.giver.asked[first][1] == 0
    assert town.giver.asked[second][1] >= 2 * MIB
    assert sum(town.giver.sizes[second]) == size_bytes - town.giver.asked[second][1]


async def test_what_breaks_without_progress_is_an_absence_and_goes_on_where_it_was(
    town: Town,
) -> None:
    weights = publish(town.given, 0, size_bytes=BIG)

    def break_off(file: str, piece: int, data: bytes) -> bytes:
        # Of the big file, two pieces arrive in the first call and none in the second.
        calls = sum(file == "model.safetensors" for file, _ in town.giver.asked)
        if file == "model.safetensors" and piece == {1: 2, 2: 0}.get(calls):
            raise NotReadyError("closing")
        return data

    town.giver.spoil = break_off

    with pytest.raises(TrainerAwayError, match="closing"):
        await town.downloads.get(weights)
    here = await town.downloads.get(weights)

    verify(Path(here.uri))
    assert [offset for file, offset in town.giver.asked if file == "model.safetensors"] == [
        0, 2 * MIB, 2 * MIB,
    ]  # fmt: skip
    assert [file for file, _ in town.giver.asked].count("config.json") == 1


async def test_a_flipped_byte_is_refused_and_only_that_file_is_got_again(town: Town) -> None:
    def flip(file: str, piece: int, data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if (file, piece) == ("config.json", 0) else data

    weights = publish(town.given, 0)
    town.giver.spoil = flip

    with pytest.raises(DownloadError, match=r"config\.json: SHA-256 is .*was published"):
        await town.downloads.get(weights)
    town.giver.spoil = lambda file, piece, data: data
    verify(Path((await town.downloads.get(weights)).uri))

    files = [file for file, _ in town.giver.asked]
    assert files == ["manifest.json", "config.json", "config.json", "model.safetensors"]


@pytest.mark.parametrize(("change", "why"), [(1, "more than 100"), (-1, "ends after 99 of 100")])
async def test_a_file_of_another_size_is_refused(town: Town, change: int, why: str) -> None:
    weights = publish(town.given, 0, size_bytes=100)
    town.giver.spoil = lambda file, piece, data: (
        (data + b"x")[: len(data) + change] if file == "model.safetensors" else data
    )

    with pytest.raises(DownloadError, match=f"model.safetensors: {why} bytes|{why} bytes"):
        await town.downloads.get(weights)
    town.giver.spoil = lambda file, piece, data: data

    verify(Path((await town.downloads.get(weights)).uri))


async def test_a_manifest_that_was_not_published_is_refused_before_any_file(town: Town) -> None:
    weights = publish(town.given, 0)
    weights.checksum = "0" * 64

    with pytest.raises(DownloadError, match=r"manifest\.json: SHA-256"):
        await town.downloads.get(weights)

    assert [file for file, _ in town.giver.asked] == ["manifest.json"]


async def test_a_manifest_without_end_is_refused(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = publish(town.given, 0)
    monkeypatch.setattr("headrace.rollout.download.MAX_MANIFEST_BYTES", 50)

    with pytest.raises(DownloadError, match=r"manifest\.json: more than 50 bytes"):
        await town.downloads.get(weights)


async def test_a_version_that_was_pruned_is_gone_and_the_newest_is_had(town: Town) -> None:
    old, new = publish(town.given, 0), publish(town.given, 1)
    prune(town.given, run_id="run", lineage="main", oldest_needed=1)

    with pytest.raises(DownloadError, match="version 0 of 'main' is not kept any more"):
        await town.downloads.get(old)

    verify(Path((await town.downloads.get(new)).uri))
    assert town.versions() == ["v00000001"]


async def test_a_file_that_was_begun_is_read_to_its_end_though_its_version_is_pruned(
    town: Town,
) -> None:
    weights = publish(town.given, 0, size_bytes=BIG)
    request = pb.GetWeightsRequest(id=weights.id, file="model.safetensors")
    received = 0
    async for answer in town.stub.GetWeights(request):
        received += len(answer.data)
        prune(town.given, run_id="run", lineage="main", oldest_needed=1)

    assert received == BIG
    assert not list(town.given.iterdir())


async def test_only_the_newest_version_is_kept_and_is_got_once(town: Town) -> None:
    for version in range(3):
        weights = publish(town.given, version)
        await town.downloads.get(weights)
        assert town.versions() == [f"v{version:08d}"]
    asked = len(town.giver.asked)

    await town.downloads.get(weights)

    assert len(town.giver.asked) == asked


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_a_file_that_was_left_out_is_got_later_and_nothing_else_again(town: Town) -> None:
    weights = publish(town.given, 0)
    here = Path((await town.downloads.get(weights, without=["model.safetensors"])).uri)
    without = names(here)
    town.giver.asked.clear()

    verify(here, without=["model.safetensors"])
    await town.downloads.get(weights)

    assert without == ["config.json", "empty", "manifest.json"]
    assert town.giver.asked == [("model.safetensors", 0)]
    verify(here)


async def test_what_went_bad_on_the_workers_disk_is_got_again(town: Town) -> None:
    weights = publish(town.given, 0)
    here = Path((await town.downloads.get(weights)).uri)
    (here / "model.safetensors").write_bytes(b"x" * 100)
    town.giver.asked.clear()

    await town.downloads.distrust(weights)
    await town.downloads.get(weights)

    verify(here)
    assert town.giver.asked == [("model.safetensors", 0)]


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("file", "../secret", InvalidFieldError),
        ("file", "", InvalidFieldError),
        ("offset_bytes", 101, InvalidFieldError),
        ("offset_bytes", -1, InvalidFieldError),
        ("lineage", "../../main", WeightsGoneError),
        ("lineage", "", WeightsGoneError),
        ("version", -1, WeightsGoneError),
        ("version", 7, WeightsGoneError),
    ],
)
async def test_what_is_not_a_file_of_a_version_is_refused(
    town: Town, field: str, value: str | int, error: type[Exception]
) -> None:
    (town.given.parent / "secret").write_text("secret")
    request = pb.GetWeightsRequest(
        id=publish(town.given, 0).id, file="model.safetensors", offset_bytes=0
    )
    setattr(request.id if field in ("lineage", "version") else request, field, value)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        [_ async for _ in town.stub.GetWeights(request)]

    assert isinstance(error_from(refused.value), error)
