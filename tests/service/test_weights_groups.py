"""Groups that the trainer sends weights to: the real service and a worker's real side, and in place
of NCCL, for which there is no GPU, a process that only speaks as the one that has it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from sending import UNIQUE_ID, Behaviour, started
from weights_world import Giver, publish
from worker_world import serving

from headrace.errors import InvalidFieldError, WeightsGoneError, WeightsGroupError
from headrace.rollout.engines.base import EngineError
from headrace.rollout.engines.receiver import Invitation
from headrace.rollout.weights_group import WeightsGroup
from headrace.rpc.channel import open_channel
from headrace.rpc.status import error_from
from headrace.trainer.sender_process import SenderProcess
from headrace.trainer.weights_groups import WeightsGroups
from headrace.v1 import prompt_pb2, trainer_pb2_grpc
from headrace.v1 import trainer_pb2 as pb

LONG_S = 60.0


class Place:
    """A trainer that sends, and its processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.behaviour: Behaviour = "good"
        self.processes: list[SenderProcess] = []
        self.spare: SenderProcess | None = None
        """Sends for the next group, in place of one that would have to be started."""
        self.groups: WeightsGroups
        self.stub: Any

    async def start_sender(self) -> SenderProcess:
        process = self.spare or await started(self.behaviour)()
        self.processes.append(process)
        return process

    def group(self, worker_id: str = "worker-0", timeout_s: float = LONG_S) -> WeightsGroup:
        return WeightsGroup(self.stub, worker_id=worker_id, timeout_s=timeout_s)

    def publish(self, version: int) -> prompt_pb2.WeightsId:
        return publish(self.root, version).id

    def alive(self) -> list[bool]:
        return [process.is_alive for process in self.processes]


@asynccontextmanager
async def made(
    root: Path, behaviour: Behaviour = "good", *, timeout_s: float = LONG_S, idle_s: float = LONG_S
) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        place = Place(root)
        place.behaviour = behaviour
        place.groups = WeightsGroups(
            "cuda:0", timeout_s=timeout_s, start=place.start_sender, idle_s=idle_s
        )
        giver = Giver(root, place.groups)
        address = await stack.enter_async_context(
            serving(lambda s: trainer_pb2_grpc.add_TrainerServiceServicer_to_server(giver, s))
        )
        channel = await stack.enter_async_context(open_channel(address))
        place.stub = trainer_pb2_grpc.TrainerServiceStub(channel)
        stack.push_async_callback(place.groups.close)
        yield place


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_group_is_opened_and_used_for_one_version_after_the_other(tmp_path: Path) -> None:
    async with made(tmp_path) as place:
        group = place.group()
        assert not group.is_open
        invitation = await group.open(2)
        for version in range(3):
            await group.send(place.publish(version))

        assert invitation == Invitation(UNIQUE_ID, 2**20, 2)
        assert group.is_open
        assert len(list(place.groups)) == 1
        assert place.alive() == [True]
        await group.close()
        assert not group.is_open
        assert len(list(place.groups)) == 0
        assert place.alive() == [False]


async def test_another_group_of_the_same_worker_ends_the_one_before_and_no_other(
    tmp_path: Path,
) -> None:
    async with made(tmp_path) as place:
        first, again, other = place.group(), place.group(), place.group("worker-1")
        await first.open(1)
        await other.open(1)
        await again.open(1)
        weights = place.publish(0)

        with pytest.raises(EngineError, match="this group is not there any more"):
            await first.send(weights)
        await again.send(weights)
        await other.send(weights)
        assert place.alive() == [False, True, True]
        assert len(list(place.groups)) == 2
        # Its owner does not know that it was replaced, and ends nothing but its own.
        await first.close()
        assert len(list(place.groups)) == 2


async def test_a_worker_that_gives_up_while_its_last_group_ends_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = asyncio.Event()

    async def end_slowly(why: str) -> None:
        ending.set()
        await asyncio.Event().wait()

    async with made(tmp_path) as place:
        await place.group().open(1)
        [old] = place.groups
        with monkeypatch.context() as slow:
            slow.setattr(old, "end", end_slowly)
            opening = asyncio.create_task(place.groups.open("worker-0", 1))
            await ending.wait()
            opening.cancel()
            await asyncio.wait([opening])

        assert place.alive() == [True]
        assert list(place.groups) == [old]


async def test_closing_again_changes_nothing(tmp_path: Path) -> None:
    async with made(tmp_path) as place:
        group, other = place.group(), place.group("worker-1")
        await group.open(1)
        await other.open(1)
        [group_id] = [each.id for each in place.groups if each.worker_id == "worker-0"]
        for _ in range(2):
            await place.stub.CloseWeightsGroup(pb.CloseWeightsGroupRequest(group_id=group_id))

        assert place.alive() == [False, True]


async def test_a_trainer_that_cannot_send_says_why_and_keeps_nothing(tmp_path: Path) -> None:
    for behaviour, why in (
        ("refuses", "NCCL only supports CUDA and ROCm backends"),
        ("dies", "the process that sends has died"),
    ):
        async with made(tmp_path, behaviour) as place:  # type: ignore[arg-type]
            with pytest.raises(EngineError, match=f"cannot be sent to worker-0: .*{why}"):
                await place.group().open(1)
            assert len(list(place.groups)) == 0
            assert place.alive() == [False]


