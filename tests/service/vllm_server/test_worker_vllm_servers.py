"""A worker whose engine are vLLM servers, which die and come back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from vllm_bench import engine_of
from vllm_http import Plan, VllmServer, publish, serving
from worker_scene import World, eventually, made_world

from headrace.v1 import replay_pb2 as pb


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with made_world(tmp_path) as made:
        yield made


async def start(world: World, servers: list[VllmServer], **settings: Any) -> Any:
    engine: Any = engine_of(servers, look_every_s=1, stream_interval=2, **settings)
    await engine.start()
    await world.ledger.publish(publish(world.root, 0, lineage="main"))
    await world.start(engine_type=lambda *_, **__: engine)  # type: ignore[arg-type]
    return engine


def done(world: World, *uids: str) -> bool:
    return all(len(world.ledger.sessions.get(uid, {})) == world.ledger.n for uid in uids)


async def test_a_lease_is_handed_back_when_the_only_server_dies_and_done_when_it_is_back(
    world: World,
) -> None:
    async with serving() as [server]:
        server.plan = Plan(hold_after=4)
        world.ledger.feed("e0r0", "e0r1")
        await start(world, [server])
        await eventually(lambda: server.at_once == 4)
        await server.kill()
        await world.ledger.until(lambda: len(world.ledger.ended_leases) >= 2)
        server.plan = Plan()
        await server.open()
        await world.ledger.until(lambda: done(world, "e0r0", "e0r1"))

        assert {ended.end for ended in world.ledger.ended_leases} == {pb.LEASE_END_RETURNED}
        # One more by the call that was under way, and no other until the server was back.
        assert max(world.ledger.attempts.values()) <= 3
        await world.stop()


async def test_when_one_of_two_servers_dies_its_groups_go_to_the_other(world: World) -> None:
    async with serving(2) as pair:
        for server in pair:
            server.plan = Plan(hold_after=4)
        uids = [f"e0r{row}" for row in range(4)]
        world.ledger.feed(*uids)
        await start(world, pair)
        await eventually(lambda: [server.at_once for server in pair] == [4, 4])
        await pair[0].kill()
        pair[1].gate.set()
        await world.ledger.until(lambda: done(world, *uids))

        assert {ended.end for ended in world.ledger.ended_leases} <= {pb.LEASE_END_RETURNED}
        assert {call.body["request_id"].split("-")[0] for call in pair[1].generated()} == set(uids)
        await world.stop()


async def test_new_weights_reach_the_servers_and_the_ledger_knows_who_made_what(
    world: World,
) -> None:
    async with serving(2) as pair:
        engine = await start(world, pair)
        world.ledger.feed("e0r0")
        await world.ledger.until(lambda: done(world, "e0r0"))
        await world.ledger.publish(publish(world.root, 1, lineage="main"))
        await eventually(lambda: all(":1:" in server.life.label for server in pair))
        world.ledger.feed("e0r1")
        await world.ledger.until(lambda: done(world, "e0r1"))

        versions = {
            uid: {record.max_version for record in sessions.values()}
            for uid, sessions in world.ledger.sessions.items()
        }
        assert versions == {"e0r0": {0}, "e0r1": {1}}
        assert engine.status().room == 512
        await world.stop()
