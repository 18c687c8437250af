"""The replay buffer over real gRPC: races, durability, fences, and calls made twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from journals import OpenJournal, journals
from ledger_world import settings
from replay_server import Replay, replay_server

from headrace.errors import WeightsUnknownError, WriterFencedError
from headrace.replay import history
from headrace.replay.journal.base import Journal
from headrace.rpc.status import error_from
from headrace.v1 import feeder_pb2, journal_pb2, prompt_pb2
from headrace.v1 import replay_pb2 as pb


class Held:
    """Any journal, made to hold back its acknowledgement (the bytes are written), or to fail.

    Or what is read of it.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.open = threading.Event()
        self.open.set()
        self.readable = threading.Event()
        self.readable.set()
        self.disk_is_full = False

    def append(self, records: Sequence[journal_pb2.JournalRecord]) -> None:
        if self.disk_is_full:
            raise OSError(28, "No space left on device")
        self._journal.append(records)
        self.open.wait()

    def read(self, positions: Sequence[int]) -> list[journal_pb2.JournalRecord]:
        self.readable.wait()
        return self._journal.read(positions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


@pytest.fixture(params=["file", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenJournal]:
    """Opens the test's journal, as often as it likes; every test runs on both kinds."""
    with journals(request.param, tmp_path) as opens:
        yield opens


async def test_two_requests_racing_for_prompts_never_both_get_one(opened: OpenJournal) -> None:
    async with replay_server(opened(), settings(window_size=50)) as replay:
        await replay.begin()
        await replay.feed()
        answers = await asyncio.gather(*(replay.lease(3, worker=f"w{i}") for i in range(40)))
        uids = [lease.uid for leases in answers for lease in leases]
        assert len(uids) == len(set(uids)) == 50


async def test_no_reply_leaves_before_its_event_is_durable(opened: OpenJournal) -> None:
    journal = Held(opened())
    async with replay_server(cast("Journal", journal), settings()) as replay:
        incarnation = await replay.begin()
        await replay.feed()
        leases = await replay.lease()
        journal.open.clear()
        completing = asyncio.ensure_future(replay.stub.CompleteSessions(replay.completion(leases)))
        await _until(lambda: not replay.buffer.ledger.groups.running)
        # Memory has changed; nobody may know: neither the worker, nor a reader, nor the trainer.
        reading = asyncio.ensure_future(replay.stub.Audit(pb.AuditRequest()))
        sampling = asyncio.ensure_future(
            replay.stub.SampleBatch(
                pb.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1)
            )
        )
        done, _ = await asyncio.wait({completing, reading, sampling}, timeout=0.3)
        assert not done
        journal.open.set()
        assert set((await completing).statuses) == {pb.LEASE_STATUS_DONE}
        assert (await reading).ok
        assert len((await sampling).groups) == 4


async def test_a_caller_that_gives_up_does_not_hurt_the_others(opened: OpenJournal) -> None:
    journal = Held(opened())
    async with replay_server(cast("Journal", journal), settings()) as replay:
        await replay.begin()
        await replay.feed()
        journal.open.clear()
        impatient = asyncio.ensure_future(replay.lease(2, worker="a"))
        await _until(lambda: len(replay.buffer.ledger.groups.running) == 2)
        impatient.cancel()
        patient = asyncio.ensure_future(replay.lease(2, worker="b"))
        await _until(lambda: len(replay.buffer.ledger.groups.running) == 4)
        journal.open.set()
        assert len(await patient) == 2
        assert (await replay.stub.Audit(pb.AuditRequest())).ok


async def test_a_disk_that_refuses_stops_the_service_before_anybody_is_answered(
    opened: OpenJournal,
) -> None:
    journal = Held(opened())
    async with replay_server(cast("Journal", journal), settings()) as replay:
        await replay.begin()

        journal.disk_is_full = True
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replay.feed()
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert replay.buffer.committer.failure is not None


async def test_the_older_of_two_replay_buffers_is_fenced(opened: OpenJournal) -> None:
    async with replay_server(opened(), settings()) as older:
        await older.begin()
        async with replay_server(opened(), settings()) as newer:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await older.feed()
            assert isinstance(error_from(failed.value), WriterFencedError)
            assert await newer.feed() == 12
            assert (await newer.stub.Audit(pb.AuditRequest())).ok


async def test_a_restart_goes_on_from_the_journal_and_leases_get_a_full_period(
    opened: OpenJournal,
) -> None:
    now = 0.0
    async with replay_server(opened(), settings(), clock=lambda: now) as replay:
        await replay.begin()
        await replay.feed()
        leases = await replay.lease()
        before = await replay.stub.GetReplayStatus(pb.GetReplayStatusRequest())
    async with replay_server(opened(), settings(), clock=lambda: now, lease_s=60) as replay:
        after = await replay.stub.GetReplayStatus(pb.GetReplayStatusRequest())
        assert after.counts == before.counts
        assert after.lineage == before.lineage
        assert replay.buffer.expire_leases() == []
        now += 59
        assert replay.buffer.expire_leases() == []
        statuses = (await replay.stub.CompleteSessions(replay.completion(leases[:4]))).statuses
        assert set(statuses) == {pb.LEASE_STATUS_DONE}
        now += 2
        assert len(replay.buffer.expire_leases()) == 8


async def test_what_a_smaller_threshold_makes_too_old_is_dropped_at_the_restart(
    opened: OpenJournal,
) -> None:
    async with replay_server(opened(), settings(threshold=3)) as replay:
        incarnation = await replay.begin()
        await replay.feed()
        leases = await replay.lease()
        await replay.stub.CompleteSessions(replay.completion(leases))
        await replay.stub.SampleBatch(
            pb.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1)
        )
        await replay.stub.CommitStep(pb.CommitStepRequest(incarnation=incarnation, step=1))

    async with replay_server(opened(), settings(threshold=1)) as replay:
        status = await replay.stub.GetReplayStatus(pb.GetReplayStatusRequest())
        assert (status.counts.finished, dict(status.counts.dropped)) == (0, {"stale": 8})
        assert (await replay.stub.Audit(pb.AuditRequest())).ok
        assert await replay.feed() == 12


