"""Rows made into prompts: the chat template applied, tokens counted, columns packed.

Knows neither the order of the rows nor who asks for them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from headrace.errors import UsageError
from headrace.feeder.sources.source import Row, Source
from headrace.tokenizer import Tokenizer
from headrace.v1 import feeder_pb2

MAX_PAYLOAD_BYTES = 2**20
"""Largest serialized prompt with its metadata; control messages are small (at most 4 MiB)."""


class Packer:
    """Makes prompts of rows. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer, *, max_prompt_length: int) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()  # tokenizers take one call at a time
        self.max_prompt_length = max_prompt_length

    def pack(self, row: Row, *, where: str) -> feeder_pb2.PromptPayload:
        """Make a prompt, which may be too long.

        Args:
            row: The row.
            where: How messages name it.

        Raises:
            UsageError: the tokenizer refuses it, or it is too big for a message.

        """
        try:
            with self._lock:
                payload = self._pack(row)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
        size = payload.ByteSize()
        if size > MAX_PAYLOAD_BYTES and not self.is_too_long(payload):
            raise UsageError(
                f"{where}: {size} bytes with its metadata; at most {MAX_PAYLOAD_BYTES} are "
                "allowed: take columns out"
            )
        return payload

    def is_too_long(self, payload: feeder_pb2.PromptPayload) -> bool:
        """Whether it has more tokens than `max_prompt_length`."""
        return len(payload.token_ids) > self.max_prompt_length

    def _pack(self, row: Row) -> feeder_pb2.PromptPayload:
        prompt = row.prompt
        text = prompt if isinstance(prompt, str) else self._tokenizer.render(prompt)
        return feeder_pb2.PromptPayload(
            token_ids=self._tokenizer.encode(text),
            text=text,
            answer=row.answer,
            metadata_json=json.dumps(row.metadata) if row.metadata else "",
            data_source=row.data_source,
        )


class Prompts:
    """The data set as prompts, by row. May be used from several threads."""

    def __init__(self, source: Source, packer: Packer) -> None:
        self._source = source
        self._lock = threading.Lock()  # sources take one call at a time
        self._read_count = 0
        self.packer = packer

    @property
    def source_name(self) -> str:
        """What messages call the data set."""
        return self._source.name

    @property
    def read_count(self) -> int:
        """Rows read so far."""
        return self._read_count

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: Sequence[int]) -> list[feeder_pb2.PromptPayload]:
        """Read rows; takes as long as the source does.

        Raises:
            UsageError: one of them is not usable; the message says which and why.

        """
        return [self._read_one(row) for row in rows]

    def _read_one(self, index: int) -> feeder_pb2.PromptPayload:
        with self._lock:
            row = self._source[index]
            self._read_count += 1
        return self.packer.pack(row, where=f"{self.source_name}, row {index}")
