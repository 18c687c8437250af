"""Compaction beside a working replay buffer: nothing is lost, restarts read little."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_world import settings
from replay_server import Replay, replay_server

from headrace.replay.compactor import CompactionSettings, Compactor
from headrace.replay.journal.file import FileJournal
from headrace.v1 import replay_pb2 as pb


async def train(replay: Replay, incarnation: int, first: int, last: int) -> None:
    for step in range(first, last + 1):
        sample = pb.SampleBatchRequest(incarnation=incarnation, step=step, part_count=1)
        await replay.stub.SampleBatch(sample)
        await replay.feed()
        leases = await replay.lease(version=step - 1)
        await replay.stub.CompleteSessions(replay.completion(leases, version=step - 1))
        assert (await replay.stub.SampleBatch(sample)).status == pb.SAMPLE_STATUS_READY
        await replay.stub.CommitStep(pb.CommitStepRequest(incarnation=incarnation, step=step))
        await replay.publish(incarnation, step)


@pytest.mark.parametrize("after_compaction", [0, 3])
async def test_a_restart_from_a_base_gives_the_same_ledger(
    tmp_path: Path, after_compaction: int
) -> None:
    journal = FileJournal(tmp_path, fsync=False, segment_events=20)
    async with replay_server(journal, settings(window_size=4)) as replay:
        incarnation = await replay.begin()
        compactor = Compactor(
            replay.buffer,
            journal,
            CompactionSettings(every_events=10, keep_settled=6, keep_events=15),
        )
        await train(replay, incarnation, 1, 10)
        assert compactor.is_due
        await compactor.compact()
        assert not compactor.is_due
        await train(replay, incarnation, 11, 10 + after_compaction)
        before = await replay.stub.GetReplayStatus(pb.GetReplayStatusRequest())
        assert before.first_position > 1
        assert (await replay.stub.Audit(pb.AuditRequest())).ok

    async with replay_server(tmp_path, settings(window_size=4)) as replay:
        after = await replay.stub.GetReplayStatus(pb.GetReplayStatusRequest())
        before.ClearField("workers")
        assert after == before
        assert after.counts.fed == after.counts.trained + after.counts.pending + (
            after.counts.running + after.counts.finished
        )
        await train(replay, incarnation, 11 + after_compaction, 12 + after_compaction)
        assert (await replay.stub.Audit(pb.AuditRequest())).ok
        uid = f"e0r{4 * (12 + after_compaction) - 1}"
        located = await replay.stub.LocatePrompt(pb.LocatePromptRequest(uid=uid))
        assert located.history[0].name == "prompts_registered"


async def test_the_running_ledger_forgets_in_slices_what_the_base_forgot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.replay.compactor.FORGET_AT_ONCE", 3)
    journal = FileJournal(tmp_path, fsync=False)
    async with replay_server(journal, settings(window_size=4)) as replay:
        incarnation = await replay.begin()
        rules = CompactionSettings(every_events=10, keep_settled=6, keep_events=0)
        await train(replay, incarnation, 1, 10)
        await Compactor(replay.buffer, journal, rules).compact()
        table = replay.buffer.ledger.groups
        assert len(table) == 6 + replay.buffer.ledger.live_count
        assert table.fed_count == 40 + replay.buffer.ledger.live_count
        assert (await replay.stub.Audit(pb.AuditRequest())).ok
