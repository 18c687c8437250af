"""Makes plans: looks at what lies in the storage, and takes the newest checkpoint that is whole.

Every byte of it is read before the run goes back to it. Changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from headrace.checkpoint.directory import CheckpointDirectory, Found, examine
from headrace.checkpoint.facts import compare
from headrace.checkpoint.plan import (
    FINISHED,
    RESTORE,
    ROLL_BACK,
    START_OVER,
    Choice,
    Plan,
    choose,
    nothing_whole,
    store_action,
)
from headrace.config.config import Config
from headrace.config.wish import is_done_by, wish_of
from headrace.errors import CannotResumeError
from headrace.v1 import replay_pb2, resume_pb2, store_pb2


class Planner:
    """Makes plans for one run.

    Args:
        config: The run's configuration.
        directory: Its checkpoints.

    """

    def __init__(self, config: Config, directory: CheckpointDirectory) -> None:
        self._config = config
        self._directory = directory

    async def plan(
        self,
        status: replay_pb2.GetReplayStatusResponse,
        store: store_pb2.GetStoreStatusResponse,
        facts: Mapping[str, str],
        *,
        begun: resume_pb2.ResumeState | None = None,
    ) -> Plan:
        """Say what a run goes on from.

        Args:
            status: Where the ledger is.
            store: What the store holds.
            facts: What must agree: see `headrace.checkpoint.facts`.
            begun: The resume that has begun already: if its checkpoint is still whole, that is
                what it goes on with.

        Raises:
            CannotResumeError: the data or the configuration is not the checkpoint's, or the mode
                does not allow it.
            NoValidCheckpointError: there are checkpoints, and none can be used.
            OSError: the storage cannot be reached.
            UsageError: it needs a driver that is not installed.

        """
        return await asyncio.to_thread(self._plan, status, store, facts, begun)

    def _plan(
        self,
        status: replay_pb2.GetReplayStatusResponse,
        store: store_pb2.GetStoreStatusResponse,
        facts: Mapping[str, str],
        begun: resume_pb2.ResumeState | None,
    ) -> Plan:
        plan = self._going_on(status, begun) if begun is not None else None
        if plan is None:
            plan = self._chosen(status)
        if plan.manifest is not None:
            plan = self._compared(status, facts, plan)
        rows = store_action(status, store, plan.manifest, plan.action)
        return replace(plan, store=rows)

    def _chosen(self, status: replay_pb2.GetReplayStatusResponse) -> Plan:
        resume = self._config.resume
        named = examine(resume.path, read=True) if resume.path is not None else None
        latest = self._directory.latest()
        choice = choose(
            status,
            self._directory.find(),
            resume,
            run_id=self._config.run.run_id,
            latest=latest,
            named=named,
            saves=self._config.trainer.save_freq > 0,
        )
        checkpoint, damaged = self._first_whole(choice)
        skipped = (*choice.skipped, *damaged)
        if checkpoint is None and choice.had_checkpoint:
            url, saved = self._directory.storage.url, status.saved_step or latest or 0
            raise nothing_whole(skipped, storage=url, saved_step=saved)
        return Plan(
            action=choice.action,
            committed_step=status.committed_step,
            checkpoint=checkpoint,
            salvage=resume.salvage == "valid",
            skipped=() if choice.action == FINISHED else skipped,
            notes=choice.notes,
        )

    def _first_whole(self, choice: Choice) -> tuple[Found | None, list[Found]]:
        damaged: list[Found] = []
        for candidate in choice.candidates:
            found = examine(candidate.uri, read=True)
            if not found.problems:
                return found, damaged
            damaged.append(found)
        return None, damaged

    def _going_on(
        self, status: replay_pb2.GetReplayStatusResponse, begun: resume_pb2.ResumeState
    ) -> Plan | None:
        """Give the plan of a resume that has begun; None if its checkpoint is wanted and gone."""
        resume = self._config.resume
        as_wished = is_done_by(wish_of(resume), begun.resume_id)
        restores = begun.restored or (status.fresh and begun.step)
        plan = Plan(
            action=RESTORE if restores else ROLL_BACK,
            committed_step=status.committed_step,
            salvage=resume.salvage == "valid",
        )
        if resume.mode == "disable" and as_wished:
            return replace(plan, action=START_OVER)
        if begun.step == 0:
            return plan
        places = [self._directory.uri(begun.step)]
        if resume.path is not None and as_wished:
            places.insert(0, resume.path)
        if begun.phase > resume_pb2.RESUME_PHASE_WEIGHTS:
            # Everybody has what they needed of it: that it is damaged by now stops nobody.
            return replace(plan, checkpoint=Found(begun.step, places[0], manifest=None))
        for place in places:
            found = examine(place, read=True)
            ours = found.manifest is not None and found.manifest.run_id == self._config.run.run_id
            if ours and found.step == begun.step and not found.problems:
                return replace(plan, checkpoint=found)
        return None

    def _compared(
        self,
        status: replay_pb2.GetReplayStatusResponse,
        facts: Mapping[str, str],
        plan: Plan,
    ) -> Plan:
        manifest = plan.manifest
        assert manifest is not None
        refusals, notes = compare(manifest.facts, facts, self._config.resume.allow)
        before, now = manifest.data_fingerprint, status.data_fingerprint
        if now and before != now:
            refusals.insert(
                0,
                f"the data set has the fingerprint {now}, and {before} in the checkpoint: its "
                "content, order or seed has changed; set it back",
            )
        if refusals:
            place = plan.checkpoint.uri if plan.checkpoint else ""
            raise CannotResumeError("\n".join([f"{place} cannot be gone on from:", *refusals]))
        return replace(plan, notes=(*plan.notes, *notes))
