"""A run that has ended goes back, or begins again: feeder and workers go on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from feed_life import living, packer
from journals import OpenJournal, journals
from ledger_world import settings
from replay_resumes import OPEN
from replay_server import Replay, replay_server

from headrace.errors import CannotResumeError
from headrace.feeder.order import Order
from headrace.feeder.prompts import Prompts
from headrace.feeder.sources.source import Row
from headrace.feeder.supply import NumberedSupply
from headrace.replay.settings import LedgerSettings
from headrace.rpc.status import error_from
from headrace.v1 import replay_pb2 as pb

RULES = settings(window_size=8, saves=True, total_steps=3)
LINEAGE = "l0"


@pytest.fixture(params=["file", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenJournal]:
    with journals(request.param, tmp_path / "journal") as opens:
        yield opens


class Rows:
    """A data set of numbers."""

    name = "rows"

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Row:
        return Row(str(index), "", self.name)

    def fingerprint(self) -> str:
        return "f"


def supply(size: int) -> NumberedSupply:
    return NumberedSupply(Prompts(Rows(size), packer()), Order(size, 0, False))


async def ended(replay: Replay, *, rows: int = 1000) -> int:
    """Train to the end, with a checkpoint of step 1; give the trainer."""
    trainer = await replay.begin(row_count=rows)
    await replay.train(trainer, 1, 1)
    await replay.begin_cut(trainer, 1)
    await replay.end_cut(1)
    await replay.train(trainer, 2, 3)
    await replay.stub.EndRun(pb.EndRunRequest(incarnation=trainer))
    return trainer


async def demand(
    replay: Replay, wait_s: float = 0, *, after_end: bool = False
) -> pb.AwaitDemandResponse:
    return await replay.stub.AwaitDemand(
        pb.AwaitDemandRequest(wait_s=wait_s, after_end=after_end), timeout=wait_s + 10
    )


async def test_a_run_that_has_ended_goes_back_and_on_to_its_end_again(opened: OpenJournal) -> None:
    async with replay_server(opened(), RULES) as replay:
        await ended(replay)
        before = (await replay.status()).counts
        assert (await demand(replay)).ended
        assert (await demand(replay, 0.1, after_end=True)).ended
        waiting = asyncio.ensure_future(demand(replay, 20, after_end=True))

        trainer = await replay.begin_resume(1)
        await replay.until_phase(trainer, 1, OPEN)

        assert not (await waiting).ended
        now = await replay.status()
        assert (now.ended, now.committed_step, now.counts.trained) == (False, 1, 4)
        await replay.train(trainer, 2, 3)
        await replay.stub.EndRun(pb.EndRunRequest(incarnation=trainer))
        now = await replay.status()
        assert (now.ended, now.committed_step, now.counts) == (True, 3, before)
        assert list((await replay.stub.Audit(pb.AuditRequest())).violations) == []


async def test_a_feeder_at_the_end_goes_on_when_a_resume_goes_back_behind_it(
    tmp_path: Path,
) -> None:
    """And feeds what is wanted beyond what was fed: the run is longer now."""
    async with replay_server(tmp_path / "journal", RULES) as replay:
        await ended(replay)
    async with replay_server(tmp_path / "journal", replace(RULES, total_steps=5)) as replay:
        async with living(replay.target, supply(1000), chunk=4) as life:
            await life.task
            going_on = asyncio.ensure_future(life.feed.reopened())
            trainer = await replay.begin_resume(1)
            await replay.until_phase(trainer, 1, OPEN)
            await going_on
            feeding = asyncio.ensure_future(life.feed.run())
            await replay.train(trainer, 2, 5)
            await replay.stub.EndRun(pb.EndRunRequest(incarnation=trainer))
            await feeding
        now = await replay.status()
        assert (now.ended, now.total_steps, now.counts.trained) == (True, 5, 20)


async def test_a_feeder_at_the_end_opens_its_feed_to_a_replay_buffer_that_lost_the_run(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        async with replay_server(tmp_path / "journal", RULES) as replay:
            await ended(replay)
            life = await stack.enter_async_context(living(replay.target, supply(1000), chunk=4))
            await life.task
            going_on = asyncio.ensure_future(life.feed.reopened())
            port = int(replay.target.rpartition(":")[2])
        async with replay_server(tmp_path / "empty", RULES, port=port) as replay:
            await going_on
            feeding = asyncio.ensure_future(life.feed.run())
            await replay.begin()
            async with asyncio.timeout(20):
                while (await replay.status()).cursor < 8:  # noqa: ASYNC110 (no event)
                    await asyncio.sleep(0.05)
            feeding.cancel()


@pytest.mark.parametrize(("steps", "length"), [(2, 2), (5, 5), (1, 1), (None, 250)])
async def test_a_run_that_goes_back_behind_its_end_is_as_long_as_it_is_configured_now(
    tmp_path: Path, *, steps: int | None, length: int
) -> None:
    async with replay_server(tmp_path / "journal", RULES) as replay:
        await ended(replay)
    async with replay_server(tmp_path / "journal", replace(RULES, total_steps=steps)) as replay:
        await replay.stub.OpenFeed(pb.OpenFeedRequest(row_count=1000, fingerprint="f"))
        assert (await replay.status()).total_steps == 3, "what is over stays so"
        await replay.begin_resume(1)
        await replay.to_ledger()
        await replay.roll_back()
        assert (await replay.status()).total_steps == length


@pytest.mark.parametrize(
    ("rules", "step", "start_over", "said"),
    [
        (RULES, 1, False, "1 epochs of 10 rows are 10 prompts, and this run has read 12"),
        (RULES, 0, True, ""),
        (replace(RULES, epochs=2, total_steps=1), 2, False, "fewer than the 2 steps"),
    ],
)
async def test_a_length_that_does_not_reach_is_refused_before_anything_changes(
    tmp_path: Path, *, rules: LedgerSettings, step: int, start_over: bool, said: str
) -> None:
    async with replay_server(tmp_path / "journal", replace(RULES, epochs=2)) as replay:
        await ended(replay, rows=10)
    async with replay_server(tmp_path / "journal", rules) as replay:
        await replay.begin_resume(step)
        await replay.to_ledger()
        if not said:
            await replay.roll_back(start_over=start_over)
            assert (await replay.status()).total_steps == 2
            return
        before = replay.buffer.ledger.position
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replay.roll_back(start_over=start_over)
        error = error_from(failed.value)
        assert isinstance(error, CannotResumeError)
        assert said in str(error)
        assert replay.buffer.ledger.position == before


async def test_a_repeat_of_the_roll_back_after_the_end_changes_nothing(tmp_path: Path) -> None:
    async with replay_server(tmp_path / "journal", RULES) as replay:
        await ended(replay)
        trainer = await replay.begin_resume(1)
        await replay.until_phase(trainer, 1, OPEN)
        await replay.train(trainer, 2, 3)
        await replay.stub.EndRun(pb.EndRunRequest(incarnation=trainer))
    async with replay_server(tmp_path / "journal", replace(RULES, total_steps=9)) as replay:
        await replay.roll_back()
        now = await replay.status()
        assert (now.ended, now.total_steps) == (True, 3)


async def test_a_run_begins_again_from_the_first_row(opened: OpenJournal) -> None:
    async with replay_server(opened(), RULES) as replay:
        trainer = await ended(replay)
        trainer = await replay.begin_resume(0)
        await replay.to_ledger()
        answer = await replay.roll_back(start_over=True)
        position = replay.buffer.ledger.position
        assert await replay.roll_back(start_over=True) == answer
        assert replay.buffer.ledger.position == position

        now = await replay.status()
        assert (now.cursor, now.counts.fed, now.committed_step, now.ended) == (0, 0, 0, False)
        assert [line.parent for line in now.lineages] == ["", LINEAGE]
        await replay.until_phase(trainer, 0, OPEN)
        await replay.train(trainer, 1, 3)
        await replay.stub.EndRun(pb.EndRunRequest(incarnation=trainer))
        assert (await replay.status()).counts.trained == 12
        assert list((await replay.stub.Audit(pb.AuditRequest())).violations) == []
