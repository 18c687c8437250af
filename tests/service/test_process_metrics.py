"""A process serves its metrics over HTTP, from its first breath to its last."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.cli.credentials import make_credentials
from headrace.errors import UsageError
from headrace.rpc import announce
from headrace.rpc.mirror import Mirror, gauge
from headrace.rpc.process import Process
from headrace.rpc.security import Security


def fetch(address: str, path: str = "/metrics", **headers: str) -> str:
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        text: str = answer.read().decode()
        return text


async def scrape(address: str) -> dict[str, Metric]:
    text = await asyncio.to_thread(fetch, address)
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(metric: Metric, **labels: str) -> float:
    [found] = [sample.value for sample in metric.samples if sample.labels == labels]
    return float(found)


Make = Callable[..., Process]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Process] = []

    def make_one(**options: Any) -> Process:
        settings: dict[str, Any] = {
            "name": "store",
            "run_id": "run-1",
            "stall_after_s": 60,
            "announce": tmp_path / "store.json",
        }
        made.append(Process(**settings | options))
        return made[-1]

    yield make_one
    for process in made:
        await process.close(0)


async def metrics_of(process: Process, file: Path) -> str:
    await process.start(lambda _: [])
    announced = announce.read(file)
    assert announced is not None
    return announced.metrics


async def test_the_endpoint_is_announced_and_ends_with_the_process(
    make: Make, tmp_path: Path
) -> None:
    process = make()
    address = await metrics_of(process, tmp_path / "store.json")
    info = (await scrape(address))["headrace_process_info"]
    await process.close(0)

    assert value(info, process="store", run_id="run-1") == 1
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(fetch, address)


async def test_waits_are_measured_while_they_last_and_afterwards(
    make: Make, tmp_path: Path
) -> None:
    time = 100.0
    process = make(now=lambda: time)
    address = await metrics_of(process, tmp_path / "store.json")
    with process.waits.waiting("demand", owner="replay"):
        time += 61
        during = await scrape(address)
    time += 5
    after = await scrape(address)

    assert value(during["headrace_wait_current_seconds"], name="demand", owner="replay") == 61
    assert value(during["headrace_wait_seconds"], name="demand") == 61
    assert value(during["headrace_waits_stalled"]) == 1
    assert after["headrace_wait_current_seconds"].samples == []
    assert value(after["headrace_wait_seconds"], name="demand") == 61
    assert value(after["headrace_waits_stalled"]) == 0


async def test_state_is_read_at_the_scrape_on_the_event_loop(make: Make, tmp_path: Path) -> None:
    process = make()
    states = iter([1.0, 2.0])

    def read() -> Iterator[Metric]:
        asyncio.get_running_loop()  # raises on any other thread
        yield gauge("headrace_state", "It.", next(states))

    process.expose(read)
    address = await metrics_of(process, tmp_path / "store.json")

    assert [value((await scrape(address))["headrace_state"]) for _ in range(2)] == [1, 2]


async def test_a_busy_event_loop_does_not_hold_up_a_scrape_for_long() -> None:
    # Collected on the loop itself, which so cannot answer.
    mirror = Mirror(asyncio.get_running_loop(), answer_s=0.01)
    mirror.add(lambda: [gauge("headrace_state", "It.", 1)])

    found = {metric.name: metric for metric in mirror.collect()}

    assert list(found) == ["headrace_loop_answered"]
    assert value(found["headrace_loop_answered"]) == 0


async def test_a_scrape_that_fails_is_seen_by_who_scrapes(
    make: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def read() -> Iterator[Metric]:
        raise KeyError("a mistake of ours")
        yield

    process = make()
    process.expose(read)
    address = await metrics_of(process, tmp_path / "store.json")

    with pytest.raises(urllib.error.HTTPError, match="500"):
        await asyncio.to_thread(fetch, address)
    assert "a mistake of ours" in capfd.readouterr().err


async def test_any_other_path_is_not_found(make: Make, tmp_path: Path) -> None:
    address = await metrics_of(make(), tmp_path / "store.json")

    with pytest.raises(urllib.error.HTTPError, match="404"):
        await asyncio.to_thread(fetch, address, "/")


async def test_a_scrape_needs_the_token_that_calls_need(make: Make, tmp_path: Path) -> None:
    process = make(security=Security(token="abc"))
    address = await metrics_of(process, tmp_path / "store.json")

    for headers in ({}, {"Authorization": "Bearer abd"}, {"Authorization": "abc"}):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await asyncio.to_thread(fetch, address, **headers)
    text = await asyncio.to_thread(fetch, address, Authorization="Bearer abc")
    assert "headrace_process_info" in text


async def test_with_tls_a_scrape_is_https_and_a_silent_client_holds_up_nobody(
    make: Make, tmp_path: Path
) -> None:
    made = make_credentials(tmp_path / "certs", (), days=1, force=False, now=datetime.now(UTC))
    security = Security(pair=(made.key.read_bytes(), made.cert.read_bytes()))
    address = await metrics_of(make(security=security), tmp_path / "store.json")
    host, _, port = address.rpartition(":")
    trusting = ssl.create_default_context(cafile=str(made.ca))

    def fetch_safely() -> str:
        with urllib.request.urlopen(
            f"https://{address}/metrics", timeout=20, context=trusting
        ) as answer:
            text: str = answer.read().decode()
            return text

    with socket.create_connection((host, int(port))):  # and never says a word
        text = await asyncio.to_thread(fetch_safely)
    assert "headrace_process_info" in text
    with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
        await asyncio.to_thread(fetch, address)


async def test_a_taken_port_is_named(make: Make, tmp_path: Path) -> None:
    address = await metrics_of(make(), tmp_path / "store.json")
    port = int(address.rpartition(":")[2])
    other = tmp_path / "other.json"

    with pytest.raises(UsageError, match=f"metrics on {address}: the port is in use; .*--metrics-"):
        await make(metrics_port=port, announce=other).start(lambda _: [])

    assert announce.read(other) is None


async def test_the_process_and_python_are_measured_too(make: Make, tmp_path: Path) -> None:
    found = await scrape(await metrics_of(make(), tmp_path / "store.json"))

    assert {"process_resident_memory_bytes", "python_info", "python_gc_collections"} <= set(found)
