"""Everything that the next update depends on, as tensors by name.

    model.{name}              parameters and buffers; tied ones once
    optimizer.{slot}.{name}   of each parameter that was updated, such as `exp_avg`
    reference.{name}          the initial policy, where there is a KL loss
    rng.cpu, rng.cuda.{i}     torch's random numbers

Beside them go the number of updates that were made, from which the learning rate follows, and which
prompts they were made with. The trainer draws no random numbers but torch's. Knows nothing of files
or of steps. Everything here runs on the thread that computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import torch

from headrace.errors import UsageError
from headrace.trainer.actor import Actor
from headrace.trainer.number_format import TRAINED

MODEL: Final = "model."
OPTIMIZER: Final = "optimizer."
REFERENCE: Final = "reference."
RNG_CPU: Final = "rng.cpu"
RNG_CUDA: Final = "rng.cuda."
LARGE_SLOTS: Final = ("exp_avg", "exp_avg_sq")
"""What AdamW will keep of each parameter, from its first step on."""
NAMED: Final = 5
"""Names that a message gives in full."""


class StateCopy:
    """A copy of the state in the machine's memory. Its room is used again by the next copy.

    Args:
        tensors: room from before, such as a state that was loaded.

    Attributes:
        tensors: the copy, by name.
        updates: how many updates are in it.
        seen: the prompts that the weights have seen.

    """

    def __init__(self, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
        self.tensors = dict(tensors or {})
        self.updates = 0
        self.seen = ""

    def take(self, actor: Actor) -> None:
        """Copy the state as it is now. The reference never changes: it is copied once."""
        found = dict(_state_of(actor))
        for name, tensor in found.items():
            room = self.tensors.get(name)
            if room is None or room.shape != tensor.shape or room.dtype != tensor.dtype:
                self.tensors[name] = room = _room_for(tensor)
            elif name.startswith(REFERENCE):
                continue
            room.copy_(tensor, non_blocking=True)
        if actor.device.type == "cuda":
            torch.cuda.synchronize(actor.device)
        for name in self.tensors.keys() - found.keys():
            del self.tensors[name]
        self.updates, self.seen = actor.updates, actor.seen

    def reserve(self, actor: Actor) -> None:
        """Get all the room there will be, before training has to wait for it."""
        self.take(actor)
        for name, parameter in actor.model.named_parameters():
            for slot in LARGE_SLOTS:
                key = f"{OPTIMIZER}{slot}.{name}"
                if parameter.requires_grad and key not in self.tensors:
                    self.tensors[key] = _room_for(parameter.detach()).zero_()


def restore(
    actor: Actor, tensors: Mapping[str, torch.Tensor], updates: int, seen: str
) -> list[str]:
    """Make an actor what it was when the state was copied.

    What an older trainer has kept in bfloat16 becomes float32, to the bit.

    Returns:
        What could not be taken over and is not needed, a line each.

    Raises:
        UsageError: the state is of another model. Nothing has changed.

    """
    fill_model(actor.model, _below(MODEL, tensors))
    notes = _formats(tensors) + _restore_reference(actor, _below(REFERENCE, tensors))
    _restore_optimizer(actor, tensors)
    actor.updates, actor.seen = updates, seen
    _restore_random(tensors)
    return notes


def fill_model(model: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give a model its parameters and buffers, by its own names.

    Raises:
        UsageError: they are of another model. Nothing has changed.

    """
    named = dict(_named(model))
    _check(named, tensors)
    with torch.no_grad():
        for name, tensor in named.items():
            tensor.copy_(tensors[name])


def _state_of(actor: Actor) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in _named(actor.model):
        yield MODEL + name, tensor.detach()
    for name, parameter in actor.model.named_parameters():
        for slot, value in actor.optimizer.state.get(parameter, {}).items():
            yield f"{OPTIMIZER}{slot}.{name}", value
    if actor.reference is not None:
        for name, tensor in _named(actor.reference):
            yield REFERENCE + name, tensor
    yield RNG_CPU, torch.get_rng_state()
    if actor.device.type == "cuda":
        for i, state in enumerate(torch.cuda.get_rng_state_all()):
            yield f"{RNG_CUDA}{i}", state


def _named(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and lasting buffers; what has several names, under its first."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def _room_for(tensor: torch.Tensor) -> torch.Tensor:
    # Pinned memory lets the device copy all tensors in one go.
    return torch.empty_like(
        tensor,
        device="cpu",
        memory_format=torch.contiguous_format,
        pin_memory=tensor.device.type == "cuda",
    )


def _below(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _check(model: Mapping[str, torch.Tensor], there: Mapping[str, torch.Tensor]) -> None:
    problems = []
    if missing := model.keys() - there.keys():
        problems.append(f"it lacks {_listed(missing)}")
    if unknown := there.keys() - model.keys():
        problems.append(f"it has {_listed(unknown)}, which this model has not")
    problems += [
        f"{name} is {list(there[name].shape)} there and {list(model[name].shape)} here"
        for name in sorted(model.keys() & there.keys())
        if model[name].shape != there[name].shape
    ]
    if problems:
        raise UsageError(
            f"the checkpoint is of another model than `model` describes: {'; '.join(problems)}. "
            "Describe the model that the run began with"
        )


def _formats(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    found = {tensor.dtype for name, tensor in tensors.items() if name.startswith(MODEL)}
    return [
        f"the weights of the checkpoint are {str(dtype).removeprefix('torch.')}, as an older trainer "
        "kept them: they and the optimizer go on as float32"
        for dtype in found
        if dtype.is_floating_point and dtype != TRAINED
    ]


def _restore_reference(actor: Actor, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    if actor.reference is None:
        return []
    if not tensors:
        return [
            "the checkpoint has no initial policy, as the run began without algorithm.kl_loss_coef:"
            " the KL is taken to the model as `model` describes it, without a warm start"
        ]
    fill_model(actor.reference, tensors)
    return []


def _restore_optimizer(actor: Actor, tensors: Mapping[str, torch.Tensor]) -> None:
    parameters = dict(actor.model.named_parameters())
    actor.optimizer.state.clear()
    for key, value in tensors.items():
        if not key.startswith(OPTIMIZER):
            continue
        slot, _, name = key.removeprefix(OPTIMIZER).partition(".")
        parameter = parameters[name]
        # A count of steps stays where the optimizer keeps it: on the CPU, in its own format.
        counts = slot == "step"
        actor.optimizer.state[parameter][slot] = (
            value.clone()
            if counts
            else value.to(device=parameter.device, dtype=parameter.dtype, copy=True)
        )


def _restore_random(tensors: Mapping[str, torch.Tensor]) -> None:
    torch.set_rng_state(tensors[RNG_CPU].clone())
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if (state := tensors.get(f"{RNG_CUDA}{i}")) is not None:
            torch.cuda.set_rng_state(state.clone(), i)


def _listed(names: Collection[str]) -> str:
    first = sorted(names)[:NAMED]
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
