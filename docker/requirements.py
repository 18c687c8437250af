"""Print the packages that an image needs, so that they are installed before the source comes in.

Usage: python requirements.py pyproject.toml EXTRA...
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
wanted = list(project["dependencies"])
for extra in sys.argv[2:]:
    wanted += project["optional-dependencies"][extra]
print("\n".join(wanted))  # noqa: T201 (this is what it is for)
