"""Print the packages that an image needs, so that they are installed before the source comes in.

Usage: python requirements.py pyproject.toml EXTRA...
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]


def packages(extra: str) -> Iterator[str]:
    """Give what an extra asks for; it may ask for others of the project's own."""
    for wanted in project["optional-dependencies"][extra]:
        if own := re.fullmatch(rf"{project['name']}\[([\w,-]+)\]", wanted):
            for other in own[1].split(","):
                yield from packages(other)
        else:
            yield wanted


asked = [*project["dependencies"], *(name for extra in sys.argv[2:] for name in packages(extra))]
print("\n".join(dict.fromkeys(asked)))  # noqa: T201 (this is what it is for)
