"""The list of a version's tensors, and their digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from headrace.trainer.tensors import list_tensors
from headrace.weights import digest as module
from headrace.weights.digest import digest, text_of
from headrace.weights.document import WeightsDamagedError
from headrace.weights.tensors import TensorEntry, TensorList, parse

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def made(dtype: Any, *shape: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2**20, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (7, 11, 13)])
def test_a_digest_depends_on_the_bytes_and_not_on_where_they_lie(
    dtype: Any, shape: tuple[int, ...]
) -> None:
    tensor = made(dtype, *shape)
    size_bytes = tensor.numel() * tensor.element_size()
    # As tensors come out of a message that they were packed into: behind each other.
    room = torch.zeros(size_bytes + 16, dtype=torch.uint8)
    packed = room[tensor.element_size() :][:size_bytes]
    packed.copy_(tensor.reshape(-1).view(torch.uint8))
    unpacked = packed.view(dtype).view(shape)

    assert torch.equal(unpacked, tensor)
    assert text_of(digest(unpacked)) == text_of(digest(tensor))
    assert len(text_of(digest(tensor))) == 16


def test_a_digest_of_a_turned_view_is_that_of_its_own_order() -> None:
    tensor = made(torch.float32, 5, 9)

    assert text_of(digest(tensor.t())) == text_of(digest(tensor.t().contiguous()))
    assert text_of(digest(tensor.t())) != text_of(digest(tensor))


@pytest.mark.parametrize("bit", [0, 7, 15, 31])
def test_a_flipped_bit_shows_wherever_it_is(bit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_WORDS", 64)
    tensor = made(torch.int32, 200)
    right = text_of(digest(tensor))
    for place in range(200):
        spoiled = tensor.clone()
        spoiled[place] ^= torch.tensor(1 << bit if bit < 31 else -(2**31), dtype=torch.int32)
        assert text_of(digest(spoiled)) != right


def test_words_in_another_order_or_place_show() -> None:
    tensor = made(torch.int32, 4096)
    swapped = tensor.clone()
    swapped[[17, 3000]] = tensor[[3000, 17]]
    found = {
        text_of(digest(each))
        for each in (tensor, swapped, tensor.roll(1), tensor.flip(0), torch.zeros_like(tensor))
    }

    assert len(found) == 5


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = made(torch.bfloat16, 1001)
    whole = text_of(digest(tensor))
    monkeypatch.setattr(module, "_BLOCK_WORDS", 100)

    assert text_of(digest(tensor)) == whole


def test_a_file_is_listed_as_it_is_read_back(tmp_path: Path) -> None:
    tensors = {"a": made(torch.float32, 2, 3), "b": made(torch.bfloat16, 5), "c": made(torch.int64)}
    save_file(tensors, tmp_path / "model.safetensors")

    listed = list_tensors(tmp_path / "model.safetensors", "cpu")
    found = parse(listed.to_bytes(), source="here")

    assert found == listed
    assert sorted((each.name, each.dtype, each.shape) for each in found.tensors) == [
        ("a", "float32", [2, 3]), ("b", "bfloat16", [5]), ("c", "int64", []),
    ]  # fmt: skip
    assert {each.name: each.digest for each in found.tensors} == {
        name: text_of(digest(tensor)) for name, tensor in tensors.items()
    }


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "not a list of tensors"),
        (b'{"schema_version": 1, "tensors": [{"name": "a"}]}', "not a list of tensors"),
        (b'{"schema_version": 2, "tensors": []}', "schema version 2 is not 1"),
    ],
)
def test_what_is_no_list_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(WeightsDamagedError, match=f"here: {why}"):
        parse(data, source="here")


def test_equal_lists_give_equal_bytes() -> None:
    first, second = (
        TensorList(1, [TensorEntry("a", "float32", shape, "0" * 16)]) for shape in ([2], (2,))
    )

    assert first.to_bytes() == second.to_bytes()
