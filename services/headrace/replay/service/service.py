"""The whole service, by who calls it."""

from __future__ import annotations

from headrace.replay.service.coordinator import CoordinatorCalls
from headrace.replay.service.feeder import FeederCalls
from headrace.replay.service.store import StoreCalls
from headrace.replay.service.tools import ToolCalls
from headrace.replay.service.trainer import TrainerCalls
from headrace.replay.service.worker import WorkerCalls


class ReplayService(
    FeederCalls, WorkerCalls, TrainerCalls, StoreCalls, CoordinatorCalls, ToolCalls
):
    """ReplayBufferService."""
