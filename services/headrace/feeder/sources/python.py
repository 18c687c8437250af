"""Rows made by a function of the user's: `module:function`."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.config.data import PythonSource
from headrace.errors import UsageError
from headrace.feeder.sources.source import (
    Columns,
    Row,
    one_line,
    row_from_columns,
    sample_digest,
)


class PythonRows:
    """The sequence that the function returned: `len`, and `[i]` gives a mapping of columns."""

    def __init__(self, config: PythonSource) -> None:
        """Call the function.

        Raises:
            UsageError: it cannot be imported, it fails, or it returns no sequence of mappings.

        """
        self._config = config
        self._columns = Columns(
            prompt_key="prompt",
            answer_key="answer",
            data_source=config.function.rpartition(":")[2],
            advice="each row needs `prompt` and `answer` (an empty text if there is none)",
        )
        self._rows = call_function(config.function, config.options)
        self._size = _length(self._rows, config.function)
        if self._size:
            self[0]  # what is wrong with every row shows here

    @property
    def name(self) -> str:
        """`module:function`."""
        return self._config.function

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Row:
        """Ask the sequence for one row.

        Raises:
            UsageError: it fails, or the row is no mapping with `prompt` and `answer`.

        """
        where = f"data.source.function {self.name}, row {index}"
        try:
            values = self._rows[index]
        except Exception as error:  # foreign code
            raise UsageError(f"{where}: {one_line(error)}{raised_at(error)}") from error
        return row_from_columns(values, self._columns, where=where)

    def fingerprint(self) -> str:
        """Digest of the function's name and arguments, and of a sample of its rows."""
        return sample_digest(self, function=self.name, options=self._config.options)


def call_function(path: str, options: Mapping[str, Any]) -> Any:  # whatever the function returns
    """Call `module:function`, which is looked for in the current folder, too.

    Raises:
        UsageError: it cannot be imported, or fails.

    """
    function = _find(path)
    try:
        return function(**options)
    except Exception as error:  # foreign code
        raise UsageError(
            f"data.source.function: calling {path} with data.source.options = {options} failed: "
            f"{one_line(error)}{raised_at(error)}"
        ) from error


def raised_at(error: BaseException) -> str:
    """Say where foreign code raised; empty if it did not come to that."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""


def _find(path: str) -> Callable[..., Any]:
    module_name, _, function_name = path.partition(":")
    here = str(Path.cwd())
    if (
        here not in sys.path
    ):  # `python -m` looks in the current folder; an installed script does not
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing runs foreign code
        raise UsageError(
            f"data.source.function: cannot import {module_name}: {one_line(error)}"
            f"{raised_at(error)}; modules are looked for in {here} and among installed packages"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(
            f"data.source.function: {module_name} ({module.__file__}) has no function "
            f"{function_name!r}"
        )
    return function  # type: ignore[no-any-return]


def _length(rows: object, function: str) -> int:
    kind = type(rows)
    if (
        isinstance(rows, str | bytes | dict)
        or not hasattr(kind, "__len__")
        or not hasattr(kind, "__getitem__")
    ):
        raise UsageError(
            f"data.source.function: {function} must return a sequence of mappings (len and [i]), "
            f"and returned {kind.__name__}"
        )
    return len(rows)  # type: ignore[arg-type]
