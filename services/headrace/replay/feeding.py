"""How prompts come in: the feed is opened, demand is met, the cursor moves."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import (
    DataChangedError,
    FeedGapError,
    FeedNotOpenError,
    InvalidFieldError,
    RunTooShortError,
)
from headrace.replay import circuit
from headrace.replay.ending import at_end, end_run
from headrace.replay.ledger import Ledger
from headrace.replay.progress import Feed
from headrace.replay.settings import LedgerSettings
from headrace.v1 import feeder_pb2, prompt_pb2, replay_pb2, resume_pb2
from headrace.v1 import journal_pb2 as journal

MAX_PROMPTS_PER_CALL = 4096
UNKNOWN_LENGTH = 2**39
"""Rows that a source of unknown length is taken to have: beyond all reach, and below the ordinals of
rows that are fed by hand, which begin at 2^40."""


def open_feed(
    ledger: Ledger, settings: LedgerSettings, *, row_count: int, fingerprint: str
) -> None:
    """Note what data set there is, once; the same again changes nothing.

    The same data for another number of steps or epochs makes the run longer or shorter.

    Raises:
        InvalidFieldError: there are not enough rows for one batch.
        RunTooShortError: the run would end before where it is.
        DataChangedError: the run was opened with another data set.

    """
    known = ledger.feed
    if known.total_steps and (row_count, fingerprint) != (known.row_count, known.fingerprint):
        raise DataChangedError(
            "the data set is not the one this run was opened with",
            opened_with=f"{_rows(known.row_count)}, {known.fingerprint}",
            offered=f"{_rows(row_count)}, {fingerprint}",
        )
    if known.total_steps and (row_count >= UNKNOWN_LENGTH or ledger.ended_by):
        return  # EndFeed says where a stream ends; what is over stays so
    ordinal_count, total_steps = length_of(
        settings, row_count, cursor=ledger.cursor, committed_step=ledger.committed_step
    )
    if not fingerprint:
        raise InvalidFieldError("fingerprint", "is required")
    if (ordinal_count, total_steps) == (known.ordinal_count, known.total_steps):
        return
    ledger.emit(
        journal.FeedOpened(
            row_count=row_count,
            ordinal_count=ordinal_count,
            total_steps=total_steps,
            fingerprint=fingerprint,
        )
    )


def length_of(
    settings: LedgerSettings, row_count: int, *, cursor: int, committed_step: int
) -> tuple[int, int]:
    """Give the prompts and the steps of a run over so many rows.

    Args:
        settings: What the run is configured by.
        row_count: Rows in its data set.
        cursor: Prompts that it has read.
        committed_step: Steps that it has behind it.

    Raises:
        InvalidFieldError, RunTooShortError: as `open_feed`.

    """
    ordinal_count = row_count * settings.epochs
    if ordinal_count < settings.batch_size:
        raise InvalidFieldError(
            "row_count",
            f"{row_count} rows x {settings.epochs} epochs do not fill one batch of "
            f"{settings.batch_size}",
        )
    total_steps = ordinal_count // settings.batch_size
    total_steps = min(total_steps, settings.total_steps or total_steps)
    if ordinal_count < cursor:
        raise RunTooShortError(
            f"trainer.total_epochs: {settings.epochs} epochs of {row_count} rows are {ordinal_count} "
            f"prompts, and this run has read {cursor} already: give more epochs, or start "
            "another run (run.name or run.run_dir)"
        )
    if total_steps < committed_step:
        raise RunTooShortError(
            f"trainer.total_training_steps: {total_steps} is fewer than the {committed_step} steps "
            f"that this run has trained already: give {committed_step} or more, or start another "
            "run (run.name or run.run_dir)"
        )
    return ordinal_count, total_steps


def _rows(row_count: int) -> str:
    return "a stream" if row_count >= UNKNOWN_LENGTH else f"{row_count} rows"


def keep_length(ledger: Ledger, opened: Feed) -> None:
    """Let a restored ledger be as long as the feed was opened for, not as its checkpoint was.

    What does not fit the checkpoint is left to the feeder, who opens the feed again and is refused.
    """
    known = ledger.feed
    is_same = (opened.row_count, opened.fingerprint) == (known.row_count, known.fingerprint)
    fits = opened.ordinal_count >= ledger.cursor and opened.total_steps >= ledger.committed_step
    if opened != known and is_same and fits and known.row_count < UNKNOWN_LENGTH:
        ledger.emit(
            journal.FeedOpened(
                row_count=opened.row_count,
                ordinal_count=opened.ordinal_count,
                total_steps=opened.total_steps,
                fingerprint=opened.fingerprint,
            )
        )


def end_feed(ledger: Ledger, settings: LedgerSettings, *, ordinal_count: int) -> None:
    """Note where a feed of unknown length ends; the same again changes nothing.

    The steps become those that can still be filled, by the feed and what came in by hand. A run
    that has done them all is over: no next step would ever commit.

    Raises:
        FeedNotOpenError: OpenFeed comes first.
        InvalidFieldError: it would end before the cursor, or later than was said before.

    """
    feed = ledger.feed
    if not feed.total_steps:
        raise FeedNotOpenError("OpenFeed comes before EndFeed")
    if not ledger.cursor <= ordinal_count <= feed.ordinal_count:
        raise InvalidFieldError(
            "ordinal_count", f"must be {ledger.cursor} (the cursor) to {feed.ordinal_count}"
        )
    if ordinal_count == feed.ordinal_count:
        return
    most = (ordinal_count + ledger.hand_fed_count) // ledger.batch_size
    ledger.emit(
        journal.FeedOpened(
            row_count=feed.row_count,
            ordinal_count=ordinal_count,
            total_steps=max(1, min(feed.total_steps, most)),
            fingerprint=feed.fingerprint,
        )
    )
    ends_here = not settings.saves and not ledger.ended_by and not ledger.is_resuming
    if ends_here and at_end(ledger):
        end_run(ledger, "data_ended")


def demand(ledger: Ledger, settings: LedgerSettings) -> int:
    """How many prompts are wanted now; none while paused, with an open circuit, or at the end.

    While a run is being resumed nothing is wanted before WARMUP.

    If nothing is left that a probe could be made with - it was tried in vain, or has grown too old
    - the open circuit lets in one prompt, or no success could ever close it.
    """
    if ledger.ended_by or ledger.paused or not ledger.feed.total_steps:
        return 0
    if ledger.resume and ledger.resume.phase < resume_pb2.RESUME_PHASE_WARMUP:
        return 0
    wanted = ledger.window(settings.window_size).demand
    if ledger.circuit.is_open:
        wanted = min(wanted, circuit.probes_wanted(ledger))
    return min(wanted, ledger.feed.ordinal_count - ledger.cursor)


def surplus_count(ledger: Ledger) -> int:
    """After the end: unread rows of a run that was to use up its data (fewer than a batch)."""
    if not ledger.ended_by:
        return 0
    used_up = ledger.feed.total_steps >= ledger.feed.ordinal_count // ledger.batch_size
    return ledger.feed.ordinal_count - ledger.cursor if used_up else 0


def register_prompts(
    ledger: Ledger,
    settings: LedgerSettings,
    *,
    first_ordinal: int,
    prompts: Sequence[replay_pb2.NewPrompt],
    source_states: Sequence[str] = (),
) -> int:
    """Register what continues the feed and is wanted.

    Returns:
        How many of the prompts, from the first on, are registered now (repeats included).

    Raises:
        FeedNotOpenError, FeedGapError, InvalidFieldError: as the RPC says.

    """
    if not ledger.feed.total_steps:
        raise FeedNotOpenError("OpenFeed comes before RegisterPrompts")
    if not 1 <= len(prompts) <= MAX_PROMPTS_PER_CALL:
        raise InvalidFieldError("prompts", f"must be 1 to {MAX_PROMPTS_PER_CALL}")
    if first_ordinal > ledger.cursor:
        raise FeedGapError(
            f"the feed goes on at ordinal {ledger.cursor}, not at {first_ordinal}",
            cursor=str(ledger.cursor),
        )
    if source_states and len(source_states) != len(prompts):
        raise InvalidFieldError("source_states", "must be one per prompt, or none")
    repeats = ledger.cursor - first_ordinal
    accepted = _acceptable(ledger, settings, prompts[repeats:])
    if accepted:
        ledger.emit(
            journal.PromptsRegistered(
                first_ordinal=ledger.cursor,
                prompts=accepted,
                own_demand=ledger.window(settings.window_size).own_demand,
                source_state=source_states[repeats + len(accepted) - 1] if source_states else "",
            )
        )
    return min(repeats, len(prompts)) + len(accepted)


def _acceptable(
    ledger: Ledger, settings: LedgerSettings, fresh: Sequence[replay_pb2.NewPrompt]
) -> list[replay_pb2.NewPrompt]:
    wanted = demand(ledger, settings)
    room = ledger.feed.ordinal_count - ledger.cursor
    accepted: list[replay_pb2.NewPrompt] = []
    names: set[str] = set()
    for prompt in fresh[:room]:
        if (
            not prompt.uid
            or "_" in prompt.uid
            or prompt.uid in ledger.groups
            or prompt.uid in names
        ):
            raise InvalidFieldError("prompts.uid", f"{prompt.uid!r} is empty, malformed or taken")
        if prompt.drop_reason == prompt_pb2.DROP_REASON_SURPLUS:
            if not ledger.ended_by:
                raise InvalidFieldError("prompts.drop_reason", "SURPLUS comes after the end only")
        elif prompt.drop_reason == prompt_pb2.DROP_REASON_UNSPECIFIED:
            if not wanted:
                break
            wanted -= 1
        elif prompt.drop_reason != prompt_pb2.DROP_REASON_TOO_LONG:
            raise InvalidFieldError("prompts.drop_reason", "must be unset, TOO_LONG or SURPLUS")
        names.add(prompt.uid)
        accepted.append(prompt)
    return accepted


def register_rows(
    ledger: Ledger, *, request_id: str, rows: Sequence[feeder_pb2.PromptPayload]
) -> list[str]:
    """Register rows given by hand, once per `request_id`, whatever the window wants.

    Returns:
        Their uids, `x{call}r{i}`.

    Raises:
        InvalidFieldError, FeedNotOpenError: as the RPC says.

    """
    if not request_id:
        raise InvalidFieldError("request_id", "is required")
    if request_id not in ledger.hand_fed:
        if not 1 <= len(rows) <= MAX_PROMPTS_PER_CALL:
            raise InvalidFieldError("rows", f"must be 1 to {MAX_PROMPTS_PER_CALL}")
        if not ledger.feed.total_steps or ledger.ended_by:
            raise FeedNotOpenError(
                "rows can be fed by hand while the run is on, not before or after"
            )
        call = len(ledger.hand_fed) + 1
        ledger.emit(
            journal.RowsRegistered(
                request_id=request_id,
                call=call,
                prompts=[
                    replay_pb2.NewPrompt(uid=f"x{call}r{i}", payload=row)
                    for i, row in enumerate(rows)
                ],
            )
        )
    fed = ledger.hand_fed[request_id]
    return [f"x{fed.call}r{i}" for i in range(fed.count)]


def add_credit(ledger: Ledger, *, count: int, request_id: str, kind: str) -> int:
    """Ask for prompts beyond the window, once per `request_id`.

    Returns:
        Prompts asked for and not registered yet, as the first answer said.

    Raises:
        InvalidFieldError: no id, or nothing asked for.

    """
    if not request_id:
        raise InvalidFieldError("request_id", "is required")
    if request_id not in ledger.credit_answers:
        if count < 1:
            raise InvalidFieldError("count", "must be at least 1")
        ledger.emit(journal.CreditAdded(request_id=request_id, count=count, kind=kind))
    return ledger.credit_answers[request_id]
