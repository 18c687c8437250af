"""Responses under way over real gRPC and in real journals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from journals import OpenJournal, journals
from ledger_world import settings
from replay_server import Replay, replay_server

from headrace.v1 import prompt_pb2, trajectory_pb2
from headrace.v1 import replay_pb2 as pb


@pytest.fixture(params=["file", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenJournal]:
    """Opens the test's journal, as often as it likes; every test runs on both kinds."""
    with journals(request.param, tmp_path) as opens:
        yield opens


def draft(offset: int, count: int, *, line: str, session: int = 0) -> prompt_pb2.Draft:
    end = offset + count
    span = trajectory_pb2.WeightSpan(lineage=line, version=0, begin=offset, end=end)
    return prompt_pb2.Draft(
        session=session,
        offset=offset,
        token_ids=range(offset, end),
        logprobs=[-0.5] * count,
        weight_spans=[span],
    )


async def renewed(
    replay: Replay, lease: prompt_pb2.Lease, *drafts: prompt_pb2.Draft, worker: str = "w"
) -> pb.RenewLeasesResponse:
    ref = pb.LeaseRef(uid=lease.uid, attempt=lease.attempt)
    progress = pb.LeaseProgress(lease=ref, lineage=lease.lineage, drafts=drafts)
    return await replay.stub.RenewLeases(
        pb.RenewLeasesRequest(worker_id=worker, leases=[ref], progress=[progress])
    )


async def test_what_was_acknowledged_is_given_on_after_the_replay_buffer_was_killed(
    opened: OpenJournal,
) -> None:
    rules = settings(window_size=2)
    async with replay_server(opened(), rules) as replay:
        await replay.begin()
        await replay.feed()
        [lease] = await replay.lease(1)
        assert not lease.drafts
        line = lease.lineage
        first = await renewed(
            replay, lease, draft(0, 5, line=line), draft(0, 2, line=line, session=1)
        )
        assert list(first.kept_counts) == [5, 2]
        for _ in range(2):  # a call that is repeated answers as the first time
            again = await renewed(replay, lease, draft(5, 3, line=line))
            assert list(again.kept_counts) == [8]
            assert list(again.statuses) == [pb.LEASE_STATUS_HELD]

    async with replay_server(opened(), rules) as replay:
        ended = pb.EndedLease(
            lease=pb.LeaseRef(uid=lease.uid, attempt=1), end=pb.LEASE_END_RETURNED
        )
        await replay.stub.EndLeases(pb.EndLeasesRequest(worker_id="w", leases=[ended]))
        [other] = await replay.lease(1, worker="w2")

    assert (other.uid, other.attempt) == (lease.uid, 2)
    assert {each.session: list(each.token_ids) for each in other.drafts} == {
        0: list(range(8)),
        1: [0, 1],
    }
    [span] = other.drafts[0].weight_spans
    assert (span.lineage, span.version, span.begin, span.end) == (line, 0, 0, 8)


async def test_a_report_of_what_is_not_held_is_not_kept_and_one_that_is_malformed_is_refused(
    opened: OpenJournal,
) -> None:
    async with replay_server(opened(), settings(window_size=2)) as replay:
        await replay.begin()
        await replay.feed()
        [lease] = await replay.lease(1)
        line = lease.lineage
        position = replay.buffer.ledger.position

        lost = await renewed(replay, lease, draft(0, 5, line=line), worker="other")
        assert (list(lost.statuses), list(lost.kept_counts)) == ([pb.LEASE_STATUS_LOST], [0])
        gap = await renewed(replay, lease, draft(3, 5, line=line))
        assert list(gap.kept_counts) == [0]
        bad = draft(0, 5, line=line)
        bad.logprobs.pop()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await renewed(replay, lease, bad)

        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert replay.buffer.ledger.position == position
