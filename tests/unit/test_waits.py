"""Every wait has a name, an owner and a limit."""

from __future__ import annotations

import pytest

from headrace.rpc.waits import Waits


class FakeClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def waits(clock: FakeClock) -> Waits:
    return Waits(now=clock, stall_after_s=10)


def test_a_wait_is_seen_while_it_lasts_and_only_then(clock: FakeClock, waits: Waits) -> None:
    with waits.waiting("demand", owner="replay", ends_when="the window has room"):
        clock.time += 3
        [wait] = waits.snapshot()

    assert (wait.name, wait.owner, wait.ends_when) == ("demand", "replay", "the window has room")
    assert (wait.elapsed_s, wait.stall_after_s, wait.stalled) == (3, 10, False)
    assert waits.snapshot() == []


def test_a_wait_may_say_something_new_of_what_would_end_it(waits: Waits) -> None:
    with waits.waiting("a batch", owner="replay", ends_when="4 groups finish") as wait:
        wait.ends_when = "1 group finishes"
        assert [seen.ends_when for seen in waits.snapshot()] == ["1 group finishes"]


def test_the_longest_wait_comes_first(clock: FakeClock, waits: Waits) -> None:
    with waits.waiting("first", owner="a"):
        clock.time += 1
        with waits.waiting("second", owner="b"):
            assert [wait.name for wait in waits.snapshot()] == ["first", "second"]


def test_a_wait_is_a_stall_once_its_limit_has_passed(clock: FakeClock, waits: Waits) -> None:
    with waits.waiting("demand", owner="replay"):
        clock.time += 10
        assert waits.stalled == []
        clock.time += 0.1
        assert [wait.name for wait in waits.stalled] == ["demand"]


def test_a_wait_may_name_its_own_limit(clock: FakeClock, waits: Waits) -> None:
    with (
        waits.waiting("patient", owner="a", stall_after_s=100),
        waits.waiting("hasty", owner="a", stall_after_s=1),
    ):
        clock.time += 50
        assert [wait.name for wait in waits.stalled] == ["hasty"]


def test_time_is_summed_up_by_name_with_the_waits_under_way(clock: FakeClock, waits: Waits) -> None:
    with waits.waiting("demand", owner="replay"):
        clock.time += 2
    with waits.waiting("demand", owner="replay"), waits.waiting("weights", owner="trainer"):
        clock.time += 3
        assert waits.waited_s == {"demand": 5, "weights": 3}
    assert waits.waited_s == {"demand": 5, "weights": 3}


def test_a_wait_that_ends_in_an_error_is_over(clock: FakeClock, waits: Waits) -> None:
    def fail() -> None:
        with waits.waiting("demand", owner="replay"):
            clock.time += 2
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert waits.snapshot() == []
    assert waits.waited_s == {"demand": 2}


def test_a_stall_is_reported_when_it_begins_and_then_each_time_its_limit_has_passed_again(
    clock: FakeClock, waits: Waits
) -> None:
    reported_at = []
    with waits.waiting("demand", owner="replay"):
        for second in range(36):
            clock.time = 1000.0 + second
            reported_at += [second for _ in waits.due_reports()]

    assert reported_at == [11, 22, 33]


def test_a_wait_that_ended_is_not_reported(clock: FakeClock, waits: Waits) -> None:
    with waits.waiting("demand", owner="replay"):
        clock.time += 60
    assert waits.due_reports() == []
