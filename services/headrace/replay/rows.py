"""Rows in the store, as far as the ledger answers for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.errors import InvalidFieldError, StoreFencedError
from headrace.replay.group import LIVE, RUNNING
from headrace.replay.ledger import Ledger
from headrace.trajectory.key import TrajectoryKey, spell
from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2


def check_life(ledger: Ledger, incarnation: str, *, follows: str) -> None:
    """Make sure that a life of the store is not over, as far as the ledger can know.

    A life says which one it follows: the one that the ledger knew when it had begun already. So
    lives become known in the order in which they began, and a word that comes late, from one that
    was followed or from one that died unheard, follows what the ledger has left.

    Raises:
        StoreFencedError: the ledger knows another life than these two.

    """
    if ledger.store_incarnation not in (incarnation, follows):
        raise StoreFencedError(
            f"the store is in life {ledger.store_incarnation}: {incarnation}, which follows "
            f"{follows or 'none'}, comes late"
        )


def register_store(
    ledger: Ledger, *, incarnation: str, follows: str = "", capacity_bytes: int
) -> int:
    """Note which life of the store is running; the same again changes nothing.

    Returns:
        Groups that lost rows by it.

    Raises:
        InvalidFieldError: no incarnation, or no capacity.
        StoreFencedError: the ledger knows neither it nor the life that it follows, but another.

    """
    if not incarnation or capacity_bytes < 1:
        raise InvalidFieldError("store_incarnation", "and a capacity are required")
    check_life(ledger, incarnation, follows=follows)
    if (incarnation, capacity_bytes) == (ledger.store_incarnation, ledger.store_capacity):
        return 0
    before = ledger.regenerated["store_lost"]
    ledger.emit(
        journal.StoreRegistered(store_incarnation=incarnation, capacity_bytes=capacity_bytes)
    )
    return ledger.regenerated["store_lost"] - before


def keys_of(uid: str, record: prompt_pb2.SessionRecord) -> Iterator[TrajectoryKey]:
    """Give the keys of a session's trajectories, in order."""
    for index in range(record.trajectory_count):
        yield TrajectoryKey(
            uid=uid,
            session=record.session,
            index=index,
            lineage=record.lineage,
            attempt=record.attempt,
        )


def refs_of(uid: str, record: prompt_pb2.SessionRecord) -> Iterator[prompt_pb2.TrajectoryRef]:
    """Refer to a session's trajectories, in order."""
    session, lineage, attempt = record.session, record.lineage, record.attempt
    for index in range(record.trajectory_count):
        key = spell(uid, session, index, lineage, attempt)
        yield prompt_pb2.TrajectoryRef(key=key, session=session, index=index)


def keys_page(ledger: Ledger, *, after_ordinal: int, most: int) -> tuple[list[str], int | None]:
    """Give the keys that live groups record, by ordinal, about so many at a time.

    Returns:
        The keys, and the ordinal of the last group looked at; None if there are no more.

    """
    keys: list[str] = []
    live = [*ledger.groups.live(), *ledger.groups.sampled.values()]
    later = (group for group in live if group.ordinal > after_ordinal and group.sessions)
    for group in sorted(later, key=lambda group: group.ordinal):
        records = (group.sessions[session] for session in sorted(group.sessions))
        keys += [str(key) for record in records for key in keys_of(group.uid, record)]
        if len(keys) >= most:
            return keys, group.ordinal
    return keys, None


def find_dead(ledger: Ledger, keys: Iterable[str]) -> list[str]:
    """Name the keys that no live group records and no current lease can still record."""
    return [key for key in keys if not _is_alive(ledger, key)]


def _is_alive(ledger: Ledger, text: str) -> bool:
    try:
        key = TrajectoryKey.parse(text)
    except ValueError:
        return False
    group = ledger.groups.get(key.uid)
    if group is None or group.state not in LIVE:
        return False
    record = group.sessions.get(key.session)
    if record is not None:
        return (record.lineage, record.attempt) == (key.lineage, key.attempt)
    return group.state == RUNNING and (ledger.lineage, group.attempt) == (key.lineage, key.attempt)
