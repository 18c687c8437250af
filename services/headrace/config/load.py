"""Makes a `Config` from a YAML file and `key=value` overrides, or says what is wrong.

Nothing else reads configuration files. Knows the keys that are paths; everything
about other keys is in the models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from headrace.config.config import Config
from headrace.config.document import parse_value, read_mapping
from headrace.config.problems import Problem, problems, unknown_key
from headrace.config.schema import known_keys
from headrace.errors import UsageError

FILE_PATHS = (
    "data.source.path",
    "data.source.parts.*.source.path",
    "journal.redis_password_file",
    "model.path",
    "model.tokenizer",
    "reward.http.token_file",
    "reward.http.ca_file",
    "rollout.engine.api_key_file",
    "rollout.engine.ca_file",
    "security.token_file",
    "security.tls.ca",
    "security.tls.cert",
    "security.tls.key",
    "weights.dir",
    "weights.tmpdir",
)
"""Keys whose relative paths count from the configuration file's folder; `*` is any key."""
WORKING_PATHS = ("run.run_dir", "checkpoint.storage")
"""Keys whose relative paths count from the current folder; a URL stays as it is."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read, override, check.

    Args:
        path: the YAML file.
        overrides: `dotted.key=value`, the value in YAML; later ones win.

    Raises:
        UsageError: with one line per thing that is wrong: where, key, what, value.

    """
    raw = read_mapping(path)
    overridden = [_apply(raw, override, path) for override in overrides]
    # A section that is there and empty, as when all its keys are commented out.
    raw = {key: {} if value is None else value for key, value in raw.items()}
    for key in FILE_PATHS:
        _make_absolute(raw, key, path.absolute().parent)
    for key in WORKING_PATHS:
        _make_absolute(raw, key, Path.cwd())
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        found = problems(Config, raw, error)
        lines = dict.fromkeys(_line(problem, path, overridden) for problem in found)
        raise UsageError("\n".join(lines)) from None


def dump_config(config: Config) -> str:
    """Write a configuration as YAML that `load_config` reads back to the same."""
    return yaml.safe_dump(
        config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100
    )


def _apply(raw: dict[str, Any], override: str, path: Path) -> str:
    """Put one override into the raw mapping; give its key."""
    key, equals, text = override.partition("=")
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key):
        raise UsageError(f"{override!r} is not an override; write key=value, as in trainer.seed=1")
    *parents, name = key.split(".")
    here = raw
    for depth, parent in enumerate(parents):
        inner = here.get(parent)
        if inner is None:
            inner = here[parent] = {}
        if not isinstance(inner, dict):
            outer = ".".join(parents[: depth + 1])
            raise UsageError(
                f"{override}: {outer} is {inner!r} in {path}, not a mapping; set {outer} as a whole"
            )
        here = inner
    here[name] = parse_value(text)
    return key


def _make_absolute(raw: Any, key: str, folder: Path) -> None:
    here = raw
    *parents, name = key.split(".")
    for depth, parent in enumerate(parents):
        if parent == "*" and isinstance(here, dict):
            rest = ".".join((*parents[depth + 1 :], name))
            for inner in here.values():
                _make_absolute(inner, rest, folder)
            return
        here = here.get(parent) if isinstance(here, dict) else None
    value = here.get(name) if isinstance(here, dict) else None
    if isinstance(value, str) and "://" not in value:
        here[name] = str(folder / Path(value).expanduser())


def _line(problem: Problem, path: Path, overridden: Sequence[str]) -> str:
    """Say where a problem comes from: the file, or the command line."""
    for key in overridden:
        if key == problem.key or problem.key.startswith(f"{key}."):
            return f"command line: {problem.text}"
        if key.startswith(f"{problem.key}.") and problem.text.startswith(
            f"{problem.key}: unknown key"
        ):
            return f"command line: {unknown_key(key, known_keys(Config))}"
    return f"{path}: {problem.text}"
