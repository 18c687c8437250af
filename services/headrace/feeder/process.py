"""The feeder as a process: the wiring, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from headrace.config.config import Config
from headrace.errors import UsageError
from headrace.feeder.demand import Feed
from headrace.feeder.fingerprint import feed_fingerprint
from headrace.feeder.handfed import HandFeed
from headrace.feeder.metrics import FeedMetrics
from headrace.feeder.mixing import MixedOrder
from headrace.feeder.order import Order, RowOrder
from headrace.feeder.prompts import Packer, Prompts
from headrace.feeder.reading import Reader
from headrace.feeder.service import PromptFeederService, ReadPositions
from headrace.feeder.sources.load import open_data
from headrace.feeder.sources.mixture import MixtureRows
from headrace.feeder.sources.source import Source
from headrace.feeder.sources.stream import StreamRows
from headrace.feeder.supply import NumberedSupply, StreamSupply, Supply
from headrace.rpc.advertise import advertised
from headrace.rpc.calls import Stopped
from headrace.rpc.channel import open_channel
from headrace.rpc.process import Process, ProcessOptions
from headrace.tokenizer import load_tokenizer
from headrace.v1 import feeder_pb2, feeder_pb2_grpc, replay_pb2_grpc

SERVICE = feeder_pb2.DESCRIPTOR.services_by_name["PromptFeederService"].full_name


async def run(config: Config, options: ProcessOptions) -> int:
    """Feed the run until told to stop.

    Returns:
        The exit code: 0.

    Raises:
        UsageError: the data set or the tokenizer cannot be used, the run was started with other
            data, or the port is taken.

    """
    if config.endpoints.replay is None:
        raise UsageError("endpoints.replay: the feeder needs the replay buffer's host:port")
    source = open_data(config.data)
    packer = Packer(load_tokenizer(config.model), max_prompt_length=config.data.max_prompt_length)
    supply: Supply
    read_positions: ReadPositions | None = None
    if isinstance(source, StreamRows):
        supply = StreamSupply(source, packer)
    else:
        prompts = Prompts(source, packer)
        prompts.read([0])  # a tokenizer that does not fit the data shows here
        supply = NumberedSupply(prompts, _order(source, config, shuffle=config.data.shuffle))
        read_positions = _positions(
            prompts, _order(source, config, shuffle=True, purpose="warm start")
        )
    fingerprint = feed_fingerprint(source, config)
    process = Process.of_run(config, options)
    reader = Reader(
        waits=process.waits,
        stopping=process.stopping,
        owner=f"data set {source.name}",
        stall_after_s=config.data.read_timeout_s,
    )
    async with open_channel(config.endpoints.replay, process.security) as channel:
        replay = replay_pb2_grpc.ReplayBufferServiceStub(channel)
        feed = Feed(
            replay,
            supply,
            fingerprint=fingerprint,
            chunk_size=config.data.chunk_size,
            reader=reader,
            waits=process.waits,
            stopping=process.stopping,
            idle_after_s=config.watchdog.idle_after_s,
        )
        process.expose(FeedMetrics(feed, supply).read)
        service = PromptFeederService(
            feed,
            supply,
            read_positions=read_positions,
            hand_feed=HandFeed(
                replay, packer, reader=reader, waits=process.waits, stopping=process.stopping
            ),
            reader=reader,
            process_status=process.status,
        )
        await _serve(process, feed, service, config.endpoints.advertise_host)
    return 0


def _order(source: Source, config: Config, *, shuffle: bool, purpose: str = "feed") -> RowOrder:
    seed = config.data.seed
    if isinstance(source, MixtureRows):
        return MixedOrder(
            source.sizes, source.schedule, seed=seed, shuffle=shuffle, purpose=purpose
        )
    return Order(len(source), seed, shuffle, purpose)


def _positions(prompts: Prompts, order: RowOrder) -> ReadPositions:
    return lambda positions: prompts.read([order.place(position).row for position in positions])


async def _serve(
    process: Process, feed: Feed, service: PromptFeederService, host: str | None
) -> None:
    def add_services(server: grpc.aio.Server) -> Sequence[str]:
        feeder_pb2_grpc.add_PromptFeederServiceServicer_to_server(service, server)
        return [SERVICE]

    try:
        feed.address = advertised(await process.start(add_services), host)
        await feed.open()
        process.ready()
        while not process.stopping.is_set():
            await feed.run()
            await feed.reopened()
    except Stopped:
        return
    finally:
        await process.close()
