"""Look at a run from Python, and control it: `from headrace.client import connect`."""

from headrace.client.connecting import connect
from headrace.client.run import Run

__all__ = ["Run", "connect"]
