"""The Redis journal on a real redis-server: fenced, repeatable, waited out, or refused by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis
from long_run import KILLS
from ports import free_port
from redis_server import RedisServer

from headrace.cli.credentials import make_credentials
from headrace.errors import NotReadyError, UsageError, WriterFencedError
from headrace.replay.events import to_record
from headrace.replay.journal.base import JournalDamagedError
from headrace.replay.journal.mark import JournalMark
from headrace.replay.journal.redis import JournalRolledBackError, RedisJournal
from headrace.rpc.waits import Waits
from headrace.v1 import journal_pb2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


def opened(
    server: RedisServer, *, mark: JournalMark | None = None, waits: Waits | None = None,
    stop_after: int = 2000, allow_weak_fsync: bool = False, url: str = "",
) -> RedisJournal:  # fmt: skip
    tries = iter(range(stop_after))
    return RedisJournal(
        url or server.url,
        run_id="r",
        waits=waits or Waits(stall_after_s=60),
        is_stopping=lambda: next(tries, None) is None,
        sleep=lambda _: time.sleep(0.01),
        mark=mark,
        allow_weak_fsync=allow_weak_fsync,
    )


def records(first: int, count: int) -> list[journal_pb2.JournalRecord]:
    return [
        to_record(journal_pb2.CreditAdded(request_id=f"q{i}", count=i), i)
        for i in range(first, first + count)
    ]


def positions(journal: RedisJournal, after: int = 0) -> list[int]:
    return [record.position for record in journal.replay(after)]


def test_what_was_appended_is_read_back_in_order(server: RedisServer) -> None:
    journal = opened(server)
    journal.append(records(1, 3))
    journal.append(records(4, 2))
    again = opened(server)
    assert positions(again) == [1, 2, 3, 4, 5]
    assert positions(again, after=3) == [4, 5]
    assert [r.credit_added.count for r in again.read([5, 2])] == [5, 2]
    assert [r.position for r in again.read([2, 3, 4])] == [2, 3, 4]
    assert again.position == 5
    assert again.writer_epoch == journal.writer_epoch + 1


def test_an_append_whose_answer_was_lost_is_repeated_without_harm(server: RedisServer) -> None:
    journal = opened(server)
    journal.append(records(1, 3))
    journal.append(records(1, 3))
    assert positions(journal) == [1, 2, 3]


def test_the_older_of_two_writers_is_fenced_and_writes_nothing(server: RedisServer) -> None:
    older = opened(server)
    older.append(records(1, 1))
    newer = opened(server)
    with pytest.raises(WriterFencedError):
        older.append(records(2, 1))
    with pytest.raises(WriterFencedError):
        older.write_base(journal_pb2.LedgerBase(position=1))
    newer.append(records(2, 1))
    assert positions(newer) == [1, 2]


def test_a_base_is_kept_and_what_lies_before_it_can_go(server: RedisServer) -> None:
    journal = opened(server)
    journal.append(records(1, 10))
    journal.trim(8)
    assert journal.first_position == 1, "nothing goes that no base covers"
    journal.write_base(journal_pb2.LedgerBase(position=6))
    journal.trim(5)
    again = opened(server)
    assert again.base == journal_pb2.LedgerBase(position=6)
    assert (again.first_position, again.position) == (5, 10)
    assert positions(again, after=6) == [7, 8, 9, 10]
    assert [r.position for r in again.read([2, 9])] == [9]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"appendfsync": "everysec"}, "appendfsync"),
        ({"appendonly": "no"}, "appendonly"),
        ({"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"}, "maxmemory-policy"),
    ],
)
def test_a_server_that_may_lose_events_is_refused_by_the_settings_name(
    tmp_path: Path, settings: dict[str, str], name: str
) -> None:
    server = RedisServer(tmp_path, port=0, **settings)
    server.start()
    try:
        with pytest.raises(UsageError, match=name):
            opened(server)
        if name != "maxmemory-policy":
            opened(server, allow_weak_fsync=True).append(records(1, 1))
    finally:
        server.stop()


def test_a_wrong_password_is_refused_by_name(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, requirepass="secret")
    server.start(wait=False)
    time.sleep(0.5)
    try:
        with pytest.raises(UsageError, match="redis_password_file"):
            opened(server)
    finally:
        server.stop()


def test_a_server_with_tls_is_reached_by_its_authority_alone(tmp_path: Path) -> None:
    made, other = (
        make_credentials(tmp_path / name, (), days=1, force=False, now=datetime.now(UTC))
        for name in ("made", "other")
    )
    port = free_port()
    server = RedisServer(
        tmp_path, tls_port=str(port), tls_auth_clients="no", tls_ca_cert_file=str(made.ca),
        tls_cert_file=str(made.cert), tls_key_file=str(made.key),
    )  # fmt: skip
    server.start()
    try:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs="
        opened(server, url=f"{url}{made.ca}").append(records(1, 3))
        assert positions(opened(server)) == [1, 2, 3]
        waits = Waits(stall_after_s=60)
        with pytest.raises(NotReadyError):
            opened(server, url=f"{url}{other.ca}", waits=waits, stop_after=3)
    finally:
        server.stop()


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="not the address"):
        RedisJournal("http://x", run_id="r", waits=Waits(stall_after_s=1), is_stopping=lambda: True)


def test_an_append_waits_out_a_killed_server_and_loses_nothing(server: RedisServer) -> None:
    waits = Waits(stall_after_s=60)
    journal = opened(server, waits=waits)
    journal.append(records(1, 5))
    server.kill()
    appending = threading.Thread(target=journal.append, args=(records(6, 5),))
    appending.start()
    while not waits.snapshot():
        time.sleep(0.01)
    [wait] = waits.snapshot()
    assert wait.name == "journal"
    assert "Redis" in wait.owner
    server.start()
    appending.join(timeout=30)
    assert positions(opened(server)) == list(range(1, 11))


def test_who_reads_while_redis_is_away_is_let_go_when_the_journal_is_closed(
    server: RedisServer,
) -> None:
    waits = Waits(stall_after_s=60)
    journal = opened(server, waits=waits, stop_after=10**9)
    journal.append(records(1, 5))
    server.kill()
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(journal.read, [2, 4])
        while not waits.snapshot():
            time.sleep(0.01)
        journal.close()
        with pytest.raises(NotReadyError):
            reading.result(timeout=30)


def test_an_append_that_a_sleeping_server_carries_out_later_is_there_once(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.replay.journal.redis.CALL_TIMEOUT_S", 0.2)
    waits = Waits(stall_after_s=60)
    journal = opened(server, waits=waits)
    server.pause()
    appending = threading.Thread(target=journal.append, args=(records(1, 5),))
    appending.start()
    while not waits.snapshot():  # by then one try is on its way, and given up
        time.sleep(0.01)
    server.resume()
    appending.join(timeout=30)
    journal.append(records(6, 1))
    assert positions(opened(server)) == [1, 2, 3, 4, 5, 6]


def test_a_process_that_stops_while_redis_is_away_is_let_go(server: RedisServer) -> None:
    journal = opened(server, stop_after=5)
    server.kill()
    with pytest.raises(NotReadyError, match="told to stop"):
        journal.append(records(1, 1))


def test_a_read_only_replica_is_waited_out(server: RedisServer, tmp_path: Path) -> None:
    waits = Waits(stall_after_s=60)
    journal = opened(server, waits=waits)
    client = redis.Redis.from_url(server.url)
    client.replicaof("127.0.0.1", "1")
    appending = threading.Thread(target=journal.append, args=(records(1, 2),))
    appending.start()
    while not waits.snapshot():
        time.sleep(0.01)
    client.replicaof("NO", "ONE")
    client.close()
    appending.join(timeout=30)
    assert positions(opened(server)) == [1, 2]


def test_a_server_out_of_memory_is_waited_out_never_acknowledged_over(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    waits = Waits(stall_after_s=60)
    try:
        journal = opened(server, waits=waits)
        client = redis.Redis.from_url(server.url)
        client.config_set("maxmemory", "1")
        appending = threading.Thread(target=journal.append, args=(records(1, 2),))
        appending.start()
        while not waits.snapshot():
            time.sleep(0.01)
        assert journal.position == 0
        client.config_set("maxmemory", "0")
        client.close()
        appending.join(timeout=30)
        assert positions(opened(server)) == [1, 2]
    finally:
        server.stop()


def test_a_server_weakened_during_an_outage_is_refused(server: RedisServer) -> None:
    journal = opened(server)
    journal.append(records(1, 1))
    server.kill()
    server._settings["appendfsync"] = "everysec"
    server.start()
    with pytest.raises(UsageError, match="appendfsync"):
        journal.append(records(2, 1))


def test_a_restored_older_copy_is_recognised_by_a_running_writer(server: RedisServer) -> None:
    journal = opened(server)
    journal.append(records(1, 3))
    client = redis.Redis.from_url(server.url)
    client.xdel("headrace:{r}:journal", "3-0")
    with pytest.raises(JournalRolledBackError, match="ends at position 2"):
        journal.append(records(4, 1))
    client.flushall()
    client.close()
    with pytest.raises(JournalRolledBackError, match="older copy, or emptied"):
        journal.append(records(4, 1))


def test_a_restored_older_copy_is_recognised_at_start(server: RedisServer, tmp_path: Path) -> None:
    mark = JournalMark(tmp_path / "journal" / "mark.json")
    journal = opened(server, mark=mark)
    journal.append(records(1, 3))
    journal.close()
    client = redis.Redis.from_url(server.url)
    client.xdel("headrace:{r}:journal", "3-0")
    client.close()
    with pytest.raises(JournalDamagedError, match="older copy"):
        opened(server, mark=mark)


@pytest.mark.chaos
def test_acknowledged_events_survive_kills_of_redis_under_load(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    acknowledged = 0
    try:
        journal = opened(server)
        done = threading.Event()

        def load() -> None:
            nonlocal acknowledged
            while not done.is_set():
                journal.append(records(acknowledged + 1, 7))
                acknowledged += 7

        loading = threading.Thread(target=load)
        loading.start()
        for _ in range(KILLS):
            time.sleep(0.2)
            server.kill()
            server.start()
        time.sleep(0.2)
        done.set()
        loading.join(timeout=30)
        assert acknowledged > 7
        print(f"{acknowledged} events acknowledged over the kills")
        assert positions(opened(server)) == list(range(1, acknowledged + 1))
    finally:
        server.stop()