async def test_whoever_does_not_join_in_time_ends_the_group(tmp_path: Path) -> None:
    async with made(tmp_path, "never joins", timeout_s=2) as place:
        group = place.group()
        await group.open(1)
        with pytest.raises(
            EngineError, match=r"was not joined within weights\.nccl_timeout_s = 2 s"
        ):
            await group.send(place.publish(0))

        assert len(list(place.groups)) == 0
        assert place.alive() == [False]


async def test_a_trainer_that_is_late_to_open_is_given_up(tmp_path: Path) -> None:
    async with made(tmp_path) as place:
        place.spare = await started("never opens")()
        with pytest.raises(EngineError, match="the trainer does not answer"):
            await place.group(timeout_s=2).open(1)

        await until(lambda: place.alive() == [False])
        assert len(list(place.groups)) == 0


async def test_what_fails_while_it_joins_or_sends_ends_the_group_with_the_reason(
    tmp_path: Path,
) -> None:
    for behaviour, why in (
        ("fails to join", "remote process exited"),
        ("fails to send", "no memory"),
    ):
        async with made(tmp_path, behaviour) as place:  # type: ignore[arg-type]
            group = place.group()
            await group.open(1)
            with pytest.raises(EngineError, match=f"{why}|not there any more"):
                await group.send(place.publish(0))
            await until(lambda: len(list(place.groups)) == 0)
            await until(lambda: place.alive() == [False])


async def test_a_version_that_is_not_received_in_time_ends_the_group(tmp_path: Path) -> None:
    async with made(tmp_path, "never is done", timeout_s=2) as place:
        group = place.group()
        await group.open(1)
        await group.send(place.publish(0))
        assert place.alive() == [True]

        await until(lambda: len(list(place.groups)) == 0)
        await until(lambda: place.alive() == [False])


async def test_weights_that_are_asked_for_while_some_are_on_their_way_end_the_group(
    tmp_path: Path,
) -> None:
    async with made(tmp_path, "never is done") as place:
        group = place.group()
        await group.open(1)
        weights = place.publish(0)
        await group.send(weights)

        with pytest.raises(EngineError, match="while some were on their way"):
            await group.send(weights)
        assert len(list(place.groups)) == 0
        assert place.alive() == [False]


async def test_a_group_that_is_not_used_is_ended(tmp_path: Path) -> None:
    async with made(tmp_path, idle_s=0.5) as place:
        await place.group().open(1)

        await until(lambda: len(list(place.groups)) == 0)
        await until(lambda: place.alive() == [False])


async def test_a_version_that_is_gone_ends_no_group(tmp_path: Path) -> None:
    async with made(tmp_path) as place:
        group = place.group()
        await group.open(1)
        gone = prompt_pb2.WeightsId(lineage="main", version=7)

        with pytest.raises(EngineError, match="version 7 of 'main' is not kept any more"):
            await group.send(gone)
        await group.send(place.publish(0))


async def test_the_end_of_the_trainer_is_the_end_of_its_processes(tmp_path: Path) -> None:
    async with made(tmp_path, "never joins") as place:
        await place.group().open(1)
    assert place.alive() == [False]

    # Killed, it ends nothing by itself: its processes lose their input.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.trainer.sender", stdin=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.close()
    async with asyncio.timeout(30):
        assert await process.wait() == 0


async def test_where_vllm_is_missing_the_real_one_says_what_to_install(tmp_path: Path) -> None:
    async with made(tmp_path) as place:
        place.groups = WeightsGroups("cuda:0", timeout_s=LONG_S)
        with pytest.raises(WeightsGroupError, match=r"pip install 'headrace\[vllm\]'"):
            await place.groups.open("worker-0", 1)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (pb.OpenWeightsGroupRequest(worker_id="", receiver_count=1), InvalidFieldError),
        (pb.OpenWeightsGroupRequest(worker_id="w", receiver_count=0), InvalidFieldError),
        (pb.SendWeightsRequest(group_id="g"), WeightsGoneError),
    ],
)
async def test_what_makes_no_sense_is_refused(
    tmp_path: Path, request_: Any, error: type[Exception]
) -> None:
    async with made(tmp_path) as place:
        method = type(request_).__name__.removesuffix("Request")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await getattr(place.stub, method)(request_)

        assert isinstance(error_from(refused.value), error)
        assert len(list(place.groups)) == 0


async def test_a_trainer_that_is_not_told_to_send_says_so(tmp_path: Path) -> None:
    giver = Giver(tmp_path)
    async with (
        serving(
            lambda s: trainer_pb2_grpc.add_TrainerServiceServicer_to_server(giver, s)
        ) as address,
        open_channel(address) as channel,
    ):
        stub = trainer_pb2_grpc.TrainerServiceStub(channel)
        group = WeightsGroup(stub, worker_id="worker-0", timeout_s=LONG_S)

        with pytest.raises(EngineError, match=r"does not have weights\.transport: nccl"):
            await group.open(1)
        await stub.CloseWeightsGroup(pb.CloseWeightsGroupRequest(group_id="g"))
