"""How much better a session did than the others of its group.

Plain numbers: knows nothing of tokens, models or where rewards come from.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

EPSILON = 1e-6
"""Added to a group's standard deviation before dividing, as the peers do."""


def grpo_advantages(
    rewards: npt.NDArray[np.float64], groups: npt.NDArray[np.int64], *, divide_by_std: bool
) -> npt.NDArray[np.float64]:
    """Subtract each group's mean reward, and divide by its standard deviation if wanted.

    GRPO, arXiv 2402.03300, section 4.1.2; without the division Dr. GRPO, arXiv 2503.20783. The
    standard deviation is the sample's (n - 1). A group whose rewards are all the same gives exact
    zeros. A group of one has no other to compare with: its reward is its advantage.

    Args:
        rewards: [N], one per session.
        groups: [N], the group's number, 0 to G - 1, each with at least one member.
        divide_by_std: whether to divide.

    Returns:
        [N].

    """
    sizes = np.bincount(groups)
    means = np.bincount(groups, weights=rewards) / sizes
    centred = rewards - np.where(sizes > 1, means, 0.0)[groups]
    # Rounding leaves a mean a little beside equal rewards, and a tiny deviation to divide by.
    highest = np.full(len(sizes), -np.inf)
    lowest = np.full(len(sizes), np.inf)
    np.maximum.at(highest, groups, rewards)
    np.minimum.at(lowest, groups, rewards)
    centred[((highest == lowest) & (sizes > 1))[groups]] = 0.0
    if not divide_by_std:
        return centred
    variances = np.bincount(groups, weights=centred**2) / np.maximum(sizes - 1, 1)
    scales = np.where(sizes > 1, np.sqrt(variances) + EPSILON, 1.0)
    advantages: npt.NDArray[np.float64] = centred / scales[groups]
    return advantages
