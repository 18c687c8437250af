"""Look at a run from Python: `from headrace.client import connect`."""

from headrace.client.ledger import Ledger
from headrace.client.run import Run
from headrace.client.wire import connect

__all__ = ["Ledger", "Run", "connect"]
