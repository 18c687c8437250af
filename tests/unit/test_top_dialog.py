"""What keys lead to in `headrace top`."""

from __future__ import annotations

import pytest

from headrace.cli.top.dialog import LONGEST_UID, Dialog, Mode, keys

DOWN, UP, PAGE_DOWN, ESCAPE = "\x1b[B", "\x1b[A", "\x1b[6~", "\x1b"


def after(*texts: str) -> Dialog:
    dialog = Dialog()
    for text in texts:
        dialog.press(text)
    return dialog


@pytest.mark.parametrize("key", ["q", "\x04"])
def test_q_and_the_end_of_the_input_lead_out(key: str) -> None:
    assert after(key).over


def test_w_and_a_uid_open_where_that_prompt_is() -> None:
    dialog = after("w", "e", "0", "r", "7", "\r")

    assert (dialog.mode, dialog.uid) == (Mode.WHERE, "e0r7")


def test_what_is_pasted_counts_as_typed() -> None:
    assert after("we0r7\n").uid == "e0r7"


def test_a_q_within_a_uid_is_a_letter() -> None:
    dialog = after("w", "q")

    assert (dialog.typed, dialog.over) == ("q", False)


def test_esc_leads_back_to_the_table_from_the_question_and_from_the_answer() -> None:
    assert after("w", "e0", ESCAPE).mode is Mode.TABLE
    assert after("we0r7\r", ESCAPE).mode is Mode.TABLE


def test_esc_at_the_table_changes_nothing() -> None:
    assert after(ESCAPE) == Dialog()


def test_a_question_that_was_left_begins_anew() -> None:
    assert after("w", "e0r", ESCAPE, "w").typed == ""


def test_from_one_prompt_to_the_next() -> None:
    dialog = after("we0r7\r", DOWN, "we0r8\r")

    assert (dialog.mode, dialog.uid, dialog.scroll) == (Mode.WHERE, "e0r8", 0)


def test_backspace_takes_back_and_enter_without_a_uid_leads_back() -> None:
    assert after("w", "e0r77", "\x7f").typed == "e0r7"
    assert after("w", "e", "\x7f", "\x7f", "\r").mode is Mode.TABLE


def test_a_uid_has_an_end() -> None:
    assert len(after("w", "x" * 500).typed) == LONGEST_UID


def test_a_long_history_is_moved_through_and_never_before_its_begin() -> None:
    assert after("we0r7\r", DOWN, "j", PAGE_DOWN).scroll == 12
    assert after("we0r7\r", DOWN, UP, "k", UP).scroll == 0


def test_arrow_keys_are_no_letters() -> None:
    dialog = after("w", "e0", UP, "\x1bOA", "r7")

    assert (dialog.mode, dialog.typed) == (Mode.ASKING, "e0r7")


def test_keys_are_told_apart() -> None:
    assert list(keys("a\x1b[B\x1b[6~\x1bOA\x1bq")) == ["a", DOWN, PAGE_DOWN, "\x1bOA", ESCAPE, "q"]
    assert list(keys(ESCAPE)) == [ESCAPE]
    assert list(keys("\x1b[")) == [ESCAPE, "["]
