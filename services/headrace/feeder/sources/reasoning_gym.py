"""Rows of a procedural data set of the reasoning-gym package (arXiv 2505.24760).

What a row's `metadata` holds, so that whoever scores needs nothing but the row:

    {"reasoning_gym": {"name": "chain_sum", "options": {...}, "entry": {...}}}

- `reasoning_gym.create_dataset(name, **options).score_answer(answer, entry)` is the score;
  `options` has neither size nor seed, so one scorer serves all rows of equal name and options.
- `entry` is the row as the data set gave it. Some scorers tell tuples from lists, which JSON does
  not (`arc_agi` gives 0.05 for the right answer then). Where that may matter, `entry` is absent and
  `entry_literal` holds it as a Python literal: read it by `ast.literal_eval`.

An entry rather than (seed, index): not every data set makes the same rows in two processes
(`word_ladder` follows the order of a set of strings, so it depends on PYTHONHASHSEED).
"""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import numbers
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from headrace.config.data import ReasoningGymSource
from headrace.errors import UsageError
from headrace.feeder.sources.source import Row, check_prompt, one_line, sample_digest


class ReasoningGymRows:
    """The data set's rows, made when they are read."""

    def __init__(self, config: ReasoningGymSource) -> None:
        """Make the data set.

        Raises:
            UsageError: the package is missing, it has no such data set, or refuses the options.

        """
        self._config = config
        self._gym = _package()
        self._rows = _create(self._gym, config)

    @property
    def name(self) -> str:
        """The data set's name."""
        return self._config.name

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        """Make one row.

        Raises:
            UsageError: the data set fails to.

        """
        where = f"reasoning_gym {self.name}, row {index}"
        try:
            entry = plain(self._rows[index])
            prompt = check_prompt(self._prompt(entry["question"]), where=f"{where}: question")
            scored = {**self._scorer(entry), **carry_entry(entry)}
        except UsageError:
            raise
        except Exception as error:  # foreign code
            raise UsageError(f"{where}: {one_line(error)}") from error
        answer = entry.get("answer")
        return Row(
            prompt=prompt,
            answer="" if answer is None else str(answer),
            data_source=str(scored["name"]),
            metadata={"reasoning_gym": scored},
        )

    def _prompt(self, question: Any) -> Any:
        if not self._config.chat:
            return question
        messages = [{"role": "user", "content": question}]
        if self._config.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self._config.system_prompt})
        return messages

    def fingerprint(self) -> str:
        """Digest of all settings, the package's version and a sample of rows."""
        return sample_digest(
            self,
            settings=self._config.model_dump(mode="json"),
            version=importlib.metadata.version("reasoning-gym"),
        )

    def _scorer(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Name the data set that scores the row: for `composite`, the part it came from."""
        if self.name != "composite":
            return {"name": self.name, "options": self._config.options}
        part = entry["metadata"]["source_dataset"]
        [options] = [spec.config for spec in self._rows.config.datasets if spec.name == part]
        return {
            "name": part,
            "options": {k: v for k, v in options.items() if k not in ("size", "seed")},
        }


def carry_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Give the entry as JSON if that keeps every type, else as a Python literal.

    `metadata.difficulty` may lose its tuples: it says how the row was drawn, and no scorer reads it.
    """
    metadata = entry.get("metadata")
    if isinstance(metadata, dict) and "difficulty" in metadata:
        loose = json.loads(json.dumps(metadata["difficulty"], default=repr))
        entry = {**entry, "metadata": {**metadata, "difficulty": loose}}
    return {"entry": entry} if _survives_json(entry) else {"entry_literal": repr(entry)}


def plain(value: Any) -> Any:
    """Turn numbers and texts of numpy's and the like into Python's own; containers keep their type.

    Raises:
        TypeError: something that cannot be written as a literal.

    """
    if value is None or type(value) in (bool, int, float, str, bytes, complex):
        return value
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        items = [plain(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else type(value)(items)
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "tolist"):  # a numpy number or array
        return value.tolist()
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"an entry holds {type(value).__name__}, which cannot be written down")


def _survives_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(
            map(_survives_json, value.values())
        )
    if isinstance(value, list):
        return all(map(_survives_json, value))
    if isinstance(value, float):
        return value - value == 0  # neither infinite nor NaN
    return value is None or isinstance(value, bool | int | str)


def _package() -> ModuleType:
    try:
        import reasoning_gym
    except ImportError as error:
        raise UsageError(
            "data.source.kind: reasoning_gym needs a package that is not installed: "
            f"pip install 'headrace[reasoning-gym]' ({error})"
        ) from error
    return reasoning_gym  # type: ignore[no-any-return]


def _create(gym: ModuleType, config: ReasoningGymSource) -> Any:  # the package is followed as Any
    known = sorted(gym.factory.DATASETS)
    if config.name not in known:
        close = difflib.get_close_matches(config.name, known, n=3) or known
        raise UsageError(
            f"data.source.name: reasoning_gym has no data set {config.name!r}; "
            f"did you mean {', '.join(close)}?"
        )
    try:
        options = dict(config.options)
        if config.name == "composite":
            parts = options.get("datasets", [])
            options["datasets"] = [gym.composite.DatasetSpec(**part) for part in parts]
        return gym.create_dataset(config.name, size=config.size, seed=config.seed, **options)
    except Exception as error:  # foreign code: it asserts, and lets dataclasses raise TypeError
        raise UsageError(
            f"data.source.options: reasoning_gym's {config.name} refuses {config.options}: "
            f"{one_line(error)}"
        ) from error
