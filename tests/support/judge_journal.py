"""Reads a run's journal for the judge: by its format, never by headrace's own reader.

file   `events-*.log`: a magic line, then length, crc32c and body of each record, little-endian
Redis  stream `headrace:{run}:journal`: the entry of position p is `p-0` and has one field, `r`
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import redis
from crc32c import crc32c

from headrace.v1 import journal_pb2

MAGIC = b"headrace-journal-1\n"
AT_ONCE = 1000


def read_file_journal(directory: Path) -> list[journal_pb2.JournalRecord]:
    """Read all records of all segments, up to a torn tail."""
    return [
        record
        for segment in sorted(directory.glob("events-*.log"))
        for record in _records(segment.read_bytes())
    ]


def _records(data: bytes) -> Iterator[journal_pb2.JournalRecord]:
    assert data.startswith(MAGIC)
    offset = len(MAGIC)
    while offset + 8 <= len(data):
        length, checksum = struct.unpack_from("<II", data, offset)
        body = data[offset + 8 : offset + 8 + length]
        if len(body) < length or crc32c(body) != checksum:
            return
        yield journal_pb2.JournalRecord.FromString(body)
        offset += 8 + length


def read_redis_journal(url: str, run_id: str) -> list[journal_pb2.JournalRecord]:
    """Read the whole stream; an entry that does not stand at its position is a failure."""
    records = []
    with redis.Redis.from_url(url, socket_timeout=30) as client:
        after = "-"
        while True:
            entries = client.xrange(f"headrace:{{{run_id}}}:journal", min=after, count=AT_ONCE)
            for name, fields in entries:
                record = journal_pb2.JournalRecord.FromString(fields[b"r"])
                assert (name, len(fields)) == (b"%d-0" % record.position, 1), (name, fields)
                records.append(record)
            if len(entries) < AT_ONCE:
                return records
            after = f"({records[-1].position}-0"
