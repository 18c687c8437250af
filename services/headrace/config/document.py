"""Reads YAML the way people expect (the core schema of YAML 1.2).

PyYAML follows YAML 1.1, where `1e-3` is text, `no` is false, `12:30` is 750 and a
key given twice silently counts once. Knows nothing of headrace's keys.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from headrace.errors import UsageError


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2 and no repeated keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if text[:2] in {"0x", "0o"} else int(text)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = key_node.value
        if isinstance(key, str) and key in seen and key != "<<":
            raise yaml.constructor.ConstructorError(
                None, None, f"{key!r} is given twice", key_node.start_mark
            )
        if isinstance(key, str):
            seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_mapping(node, deep=True))


def _define() -> None:
    scalars = {
        "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
        "float": (
            r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
            r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
            list("-+.0123456789"),
        ),
        "merge": (r"<<", ["<"]),
    }
    for name, (pattern, first) in scalars.items():
        tag = f"tag:yaml.org,2002:{name}"
        _Loader.add_implicit_resolver(tag, re.compile(rf"^(?:{pattern})$"), first)
    _Loader.add_constructor("tag:yaml.org,2002:int", _integer)
    _Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


_define()


def parse_value(text: str) -> Any:
    """Parse one YAML value, as it stands after `key=`.

    Raises:
        UsageError: it is not YAML.

    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{text!r} is not a YAML value: {_reason(error)}") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file whose document is a mapping; an empty file is an empty one.

    Raises:
        UsageError: no such file, unreadable, not YAML (with the line), or no mapping.

    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a directory; give the configuration file in it") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: not valid YAML: {_reason(error)}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path}: not valid YAML: {_reason(error)}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"{path}: should be a mapping of sections, is a {_name(document)}")
    return document


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        return str(error.problem)
    return " ".join(str(error).split())


def _name(value: Any) -> str:
    name = type(value).__name__
    return "text" if name == "str" else name
