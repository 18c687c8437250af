"""A real server that plays a trainer's peers: replay buffer, store, feeder, and workers behind.

It answers what a trainer asks, as the protos say, and remembers every call.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import torch
from prometheus_client import CollectorRegistry
from trainer_coordinator import Coordinator
from transformers import AutoModelForCausalLM

from headrace.rpc.server import bind, create_server
from headrace.trajectory.chunks import Value, split
from headrace.v1 import (
    checkpoint_pb2_grpc,
    feeder_pb2,
    feeder_pb2_grpc,
    prompt_pb2,
    replay_pb2_grpc,
    store_pb2,
    store_pb2_grpc,
)
from headrace.v1 import replay_pb2 as pb
from headrace.v1.trajectory_pb2 import FINISH_REASON_LENGTH, Trajectory, WeightSpan
from headrace.weights.directory import verify

GROUPS, SESSIONS, LENGTH, WANTED = 4, 8, 3, 4
Context = Any


class Peers(
    replay_pb2_grpc.ReplayBufferServiceServicer,
    store_pb2_grpc.TrajectoryStoreServiceServicer,
    feeder_pb2_grpc.PromptFeederServiceServicer,
):
    """Replay buffer, store and feeder in one, with workers: it samples from what is published.

    A token that is `WANTED` is rewarded. Every call is written down in `calls`.
    """

    def __init__(self, *, total_steps: int = 3, temperature: float = 1.0) -> None:
        self.total_steps = total_steps
        self.temperature = temperature
        self.calls: list[tuple[Any, ...]] = []
        self.rows: dict[str, Trajectory] = {}
        self.deleted: list[str] = []
        self.published: dict[int, str] = {}
        """SHA-256 of the weights of each version, the last that was published."""
        self.lost: set[str] = set()
        """Trajectories that the store does not have."""
        self.arrival = pb.RegisterTrainerResponse(incarnation=7, lineage="a")
        self.before_sample: Callable[[pb.SampleBatchRequest], pb.SampleBatchResponse | None] = (
            lambda _request: None
        )
        self.ends_soon_from: int | None = None
        """The first step after which the data may end within the next."""
        self.coordinator: Any = None
        self.model: Any = None
        self.version = -1
        self.lineage = ""
        self.attempt = 0

    # The replay buffer.

    async def RegisterTrainer(
        self, request: pb.RegisterTrainerRequest, context: Context
    ) -> pb.RegisterTrainerResponse:
        self.calls.append(("register", request.trainer_id))
        answer, self.arrival.total_steps = pb.RegisterTrainerResponse(), self.total_steps
        if len(self.calls) == 1:  # the feed opens while the trainer waits for it
            answer.CopyFrom(self.arrival)
            answer.total_steps = 0
            return answer
        return self.arrival

    async def PublishWeights(
        self, request: pb.PublishWeightsRequest, context: Context
    ) -> pb.PublishWeightsResponse:
        weights = request.weights
        self.calls.append(("publish", weights.id.version))
        directory = await self.locate(weights)
        manifest, checksum = verify(directory)
        self.published[weights.id.version] = manifest.files["model.safetensors"].sha256
        assert checksum == weights.checksum
        assert (manifest.lineage, manifest.version) == (weights.id.lineage, weights.id.version)
        self.model = AutoModelForCausalLM.from_pretrained(directory).eval()
        self.version = weights.id.version
        self.lineage = weights.id.lineage
        return pb.PublishWeightsResponse(oldest_needed_version=max(0, self.version - 1))

    async def SampleBatch(
        self, request: pb.SampleBatchRequest, context: Context
    ) -> pb.SampleBatchResponse:
        self.calls.append(("sample", request.step, request.part))
        assert request.incarnation == 7
        if (answer := self.before_sample(request)) is not None:
            return answer
        if request.step > self.total_steps:
            return pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_DATA_ENDED)
        self.attempt += 1
        count = GROUPS // request.part_count
        first = ((request.step - 1) * request.part_count + request.part) * count
        groups = [self._group(first + i) for i in range(count)]
        return pb.SampleBatchResponse(status=pb.SAMPLE_STATUS_READY, groups=groups)

    async def ReturnGroups(
        self, request: pb.ReturnGroupsRequest, context: Context
    ) -> pb.ReturnGroupsResponse:
        self.calls.append(("return", request.step, request.part, *request.uids))
        assert request.error
        assert len(request.attempts) == len(request.uids)
        assert all(request.attempts)
        return pb.ReturnGroupsResponse(returned_count=len(request.uids))

    async def CommitStep(
        self, request: pb.CommitStepRequest, context: Context
    ) -> pb.CommitStepResponse:
        self.calls.append(("commit", request.step))
        soon = self.ends_soon_from is not None and request.step >= self.ends_soon_from
        return pb.CommitStepResponse(ended=request.step == self.total_steps, ends_soon=soon)

    async def EndRun(self, request: pb.EndRunRequest, context: Context) -> pb.EndRunResponse:
        self.calls.append(("end",))
        assert request.incarnation == 7
        return pb.EndRunResponse()

    # The store.

    async def GetTrajectories(
        self, request: store_pb2.GetTrajectoriesRequest, context: Context
    ) -> AsyncIterator[store_pb2.GetTrajectoriesResponse]:
        present = [key for key in request.keys if key not in self.lost]
        values = [Value.sealed(key, self.rows[key].SerializeToString()) for key in present]
        for chunks in split(values):
            yield store_pb2.GetTrajectoriesResponse(chunks=chunks)
        yield store_pb2.GetTrajectoriesResponse(
            missing_keys=[key for key in request.keys if key in self.lost]
        )

    async def DeleteTrajectories(
        self, request: store_pb2.DeleteTrajectoriesRequest, context: Context
    ) -> store_pb2.DeleteTrajectoriesResponse:
        self.deleted += request.keys
        return store_pb2.DeleteTrajectoriesResponse(deleted_count=len(request.keys))

    # The feeder.

    async def ReadRows(
        self, request: feeder_pb2.ReadRowsRequest, context: Context
    ) -> feeder_pb2.ReadRowsResponse:
        self.calls.append(("rows", request.offset, request.max_count))
        row = feeder_pb2.PromptPayload(token_ids=[2, 3], answer="22")
        return feeder_pb2.ReadRowsResponse(rows=[row] * request.max_count)

    # The workers.

    async def locate(self, weights: prompt_pb2.PublishedWeights) -> Path:
        """Return where a version lies."""
        return Path(weights.uri)

    def _group(self, ordinal: int) -> prompt_pb2.SampledGroup:
        uid = f"e0r{ordinal}"
        group = prompt_pb2.SampledGroup(uid=uid, ordinal=ordinal, span=1, attempt=self.attempt)
        for session in range(SESSIONS):
            key = f"{uid}_{session}_0_aa{self.attempt}"
            self.rows[key] = self._generate(key, [2 + ordinal % 3, 3])
            group.trajectories.add(key=key, session=session)
        return group

    def _generate(self, key: str, prompt: list[int]) -> Trajectory:
        ids, logprobs = list(prompt), []
        # A trainer that goes on gets the batches that it would have got.
        numbers = torch.Generator().manual_seed(zlib.crc32(key.rpartition("_")[0].encode()))
        for _ in range(LENGTH):
            with torch.no_grad():
                logits = self.model(input_ids=torch.tensor([ids])).logits[0, -1] / self.temperature
            token = int(torch.multinomial(logits.softmax(-1), 1, generator=numbers))
            logprobs.append(float(logits.log_softmax(-1)[token]))
            ids.append(token)
        response = ids[len(prompt) :]
        return Trajectory(
            schema_version=1,
            key=key,
            prompt_token_ids=prompt,
            response_token_ids=response,
            logprobs=logprobs,
            loss_mask=[True] * LENGTH,
            reward=response.count(WANTED) / LENGTH,
            weight_spans=[
                WeightSpan(lineage=self.lineage, version=self.version, begin=0, end=LENGTH)
            ],
            finish_reason=FINISH_REASON_LENGTH,
            temperature=self.temperature,
        )


async def serve_peers() -> tuple[grpc.aio.Server, str, Peers]:
    """Start a server with peers; return it with its address."""
    server = create_server(CollectorRegistry())
    peers = Peers()  # type: ignore[abstract]  # a trainer asks no more
    coordinator = Coordinator(peers)  # type: ignore[abstract]
    peers.coordinator = coordinator
    checkpoint_pb2_grpc.add_CheckpointCoordinatorServiceServicer_to_server(coordinator, server)
    replay_pb2_grpc.add_ReplayBufferServiceServicer_to_server(peers, server)
    store_pb2_grpc.add_TrajectoryStoreServiceServicer_to_server(peers, server)
    feeder_pb2_grpc.add_PromptFeederServiceServicer_to_server(peers, server)
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    return server, address, peers
