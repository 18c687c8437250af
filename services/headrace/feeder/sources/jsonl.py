"""Rows of a file with one JSON object per line.

Keeps where each line begins and nothing else; every line is checked once, at opening.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from array import array
from typing import BinaryIO

from headrace.config.data import JsonlSource
from headrace.errors import UsageError
from headrace.feeder.sources.source import Columns, Row, row_from_json


class JsonlRows:
    """The rows of one file. Blank lines are none.

    The file must not change while it is open; the fingerprint shows that it did at the next start.
    """

    def __init__(self, config: JsonlSource) -> None:
        """Check every line.

        Raises:
            UsageError: the file cannot be read, or a line is malformed.

        """
        self._config = config
        self._columns = Columns(
            prompt_key=config.prompt_key,
            answer_key=config.answer_key,
            data_source=config.path.stem,
            advice="set data.source.prompt_key and data.source.answer_key "
            "(null if there are no answers)",
        )
        self._offsets = array("Q")  # of each row's first byte
        self._line_numbers = array("Q")
        try:
            self._file = config.path.open("rb")
        except OSError as error:
            raise UsageError(
                f"data.source.path: cannot read {config.path}: {error.strerror}"
            ) from None
        weakref.finalize(self, self._file.close)  # sources have no close: they live as long as used
        self._digest = self._index(self._file)

    @property
    def name(self) -> str:
        """The file's path."""
        return str(self._config.path)

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> Row:
        """Read one row: a seek and a line.

        Raises:
            UsageError: the file has changed and its line is malformed now.

        """
        self._file.seek(self._offsets[index])
        return self._parse(self._file.readline(), self._line_numbers[index])

    def fingerprint(self) -> str:
        """SHA-256 of the file's bytes, and of what its columns mean."""
        meaning = json.dumps([self._config.prompt_key, self._config.answer_key, self._digest])
        return hashlib.sha256(meaning.encode()).hexdigest()

    def _index(self, file: BinaryIO) -> str:
        digest, offset = hashlib.sha256(), 0
        try:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if line.strip():
                    self._parse(line, number)
                    self._offsets.append(offset)
                    self._line_numbers.append(number)
                offset += len(line)
        except OSError as error:
            raise UsageError(f"data.source.path: cannot read {self.name}: {error}") from None
        return digest.hexdigest()

    def _parse(self, line: bytes, number: int) -> Row:
        where = f"{self._config.path}:{number}"
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{where}: not UTF-8 (byte {error.start} of the line)") from None
        return row_from_json(text, self._columns, where=where)
