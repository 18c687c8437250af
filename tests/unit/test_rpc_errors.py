"""The error tree says what the protos promise."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

from headrace.errors import WIRE_ERRORS, InvalidFieldError, NotReadyError, WrongProcessError

PROTOS = Path(__file__).parents[2] / "proto" / "headrace" / "v1"
PROMISE = re.compile(r"// - ([A-Z_]+), reason ((?:[A-Z_]+(?:, )?)+)")


def promised() -> set[tuple[str, str]]:
    """Return each (code, reason) that a comment in a proto promises."""
    return {
        (code, reason)
        for proto in PROTOS.glob("*.proto")
        for code, reasons in PROMISE.findall(proto.read_text())
        for reason in re.findall(r"[A-Z_]+", reasons)
    }


def test_each_reason_in_the_protos_has_a_class_of_that_code() -> None:
    assert len(promised()) >= 10
    assert {(error.code.name, reason) for reason, error in WIRE_ERRORS.items()} >= promised()


def test_each_class_is_promised_by_a_proto() -> None:
    assert set(WIRE_ERRORS) <= {reason for _, reason in promised()}


def test_an_invalid_field_is_named() -> None:
    error = InvalidFieldError("max_count", "must be 1 to 4096")
    assert str(error) == "max_count: must be 1 to 4096"
    assert error.metadata == {"field": "max_count"}


def test_only_unavailable_asks_to_try_again() -> None:
    retried = [error for error in WIRE_ERRORS.values() if error.code is grpc.StatusCode.UNAVAILABLE]
    assert retried == [NotReadyError, WrongProcessError]


@pytest.mark.parametrize("reason", sorted(WIRE_ERRORS))
def test_every_class_says_what_it_means(reason: str) -> None:
    assert WIRE_ERRORS[reason].__doc__
