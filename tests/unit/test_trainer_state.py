"""A state that was saved and loaded again goes on as if nothing had happened, bit for bit."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_actor import STEPS, fixed_batch, new_actor, save, tiny_model

from headrace.checkpoint.storage import DamagedError, write_part
from headrace.config.model import AlphabetTokenizer
from headrace.errors import UsageError
from headrace.tokenizer.alphabet import Alphabet
from headrace.trainer import part, shards
from headrace.trainer.actor import Actor
from headrace.trainer.description import describe, fingerprint
from headrace.trainer.loading import load
from headrace.trainer.part import PartDamagedError
from headrace.trainer.shards import ShardsDamagedError
from headrace.trainer.state import StateCopy, restore


def reload(actor: Actor, directory: Path) -> list[str]:
    found = part.read(directory / "trainer")
    return restore(actor, found.tensors, found.counters.updates, found.counters.seen)


def parameters(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("kept", [1, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_bit_for_bit_as_if_it_had_never_stopped(
    tmp_path: Path, kept: int, dtype: torch.dtype
) -> None:
    whole = new_actor(tiny_model(dtype=dtype), kl_loss_coef=0.1)
    told = [whole.update(fixed_batch(number)) for number in range(STEPS)]
    drawn = torch.rand(3)

    first = new_actor(tiny_model(dtype=dtype), kl_loss_coef=0.1)
    for number in range(kept):
        first.update(fixed_batch(number))
    first.seen = "of its prompts"
    save(first, tmp_path, step=kept)
    second = new_actor(tiny_model(dtype=dtype), kl_loss_coef=0.1)
    torch.manual_seed(99)  # whatever the process has drawn meanwhile
    with torch.no_grad():
        for parameter in (*second.model.parameters(), *second.reference.parameters()):
            parameter.fill_(7.0)

    assert reload(second, tmp_path) == []
    told_again = [second.update(fixed_batch(number)) for number in range(kept, STEPS)]

    assert told_again == told[kept:]  # losses, KL to the initial policy, learning rates
    assert second.seen == "of its prompts"
    assert same(parameters(second.model), parameters(whole.model))
    assert same(parameters(second.reference), parameters(whole.reference))
    assert torch.equal(torch.rand(3), drawn)
    kept_formats = {t.dtype for t in part.read(tmp_path / "trainer").tensors.values()}
    assert kept_formats == {torch.float32, torch.uint8}  # random numbers are bytes


def test_what_an_older_trainer_kept_in_bfloat16_goes_on_as_float32_and_is_said(
    tmp_path: Path,
) -> None:
    older = new_actor(tiny_model(dtype=torch.bfloat16).to(torch.bfloat16))
    older.update(fixed_batch(0))
    save(older, tmp_path)
    newer = new_actor(tiny_model(dtype=torch.bfloat16))

    [note] = reload(newer, tmp_path)

    assert "are bfloat16, as an older trainer kept them" in note
    assert same(parameters(newer.model), [p.float() for p in parameters(older.model)])
    for ours, theirs in zip(newer.model.parameters(), older.model.parameters(), strict=True):
        for slot in ("exp_avg", "exp_avg_sq"):
            found, there = newer.optimizer.state[ours][slot], older.optimizer.state[theirs][slot]
            assert found.dtype == torch.float32
            assert torch.equal(found, there.float())
    newer.update(fixed_batch(1))
    assert {p.dtype for p in newer.model.parameters()} == {torch.float32}


def test_a_copy_does_not_change_while_training_goes_on_and_its_room_is_used_again() -> None:
    actor, copy = new_actor(kl_loss_coef=0.1), StateCopy()
    actor.update(fixed_batch(0))
    copy.take(actor)
    room = {name: tensor.data_ptr() for name, tensor in copy.tensors.items()}
    before = {name: tensor.clone() for name, tensor in copy.tensors.items()}

    actor.update(fixed_batch(1))
    assert all(torch.equal(copy.tensors[name], before[name]) for name in before)
    assert copy.updates == 1

    copy.take(actor)
    assert {name: tensor.data_ptr() for name, tensor in copy.tensors.items()} == room
    assert copy.updates == 2
    assert not torch.equal(copy.tensors["model.transformer.wte.weight"],
                           before["model.transformer.wte.weight"])  # fmt: skip


def test_room_that_was_reserved_is_taken_by_the_first_copy() -> None:
    actor, copy = new_actor(kl_loss_coef=0.1), StateCopy()
    copy.reserve(actor)
    room = {name: tensor.data_ptr() for name, tensor in copy.tensors.items()}
    actor.update(fixed_batch(0))
    copy.take(actor)
    found = {name: tensor.data_ptr() for name, tensor in copy.tensors.items()}
    fresh = {name for name in found if found[name] != room.get(name)}
    assert {name.split(".")[0] for name in fresh} == {"optimizer"}
    assert all(name.startswith("optimizer.step.") for name in fresh)


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    actor = new_actor()
    actor.update(fixed_batch(0))
    save(actor, tmp_path)
    names = [
        name for name in part.read(tmp_path / "trainer").tensors if "wte" in name or "lm" in name
    ]
    assert sorted(names) == [
        "model.transformer.wte.weight",
        "optimizer.exp_avg.transformer.wte.weight",
        "optimizer.exp_avg_sq.transformer.wte.weight",
        "optimizer.step.transformer.wte.weight",
    ]
    again = new_actor()
    reload(again, tmp_path)
    assert again.model.lm_head.weight is again.model.transformer.wte.weight


def test_a_state_whose_every_update_was_left_out_has_no_optimizer_state(tmp_path: Path) -> None:
    actor = new_actor()
    batch = fixed_batch(0)
    batch.advantages.fill_(float("inf"))
    actor.update(batch)
    save(actor, tmp_path)
    again = new_actor()
    reload(again, tmp_path)
    assert (again.updates, len(again.optimizer.state)) == (1, 0)
    assert again.update(fixed_batch(1)) == actor.update(fixed_batch(1))


def test_another_model_is_refused_by_name_and_nothing_changes(tmp_path: Path) -> None:
    save(new_actor(), tmp_path)
    other = new_actor(tiny_model(width=32))
    before = parameters(other.model)
    with pytest.raises(UsageError, match=r"wte\.weight is \[11, 16\] there and \[11, 32\] here"):
        reload(other, tmp_path)
    assert same(parameters(other.model), before)


def test_a_kl_loss_that_is_switched_on_later_says_what_it_is_taken_to(tmp_path: Path) -> None:
    save(new_actor(), tmp_path)
    [note] = reload(new_actor(kl_loss_coef=0.1), tmp_path)
    assert "no initial policy" in note


class Bomb:
    """Leaves a trace where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self._place,)


