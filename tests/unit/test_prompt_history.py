"""What happened to a prompt, as `where` shows it: every kind of event has words."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headrace.client.history import detail_in_words, history_table
from headrace.replay.events import to_ledger_event
from headrace.v1 import journal_pb2, prompt_pb2, replay_pb2

UID = "e0r7"
KINDS = [
    field.name for field in journal_pb2.JournalRecord.DESCRIPTOR.oneofs_by_name["event"].fields
]


def fill(message: Message, *, elements: int) -> Message:
    """Set every field, lists with so many elements; texts are the uid."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type and field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            _extend(message, field, elements)
        elif field.message_type:
            if field.message_type != message.DESCRIPTOR:
                fill(getattr(message, field.name), elements=elements)
        elif not field.containing_oneof:
            setattr(message, field.name, _value(field))
    return message


def _extend(message: Message, field: Any, elements: int) -> None:
    found = getattr(message, field.name)
    for _ in range(elements):
        if field.message_type:
            fill(found.add(), elements=elements)
        else:
            found.append(_value(field))


def _value(field: Any) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return b"" if field.type == FieldDescriptor.TYPE_BYTES else UID
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_ENUM:
            return field.enum_type.values[-1].number
        case _:
            return 3


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_event_is_told_in_words(kind: str) -> None:
    record = journal_pb2.JournalRecord(position=4)
    fill(getattr(record, kind), elements=2)
    getattr(record, kind).SetInParent()

    event = to_ledger_event(record, only_uid=UID)
    found = replay_pb2.LocatePromptResponse(group=prompt_pb2.PromptGroup(uid=UID), history=[event])

    assert kind in history_table(found).plain
    assert "payload" not in event.detail_json


def test_lost_rows_are_told_by_their_numbers() -> None:
    lost = journal_pb2.RowsLost(uids=[UID, "e0r8", UID], sessions=[0, 1, 3])

    event = to_ledger_event(journal_pb2.JournalRecord(rows_lost=lost), only_uid=UID)

    assert detail_in_words(event.detail_json) == "sessions 0, 3"
