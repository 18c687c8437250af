"""What workers report of responses under way, for a `ledger_world.World`.

A token says whose it is and where it stands, so that one in a wrong place shows.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from ledger_world import World

from headrace.replay import drafts, leasing
from headrace.v1 import prompt_pb2, replay_pb2, trajectory_pb2


def token(uid: str, session: int, place: int) -> int:
    """Give the token at a place of a session's response."""
    return zlib.crc32(f"{uid}:{session}:{place}".encode()) % 2**20


def piece(
    world: World, uid: str, session: int, offset: int, *made: tuple[int, int], lineage: str = ""
) -> prompt_pb2.Draft:
    """Make a stretch of a response: so many tokens, (version, count), by each weights in turn."""
    found = prompt_pb2.Draft(session=session, offset=offset)
    end = offset
    for version, count in made:
        line = lineage or world.weights_of(version).lineage
        found.weight_spans.append(
            trajectory_pb2.WeightSpan(lineage=line, version=version, begin=end, end=end + count)
        )
        end += count
    found.token_ids.extend(token(uid, session, place) for place in range(offset, end))
    found.logprobs.extend(-0.5 * place for place in range(offset, end))
    return found


def report(
    world: World,
    ref: replay_pb2.LeaseRef,
    *pieces: prompt_pb2.Draft,
    worker: str = "w",
    lineage: str = "",
) -> list[int]:
    """Report pieces of one lease's sessions; give how many tokens are kept of each."""
    progress = replay_pb2.LeaseProgress(
        lease=ref, lineage=lineage or world.ledger.lineage, drafts=pieces
    )
    drafts.check(world.ledger, [progress])
    held = leasing.holder(world.ledger, worker, ref)
    return drafts.keep(world.ledger, world.settings, [(progress, held)], worker_id=worker)


def kept(world: World, uid: str) -> dict[int, list[tuple[int, int, int]]]:
    """Give the drafts of a group: by session its spans, (version, begin, end)."""
    found = {}
    for session, draft in world.ledger.groups[uid].drafts.items():
        count = len(draft.token_ids)
        assert draft.offset == 0
        assert list(draft.token_ids) == [token(uid, session, place) for place in range(count)]
        assert list(draft.logprobs) == [-0.5 * place for place in range(count)]
        found[session] = [(s.version, s.begin, s.end) for s in draft.weight_spans]
    return found


def running(world: World, count: int = 1) -> Sequence[replay_pb2.LeaseRef]:
    """Feed and lease so many groups."""
    world.feed()
    return world.lease(count)
