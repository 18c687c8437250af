"""Journal records: making them, naming them, and what they concern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from google.protobuf import json_format

from headrace.v1 import journal_pb2 as journal
from headrace.v1 import prompt_pb2

SCHEMA_VERSION = 1

Event: TypeAlias = (
    journal.RunOpened
    | journal.FeedOpened
    | journal.PromptsRegistered
    | journal.PromptsLeased
    | journal.LeasesEnded
    | journal.SessionsCompleted
    | journal.SessionsForgotten
    | journal.GroupsDropped
    | journal.GroupsFailed
    | journal.GroupsReturned
    | journal.TrainerRegistered
    | journal.WeightsPublished
    | journal.StepOpened
    | journal.BatchSampled
    | journal.StepCommitted
    | journal.StoreRegistered
    | journal.CreditAdded
    | journal.CircuitOpened
    | journal.CircuitClosed
    | journal.WorkerEjected
    | journal.RowsRegistered
    | journal.RunPaused
    | journal.RunResumed
    | journal.RunEnded
    | journal.SnapshotBegun
    | journal.SnapshotEnded
    | journal.ResumeBegun
    | journal.ResumeAdvanced
    | journal.LedgerRestored
    | journal.LedgerEmptied
    | journal.LineageOpened
    | journal.RowsLost
    | journal.TokensReported
    | journal.DraftsDropped
)

_FIELD_OF_TYPE = {
    field.message_type.name: field.name
    for field in journal.JournalRecord.DESCRIPTOR.oneofs_by_name["event"].fields
    if field.message_type
}


def to_record(event: Event, position: int) -> journal.JournalRecord:
    """Wrap an event. Writer epoch and time are filled in when it is written."""
    record = journal.JournalRecord(schema_version=SCHEMA_VERSION, position=position)
    getattr(record, _FIELD_OF_TYPE[event.DESCRIPTOR.name]).CopyFrom(event)
    return record


def name_of(record: journal.JournalRecord) -> str:
    """Name the event: `prompts_leased`."""
    return record.WhichOneof("event") or "unknown"


def uids_of(record: journal.JournalRecord) -> Sequence[str]:
    """Name the groups that the event itself lists, in order, repeats removed."""
    event = getattr(record, name_of(record))
    if isinstance(event, journal.PromptsRegistered | journal.RowsRegistered):
        return [prompt.uid for prompt in event.prompts]
    if isinstance(event, journal.PromptsLeased):
        return [lease.uid for lease in event.leases]
    if isinstance(event, journal.LeasesEnded):
        return [ended.lease.uid for ended in event.leases]
    if isinstance(event, journal.SessionsCompleted):
        return list(dict.fromkeys(session.lease.uid for session in event.sessions))
    if isinstance(event, journal.LineageOpened):
        return [group.uid for group in event.groups]
    if isinstance(event, journal.TokensReported):
        return [progress.lease.uid for progress in event.progress]
    return list(dict.fromkeys(getattr(event, "uids", ())))


def to_ledger_event(
    record: journal.JournalRecord, *, only_uid: str | None = None
) -> prompt_pb2.LedgerEvent:
    """Shape a record for tools: no payloads and tokens, of a batch only the part of `only_uid`."""
    event = type(getattr(record, name_of(record)))()
    event.CopyFrom(getattr(record, name_of(record)))
    if isinstance(event, journal.PromptsRegistered | journal.RowsRegistered):
        for prompt in event.prompts:
            prompt.ClearField("payload")
    if isinstance(event, journal.TokensReported):
        for draft in (draft for progress in event.progress for draft in progress.drafts):
            draft.ClearField("token_ids")
            draft.ClearField("logprobs")
    if isinstance(event, journal.LedgerRestored):
        event.ClearField("base")
    if only_uid is not None:
        _keep_only(event, only_uid)
    return prompt_pb2.LedgerEvent(
        position=record.position,
        unix_time_s=record.unix_time_s,
        name=name_of(record),
        uids=[only_uid] if only_uid is not None else uids_of(record),
        detail_json=json_format.MessageToJson(event, indent=None, preserving_proto_field_name=True),
    )


def _keep_only(event: object, uid: str) -> None:
    if isinstance(event, journal.PromptsRegistered):
        offset = next((i for i, prompt in enumerate(event.prompts) if prompt.uid == uid), 0)
        kept = [event.prompts[offset]] if event.prompts else []
        event.first_ordinal += offset
        del event.prompts[:]
        event.prompts.extend(kept)
    elif isinstance(event, journal.RowsRegistered):
        rows = [prompt for prompt in event.prompts if prompt.uid == uid]
        del event.prompts[:]
        event.prompts.extend(rows)
    elif isinstance(event, journal.PromptsLeased):
        leases = [lease for lease in event.leases if lease.uid == uid]
        del event.leases[:]
        event.leases.extend(leases)
    elif isinstance(event, journal.LeasesEnded):
        ended = [lease for lease in event.leases if lease.lease.uid == uid]
        del event.leases[:]
        event.leases.extend(ended)
    elif isinstance(event, journal.SessionsCompleted):
        sessions = [session for session in event.sessions if session.lease.uid == uid]
        del event.sessions[:]
        event.sessions.extend(sessions)
    elif isinstance(event, journal.LineageOpened):
        groups = [group for group in event.groups if group.uid == uid]
        del event.groups[:]
        event.groups.extend(groups)
    elif isinstance(event, journal.TokensReported):
        progress = [each for each in event.progress if each.lease.uid == uid]
        del event.progress[:]
        event.progress.extend(progress)
    elif isinstance(event, journal.RowsLost | journal.DraftsDropped):
        lost = [s for u, s in zip(event.uids, event.sessions, strict=True) if u == uid]
        del event.uids[:], event.sessions[:]
        event.sessions.extend(lost)
    elif isinstance(event, journal.GroupsDropped):
        spans = [s for u, s in zip(event.uids, event.spans, strict=False) if u == uid]
        del event.uids[:], event.spans[:]
        event.spans.extend(spans)
    elif isinstance(
        event,
        journal.BatchSampled
        | journal.GroupsReturned
        | journal.GroupsFailed
        | journal.SessionsForgotten,
    ):
        del event.uids[:]
