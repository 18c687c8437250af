from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trajectory.key import TrajectoryKey

NAMES = st.from_regex(r"[A-Za-z0-9.-]{1,20}", fullmatch=True)
KEYS = st.builds(
    TrajectoryKey,
    uid=NAMES,
    session=st.integers(0, 10**6),
    index=st.integers(0, 10**6),
    lineage=NAMES,
    attempt=st.integers(0, 10**6),
)


def test_a_key_is_spelled_as_the_design_says() -> None:
    key = TrajectoryKey(uid="e0r4711", session=3, index=0, lineage="ab12", attempt=7)

    assert str(key) == "e0r4711_3_0_ab12a7"


@given(KEYS)
def test_a_key_reads_back_as_itself_even_if_the_lineage_has_an_a_and_digits(
    key: TrajectoryKey,
) -> None:
    assert TrajectoryKey.parse(str(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "e0r1_0_0",
        "e0r1_0_0_ab12",
        "e0r1_0_0_a1",
        "e0_r1_0_0_ab12a1",
        "e0r1_00_0_ab12a1",
        "e0r1_0_-1_ab12a1",
        "e0r1_0_0_ab12a01",
        "e0r1_0_0_ab12a1\n",
        "e0r1_٣_0_ab12a1",
    ],
)
def test_what_is_not_a_key_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        TrajectoryKey.parse(text)
