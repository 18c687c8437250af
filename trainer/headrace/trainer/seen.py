r"""A digest of the prompts that weights have seen, so that it can be compared with the ledger.

It goes wherever the weights go, checkpoints included, and is told step by step:

    seen(0) = ""        seen(s) = SHA-256 of "{seen(s - 1)}\n{s}:{uids of step s, sorted, by comma}"
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def with_step(seen: str, step: int, uids: Iterable[str]) -> str:
    """Give the digest, hexadecimal, after one more step."""
    return hashlib.sha256(f"{seen}\n{step}:{','.join(sorted(uids))}".encode()).hexdigest()
