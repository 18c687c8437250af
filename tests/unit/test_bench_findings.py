from __future__ import annotations

import json

import pytest

from headrace.bench import suite
from headrace.bench.findings import Findings
from headrace.bench.goal import Goal
from headrace.bench.laps import Lap, Laps, interleaved
from headrace.bench.ratio import Ratio, percentile
from headrace.bench.table import Row, microseconds, milliseconds
from headrace.errors import UsageError


def test_a_ratio_is_the_median_over_rounds_and_not_of_the_sums() -> None:
    # In the second round something else took the machine: both ways were slow, the ratio was not.
    ratio = Ratio.of([100.0, 10.0, 100.0], [50.0, 5.0, 50.0])

    assert (ratio.low, ratio.median, ratio.high) == (2.0, 2.0, 2.0)
    assert str(ratio) == "2.00x (2.00-2.00)"


def test_ratios_show_the_digits_that_count_whatever_their_size() -> None:
    assert str(Ratio(1234.5, 99.6, 5000)) == "1,234x (100-5,000)"
    assert str(Ratio(0.00123, 0.00099, 0.5)) == "0.0012x (0.00099-0.50)"


def test_a_single_round_has_a_ratio_too() -> None:
    assert Ratio.of([3.0], [2.0]) == Ratio(1.5, 1.5, 1.5)


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(i) for i in range(1, 101)]

    assert percentile(values, 99) == 100.0
    assert percentile(values, 50) == 51.0
    assert percentile([7.0], 99) == 7.0


@pytest.mark.parametrize(
    ("goal", "is_met"),
    [
        (Goal.at_least("feed", 20, 20, "x"), True),
        (Goal.at_least("feed", 20, 19.9, "x"), False),
        (Goal.at_most("p99", 50, 50, " ms"), True),
        (Goal.at_most("p99", 50, 50.1, " ms"), False),
    ],
)
def test_a_goal_is_met_at_its_limit_and_missed_beyond_it(goal: Goal, is_met: bool) -> None:
    assert goal.is_met is is_met
    assert str(goal).startswith("met" if is_met else "MISSED")


def test_a_goal_says_what_was_found_and_what_was_wanted() -> None:
    line = str(Goal.at_most("control cycle, CPU per group", 400, 712.3, " us"))

    assert line == "MISSED  control cycle, CPU per group: 712 us, wanted at most 400 us"


def findings() -> Findings:
    laps = Laps([Lap(10, 2.0, 1.0), Lap(10, 1.0, 2.0), Lap(10, 1.0, 3.0)])
    return Findings(
        rows=[
            Row("ledger"),
            Row("cycle", microseconds(laps.cpu_per_item_s), laps.over(laps)),
            Row("waits", milliseconds(0.002, 0.01), bare=Ratio(0.5, 0.25, 1.0)),
        ],
        goals=[Goal.at_least("cycle", 8, 9, "x")],
        notes=["skipped: Redis"],
        laps={"cycle": laps},
        waits_s={"wake-up": [0.5]},
    )


def test_the_table_has_a_heading_its_lines_the_goals_and_what_was_left_out() -> None:
    lines = findings().to_text().splitlines()

    assert [line.split("  ")[0] for line in lines if line and not line.startswith(" ")] == [
        "ledger",
        "goals",
        "skipped: Redis",
    ]
    [cycle] = [line for line in lines if line.startswith("  cycle")]
    assert cycle.split() == ["cycle", "200,000", "us", "1.00x", "(1.00-1.00)"]
    [waits] = [line for line in lines if line.startswith("  waits")]
    assert waits.endswith("2.00 / 10.00 ms" + " " * 21 + "0.50x (0.25-1.00)")
    assert "  met     cycle: 9.00x, wanted at least 8x" in lines


def test_the_json_has_the_figures_of_every_round() -> None:
    given = json.loads(findings().to_json())

    assert given["schema_version"] == 1
    assert given["rounds"]["cycle"][1] == {"items": 10, "seconds": 1.0, "cpu_s": 2.0}
    assert given["waits_s"] == {"wake-up": [0.5]}
    assert given["goals"][0]["is_met"] is True
    assert given["rows"][1]["peer"] == {"median": 1.0, "low": 1.0, "high": 1.0}


def test_findings_of_parts_become_one() -> None:
    both = findings()
    both += Findings(rows=[Row("store")], notes=["note"], laps={"put": Laps([])})

    assert [row.name for row in both.rows] == ["ledger", "cycle", "waits", "store"]
    assert both.notes == ["skipped: Redis", "note"]
    assert set(both.laps) == {"cycle", "put"}


async def test_ways_take_turns_forwards_and_backwards_after_a_round_that_does_not_count() -> None:
    order: list[str] = []

    def way(name: str) -> object:
        async def run() -> Lap:
            order.append(name)
            return Lap(1, float(len(order)), 0.0)

        return run

    laps = await interleaved({"a": way("a"), "b": way("b")}, rounds=2)  # type: ignore[dict-item]

    assert order == ["a", "b", "a", "b", "b", "a"]
    assert [lap.seconds for lap in laps["a"].counted] == [3.0, 6.0]


def test_parts_are_measured_in_one_order_and_all_if_none_is_named() -> None:
    assert suite.chosen([]) == list(suite.PARTS)
    assert suite.chosen(["store", "ledger"]) == ["ledger", "store"]


def test_a_part_that_is_none_is_named_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="there is no part 'leger'; the parts are ledger, feed"):
        suite.chosen(["leger"])


def test_without_transfer_queue_the_extra_is_named_and_what_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suite, "find_spec", lambda _name: None)

    with pytest.raises(UsageError, match=r"^ledger, wakeup: .* pip install 'headrace\[store\]'$"):
        suite.chosen(["ledger", "weights", "wakeup"])
    assert suite.chosen(["weights"]) == ["weights"]
