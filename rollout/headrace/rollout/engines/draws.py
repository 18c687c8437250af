"""Random numbers that depend on nothing but a sequence's seed and the token's place in it.

A sequence draws the same numbers in whatever batch it is sampled, and however often the batch
is compacted. Knows nothing of torch.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


def uniforms(
    seeds_b: NDArray[np.uint64], index_b: NDArray[np.uint64] | np.uint64
) -> NDArray[np.float64]:
    """Return draw `index_b` of each seed: [B] numbers in [0, 1) with 53 random bits.

    Draw i of a seed is output i of SplitMix64 with that seed (Steele, Lea, Flood: Fast
    splittable pseudorandom number generators, OOPSLA 2014), which needs no state.
    """
    with np.errstate(over="ignore"):
        z = seeds_b + _GOLDEN * (index_b + np.uint64(1))
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)