async def test_a_renewed_lease_does_not_run_out(opened: OpenJournal) -> None:
    now = 0.0
    async with replay_server(opened(), settings(), clock=lambda: now, lease_s=10) as replay:
        await replay.begin()
        await replay.feed()
        [kept, lost] = await replay.lease(2)
        for _ in range(5):
            now += 6
            refs = [pb.LeaseRef(uid=kept.uid, attempt=kept.attempt)]
            await replay.stub.RenewLeases(pb.RenewLeasesRequest(worker_id="w", leases=refs))
            replay.buffer.expire_leases()
        assert [group.uid for group in replay.buffer.ledger.groups.running] == [kept.uid]
        refs = [pb.LeaseRef(uid=lost.uid, attempt=lost.attempt)]
        answer = await replay.stub.RenewLeases(pb.RenewLeasesRequest(worker_id="w", leases=refs))
        assert list(answer.statuses) == [pb.LEASE_STATUS_LOST]


async def test_long_polls_are_answered_by_the_event_they_wait_for(opened: OpenJournal) -> None:
    async with replay_server(opened(), settings(window_size=4)) as replay:
        incarnation = await replay.begin()
        sampling = asyncio.ensure_future(
            replay.stub.SampleBatch(
                pb.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1, wait_s=20)
            )
        )
        leasing = asyncio.ensure_future(replay.lease(8, wait_s=20))
        await replay.feed(wait_s=5)
        leases = await leasing
        assert leases
        await replay.feed()
        leases += await replay.lease(8)
        await replay.stub.CompleteSessions(replay.completion(leases))
        assert (await sampling).status == pb.SAMPLE_STATUS_READY


async def test_a_long_poll_without_an_event_says_what_is_missing(opened: OpenJournal) -> None:
    async with replay_server(opened(), settings()) as replay:
        incarnation = await replay.begin()
        answer = await replay.stub.SampleBatch(
            pb.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1, wait_s=0.05)
        )
        assert answer.status == pb.SAMPLE_STATUS_WAITING
        assert "4 more finished groups" in answer.blocked_by


async def test_foreign_weights_are_refused_by_name(opened: OpenJournal) -> None:
    async with replay_server(opened(), settings()) as replay:
        await replay.begin()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replay.lease(version=6)
        error = error_from(failed.value)
        assert isinstance(error, WeightsUnknownError)
        assert error.metadata["latest_version"] == "0"