def test_an_index_that_would_run_code_is_refused_before_it_runs(tmp_path: Path) -> None:
    save(new_actor(), tmp_path)
    (tmp_path / "trainer" / shards.INDEX).write_bytes(pickle.dumps(Bomb(tmp_path / "trace")))
    with pytest.raises(ShardsDamagedError, match="has no place in an index"):
        part.read(tmp_path / "trainer")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp", "state.json", "metrics.jsonl.gz"])
@pytest.mark.parametrize("torn", [True, False])
def test_a_torn_or_missing_file_is_said_and_is_no_traceback(
    tmp_path: Path, file: str, torn: bool
) -> None:
    save(new_actor(), tmp_path)
    path = tmp_path / "trainer" / file
    if torn:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.unlink()
    with pytest.raises((ShardsDamagedError, PartDamagedError), match="trainer"):
        part.read(tmp_path / "trainer")


def test_a_state_of_a_later_version_is_refused(tmp_path: Path) -> None:
    save(new_actor(), tmp_path)
    file = tmp_path / "trainer" / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema_version": 2}))
    with pytest.raises(PartDamagedError, match="schema version 2 is not 1"):
        part.read(tmp_path / "trainer")


def test_a_part_is_fetched_with_its_hashes_checked(tmp_path: Path) -> None:
    actor = new_actor()
    actor.update(fixed_batch(0))
    save(actor, tmp_path, step=4)
    uri = f"file://{tmp_path}/storage/global_step_4"
    stored = write_part(
        uri, name="trainer", owner="trainer", source=tmp_path / "trainer", target="trainer"
    )
    again = new_actor()
    load(stored, again, step=4, scratch=tmp_path / "scratch")
    assert same(parameters(again.model), parameters(actor.model))
    with pytest.raises(PartDamagedError, match="it is of step 4, not of 5"):
        load(stored, again, step=5, scratch=tmp_path / "scratch")

    shard = tmp_path / "storage" / "global_step_4" / "trainer" / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DamagedError, match="SHA-256"):
        load(stored, again, step=4, scratch=tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


def test_the_tokenizers_fingerprint_is_of_what_it_does(tmp_path: Path) -> None:
    def digest(alphabet: str, eos: str, name: str) -> str:
        tokenizer = Alphabet(AlphabetTokenizer(alphabet=alphabet, eos=eos))
        describe(tmp_path / name, tiny_model(), tokenizer)
        return fingerprint(tmp_path / name, tokenizer)

    assert digest("0123", ";", "a") == digest("0123", ";", "b")
    assert len({digest("0123", ";", "a"), digest("0132", ";", "b"), digest("0123", "!", "c")}) == 3
