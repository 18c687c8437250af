"""A quick digest of a tensor's bytes, made where the tensor is.

It finds what goes wrong on the way, on any device at the speed of its memory, and is the same on
all. It is no protection against somebody who means to deceive. Needs torch, when it is called:
whoever has a tensor has it.
"""

from __future__ import annotations

from typing import Any, Final

_BLOCK_WORDS: Final = 2**22
"""Words worked on at a time: what else would be needed is a multiple of the tensor."""
_SPREAD: Final = 0x9E3779B97F4A7C15 - 2**64
"""The golden ratio as 64 bits: multiples of it are spread evenly."""


def digest(tensor: Any) -> Any:
    """Return 64 bits as a tensor without dimensions, on the same device, which is not waited for.

    The sum over the 32-bit words, each times an odd number that depends on its place. One wrong
    word always shows.
    """
    import torch

    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    missing = -data.numel() % 4
    if missing or data.storage_offset() % 4:
        padded = data.new_zeros(data.numel() + missing)
        padded[: data.numel()] = data
        data = padded
    words = data.view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for begin in range(0, words.numel(), _BLOCK_WORDS):
        block = words[begin : begin + _BLOCK_WORDS].to(torch.int64)
        places = torch.arange(begin, begin + block.numel(), device=words.device)
        total += (block * (places * _SPREAD | 1)).sum()
    return total


def text_of(digested: Any) -> str:
    """Write a digest as 16 hexadecimal digits. Waits for the device."""
    return f"{int(digested) & (2**64 - 1):016x}"