async def test_where_tells_a_prompts_whole_history(opened: OpenJournal) -> None:
    async with replay_server(opened(), settings()) as replay:
        incarnation = await replay.begin()
        await replay.feed()
        await replay.stub.CompleteSessions(replay.completion(await replay.lease()))
        await replay.stub.SampleBatch(
            pb.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1)
        )
        await replay.stub.CommitStep(pb.CommitStepRequest(incarnation=incarnation, step=1))
        answer = await replay.stub.LocatePrompt(pb.LocatePromptRequest(uid="e0r0"))
        assert answer.group.state == prompt_pb2.PROMPT_STATE_TRAINED
        assert [event.name for event in answer.history] == [
            "prompts_registered",
            "prompts_leased",
            "sessions_completed",
            "batch_sampled",
            "step_committed",
        ]
        assert all("e0r1" not in event.detail_json for event in answer.history)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replay.stub.LocatePrompt(pb.LocatePromptRequest(uid="e5r5"))
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_journal_that_cannot_be_read_holds_up_nobody_but_who_looks(
    opened: OpenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while Redis is away."""
    journal = Held(opened())
    where = pb.LocatePromptRequest(uid="e0r0")
    async with replay_server(cast("Journal", journal), settings()) as replay:
        await replay.begin()
        await replay.feed()
        journal.readable.clear()
        with monkeypatch.context() as patch:
            patch.setattr(history, "READ_S", 0.3)
            asking = [asyncio.ensure_future(replay.stub.LocatePrompt(where)) for _ in range(20)]
            watching = asyncio.ensure_future(
                replay.stub.WatchEvents(pb.WatchEventsRequest()).read()
            )
            try:
                assert len(await replay.lease()) == 12
                failures = await asyncio.gather(*asking, watching, return_exceptions=True)
            finally:
                journal.readable.set()
        for failure in failures:
            assert isinstance(failure, grpc.aio.AioRpcError)
            assert failure.code() is grpc.StatusCode.UNAVAILABLE
            assert failure.details() == "the journal was not read within 0.3 s"
        assert len((await replay.stub.LocatePrompt(where)).history) == 2


async def test_who_watches_is_told_why_the_journal_failed_and_to_ask_again(
    opened: OpenJournal,
) -> None:
    journal = Held(opened())
    async with replay_server(cast("Journal", journal), settings()) as replay:
        await replay.begin()
        watching = replay.stub.WatchEvents(
            pb.WatchEventsRequest(after_position=replay.buffer.ledger.position)
        )
        told = asyncio.ensure_future(watching.read())
        await asyncio.sleep(0)
        journal.disk_is_full = True
        with pytest.raises(grpc.aio.AioRpcError):
            await replay.feed()

        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await told

        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "No space left on device" in (failed.value.details() or "")


async def test_prompts_are_listed_by_state_a_page_at_a_time(opened: OpenJournal) -> None:
    async with replay_server(opened(), settings()) as replay:
        await replay.begin()
        await replay.feed()
        await replay.lease(5)
        uids: list[str] = []
        token = ""
        while True:
            page = await replay.stub.ListPrompts(
                pb.ListPromptsRequest(
                    state=prompt_pb2.PROMPT_STATE_PENDING, page_size=3, page_token=token
                )
            )
            uids += [group.uid for group in page.groups]
            token = page.next_page_token
            if not token:
                break
        assert uids == [f"e0r{i}" for i in range(5, 12)]


async def test_events_are_watched_from_any_position_without_gaps(opened: OpenJournal) -> None:
    async with replay_server(opened(), settings()) as replay:
        await replay.begin()
        stream = replay.stub.WatchEvents(pb.WatchEventsRequest(after_position=2))
        seen: list[int] = []
        async for message in stream:
            seen += [event.position for event in message.events]
            if len(seen) == 3:
                await replay.feed()
            if len(seen) >= 4:
                break
        stream.cancel()
        assert seen == [3, 4, 5, 6]


async def test_a_worker_that_is_sent_home_is_told_with_its_next_calls(opened: OpenJournal) -> None:
    async with replay_server(opened(), settings()) as replay:
        await replay.begin()
        await replay.feed()
        leases = await replay.lease(2, worker="w")
        other = pb.DrainWorkerRequest(worker_id="nobody")
        with pytest.raises(grpc.aio.AioRpcError, match="no worker 'nobody' was heard of lately"):
            await replay.stub.DrainWorker(other)
        before = await replay.stub.RenewLeases(pb.RenewLeasesRequest(worker_id="w"))

        answer = await replay.stub.DrainWorker(pb.DrainWorkerRequest(worker_id="w"))

        assert answer.lease_count == len(leases) == 2
        renewed = await replay.stub.RenewLeases(pb.RenewLeasesRequest(worker_id="w"))
        assert (before.go_home, renewed.go_home) == (False, True)
        assert await replay.lease(2, worker="w") == []
        assert len(await replay.lease(2, worker="other")) == 2


MUTATING: dict[str, Callable[[Replay, int], Any]] = {
    "OpenFeed": lambda r, i: r.stub.OpenFeed(pb.OpenFeedRequest(row_count=1000, fingerprint="f")),
    "EndFeed": lambda r, i: r.stub.EndFeed(pb.EndFeedRequest(ordinal_count=800)),
    "RegisterPrompts": lambda r, i: r.stub.RegisterPrompts(
        pb.RegisterPromptsRequest(
            first_ordinal=12, prompts=[pb.NewPrompt(uid=f"e0r{12 + k}") for k in range(4)]
        )
    ),
    "CompleteSessions": lambda r, i: r.stub.CompleteSessions(
        r.completion([prompt_pb2.Lease(uid="e0r10", attempt=1, missing_sessions=[0, 1])])
    ),
    "EndLeases": lambda r, i: r.stub.EndLeases(
        pb.EndLeasesRequest(
            worker_id="w",
            leases=[
                pb.EndedLease(
                    lease=pb.LeaseRef(uid="e0r11", attempt=1), end=pb.LEASE_END_FAILED, error="x"
                )
            ],
        )
    ),
    "RenewLeases": lambda r, i: r.stub.RenewLeases(
        pb.RenewLeasesRequest(worker_id="w", leases=[pb.LeaseRef(uid="e0r10", attempt=1)])
    ),
    "RegisterTrainer": lambda r, i: r.stub.RegisterTrainer(
        pb.RegisterTrainerRequest(trainer_id="t1")
    ),
    "PublishWeights": lambda r, i: r.publish(i, 0),
    "SampleBatch": lambda r, i: r.stub.SampleBatch(
        pb.SampleBatchRequest(incarnation=i, step=1, part_count=1)
    ),
    "ReturnGroups": lambda r, i: r.stub.ReturnGroups(
        pb.ReturnGroupsRequest(
            incarnation=i, step=1, part=0, uids=["e0r0"], attempts=[1], error="x"
        )
    ),
    "RegisterStore": lambda r, i: r.stub.RegisterStore(
        pb.RegisterStoreRequest(store_incarnation="s1", capacity_bytes=10**9)
    ),
    "DropStale": lambda r, i: r.stub.DropStale(pb.DropStaleRequest(step=50)),
    "FeedPrompts": lambda r, i: r.stub.FeedPrompts(pb.FeedPromptsRequest(count=2, request_id="a")),
    "Refill": lambda r, i: r.stub.Refill(pb.RefillRequest(count=2, request_id="b")),
    "RegisterRows": lambda r, i: r.stub.RegisterRows(
        pb.RegisterRowsRequest(request_id="c", rows=[feeder_pb2.PromptPayload(text="hello")])
    ),
    "PauseRun": lambda r, i: r.stub.PauseRun(pb.PauseRunRequest()),
    "ResumeRun": lambda r, i: r.stub.ResumeRun(pb.ResumeRunRequest()),
    "DrainWorker": lambda r, i: r.stub.DrainWorker(pb.DrainWorkerRequest(worker_id="w")),
    "CloseCircuit": lambda r, i: r.stub.CloseCircuit(pb.CloseCircuitRequest()),
    "DropPrompts": lambda r, i: r.stub.DropPrompts(pb.DropPromptsRequest(uids=["e0r11"])),
}
NOT_BY_ITSELF = {
    "LeasePrompts", "CommitStep", "EndRun", "BeginCut", "WriteCut", "EndCut", "BeginResume",
    "RollBack", "AdvanceResume", "ReportLostTrajectories",
}  # fmt: skip
"""Tested on their own: a lease's repeat leases more, a commit needs its step sampled; snapshots and
resumes have files of their own."""
READING = {
    "AwaitDemand", "AwaitWeights", "FindDeadTrajectories", "LocatePrompt", "Audit", "ListPrompts",
    "GetReplayStatus", "WatchEvents", "ListTrajectories",
}  # fmt: skip


def test_every_call_is_listed_as_reading_or_mutating() -> None:
    service = pb.DESCRIPTOR.services_by_name["ReplayBufferService"]
    assert {method.name for method in service.methods} == MUTATING.keys() | READING | NOT_BY_ITSELF


@pytest.mark.parametrize("name", MUTATING)
async def test_a_mutating_call_made_twice_changes_nothing_the_second_time(
    opened: OpenJournal, name: str
) -> None:
    async with replay_server(opened(), settings(threshold=8)) as replay:
        incarnation = await replay.begin()
        await replay.feed()
        leases = await replay.lease()
        await replay.stub.CompleteSessions(replay.completion(leases[:10]))
        first_part = pb.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1)
        await replay.stub.SampleBatch(first_part)
        await MUTATING[name](replay, incarnation)
        position = replay.buffer.ledger.position
        counts = replay.buffer.ledger.groups.to_counts()
        await MUTATING[name](replay, incarnation)
        assert replay.buffer.ledger.position == position
        assert replay.buffer.ledger.groups.to_counts() == counts


async def test_a_commit_made_twice_trains_once(opened: OpenJournal) -> None:
    async with replay_server(opened(), settings()) as replay:
        incarnation = await replay.begin()
        await replay.feed()
        await replay.stub.CompleteSessions(replay.completion(await replay.lease()))
        await replay.stub.SampleBatch(
            pb.SampleBatchRequest(incarnation=incarnation, step=1, part_count=1)
        )
        commit = pb.CommitStepRequest(incarnation=incarnation, step=1)
        answers = [await replay.stub.CommitStep(commit) for _ in range(2)]
        assert answers[0] == answers[1]
        assert replay.buffer.ledger.groups.to_counts().trained == 4


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (the ledger's state has no event)
            await asyncio.sleep(0)
