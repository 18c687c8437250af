"""A feeder, a worker, a store and a trainer in one hand, around a real ledger.

For tests of the rules: every method is one call of one party, without wire, disk or time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ledger_resumes import Resumes

from headrace.replay import feeding, leasing, rows, sampling
from headrace.replay import group as states
from headrace.replay.audit import audit
from headrace.replay.group import Group
from headrace.replay.groups import reason_name, state_name
from headrace.replay.ledger import Ledger
from headrace.replay.settings import LedgerSettings
from headrace.v1 import journal_pb2, prompt_pb2, replay_pb2

LINEAGE = "l0"


def settings(**changes: Any) -> LedgerSettings:
    """B = 4, W = 3, n = 2, unless changed."""
    return LedgerSettings(**{"n": 2, "batch_size": 4, "window_size": 12} | changes)


class World(Resumes):
    """Plays all parties of a run against one ledger."""

    def __init__(
        self,
        rules: LedgerSettings,
        *,
        row_count: int = 1000,
        capacity_bytes: int = 10**9,
        store: str = "s1",
        trainer: int = 1,
        publishes: bool = True,
    ) -> None:
        self.settings = rules
        self.ledger = Ledger(
            journal_pb2.RunOpened(
                run_id="r",
                lineage=LINEAGE,
                n=rules.n,
                train_batch_size=rules.batch_size,
                basis=rules.basis,
            )
        )
        self.begin(trainer)
        self._made_by: dict[tuple[str, int], int] = {}
        """By uid and attempt: the weights that its worker has."""
        feeding.open_feed(self.ledger, rules, row_count=row_count, fingerprint="f")
        rows.register_store(self.ledger, incarnation=store, capacity_bytes=capacity_bytes)
        sampling.register_trainer(self.ledger, f"t{trainer}")
        if publishes:
            self.publish(0)

    # -- the feeder

    @property
    def demand(self) -> int:
        return feeding.demand(self.ledger, self.settings)

    def feed(self, count: int | None = None) -> int:
        """Register what is demanded, or `count` prompts as far as they are accepted."""
        count = self.demand if count is None else count
        if not count:
            return 0
        start = self.ledger.cursor
        prompts = [replay_pb2.NewPrompt(uid=self.uid(start + i)) for i in range(count)]
        return feeding.register_prompts(
            self.ledger, self.settings, first_ordinal=start, prompts=prompts
        )

    def uid(self, ordinal: int) -> str:
        rows_per_epoch = self.ledger.feed.row_count
        return f"e{ordinal // rows_per_epoch}r{ordinal % rows_per_epoch}"

    # -- workers

    def allowance(self, worker: str = "w", version: int | None = None) -> leasing.Allowance:
        if version is None:
            assert self.ledger.latest_weights
            version = self.ledger.latest_weights.id.version
        return leasing.allowance(
            self.ledger, self.settings, worker_id=worker, version=version, store_held_bytes=0
        )

    def lease(
        self, count: int = 10**6, worker: str = "w", version: int | None = None
    ) -> list[replay_pb2.LeaseRef]:
        """Lease as many as allowed, at most `count`."""
        latest = self.ledger.latest_weights
        if latest is None:
            return []
        version = latest.id.version if version is None else version
        weights = self.weights_of(version)
        leasing.check_weights(self.ledger, weights, f"c{version}")
        groups = leasing.lease(
            self.ledger,
            self.settings,
            worker_id=worker,
            weights=weights,
            count=min(count, self.allowance(worker, version).count),
        )
        self._made_by |= {(group.uid, group.attempt): version for group in groups}
        return [replay_pb2.LeaseRef(uid=group.uid, attempt=group.attempt) for group in groups]

    def weights_of(self, version: int) -> prompt_pb2.WeightsId:
        """Name the newest weights of a version, as they were published."""
        lines = [lineage for lineage, known in self.ledger.weights if known == version]
        lineage = lines[-1] if lines else self.ledger.lineage
        return prompt_pb2.WeightsId(lineage=lineage, version=version)

    def complete(
        self,
        refs: Sequence[replay_pb2.LeaseRef],
        *,
        worker: str = "w",
        sessions: Sequence[int] | None = None,
        version: int | tuple[int, int] | None = None,
        store: str = "",
        reward: Callable[[int], float] = float,
        size_bytes: int = 10,
        lineage: str = "",
    ) -> list[Any]:
        """Report sessions (all that are missing, unless named), by a version or from one to one."""
        items = []
        for ref in refs:
            group = self.ledger.groups[ref.uid]
            wanted = group.missing(self.settings.n) if sessions is None else sessions
            items += [
                replay_pb2.CompletedSession(
                    lease=ref,
                    record=prompt_pb2.SessionRecord(
                        session=session,
                        lineage=lineage,
                        trajectory_count=1,
                        size_bytes=size_bytes,
                        reward=reward(session),
                        **self._made(ref, session, version),
                    ),
                )
                for session in wanted
            ]
        return leasing.complete_sessions(
            self.ledger,
            self.settings,
            worker_id=worker,
            store_incarnation=store or self.ledger.store_incarnation,
            items=items,
        )

    def _made(
        self, ref: replay_pb2.LeaseRef, session: int, version: int | tuple[int, int] | None
    ) -> dict[str, int]:
        """Say by which weights; unless named, what was reported is gone on with."""
        draft = self.ledger.groups[ref.uid].drafts.get(session)
        spans = draft.weight_spans if draft and version is None else ()
        made = self._made_by.get((ref.uid, ref.attempt), 0) if version is None else version
        oldest, newest = (made, made) if isinstance(made, int) else made
        return {
            "token_count": 1 + (spans[-1].end if spans else 0),
            "min_version": min([oldest, *(span.version for span in spans)]),
            "max_version": max([newest, *(span.version for span in spans)]),
        }

    def generate(self, count: int = 10**6) -> int:
        """Lease and complete; count the groups."""
        refs = self.lease(count)
        self.complete(refs)
        return len(refs)

    def fail(
        self,
        refs: Sequence[replay_pb2.LeaseRef],
        *,
        worker: str = "w",
        live_workers: Sequence[str] = (),
    ) -> list[Any]:
        return self.end(refs, replay_pb2.LEASE_END_FAILED, worker, live_workers)

    def hand_back(self, refs: Sequence[replay_pb2.LeaseRef], *, worker: str = "w") -> list[Any]:
        return self.end(refs, replay_pb2.LEASE_END_RETURNED, worker, ())

    def end(
        self,
        refs: Sequence[replay_pb2.LeaseRef],
        end: replay_pb2.LeaseEnd.ValueType,
        worker: str,
        live_workers: Sequence[str],
    ) -> list[Any]:
        return leasing.end_leases(
            self.ledger,
            self.settings,
            worker_id=worker,
            leases=[replay_pb2.EndedLease(lease=ref, end=end, error="boom") for ref in refs],
            live_workers=live_workers,
        )

    def expire(self, refs: Sequence[replay_pb2.LeaseRef]) -> None:
        leasing.expire(self.ledger, self.settings, [ref.uid for ref in refs])

    # -- the trainer

    def publish(self, version: int) -> None:
        sampling.publish_weights(
            self.ledger,
            prompt_pb2.PublishedWeights(
                id=prompt_pb2.WeightsId(lineage=self.ledger.lineage, version=version),
                uri="u",
                checksum=f"c{version}",
            ),
        )

    def sample(
        self, step: int | None = None, part: int = 0, part_count: int = 1
    ) -> sampling.Sample:
        step = self.ledger.current_step if step is None else step
        return sampling.sample(
            self.ledger, self.settings, step=step, part=part, part_count=part_count
        )

    def commit(self, step: int | None = None) -> None:
        """Commit the open step, or this one, and publish its weights."""
        step = self.ledger.current_step if step is None else step
        sampling.commit_step(self.ledger, self.settings, step)
        latest = self.ledger.latest_weights
        if latest and latest.id.version < step:
            self.publish(step)

    def step(self) -> sampling.Sample:
        """Open a step, have its groups fed and made, sample and commit it."""
        sample = self.sample()
        while sample.status == replay_pb2.SAMPLE_STATUS_WAITING:
            fed, made = self.feed(), self.generate()
            sample = self.sample()
            assert fed or made or sample.status != replay_pb2.SAMPLE_STATUS_WAITING, "stuck"
        if sample.status == replay_pb2.SAMPLE_STATUS_READY:
            self.commit()
        return sample

    def train(self, steps: int) -> None:
        """Train so many steps, everybody doing what they can in between."""
        for _ in range(steps):
            sample = self.step()
            assert sample.status == replay_pb2.SAMPLE_STATUS_READY
        self.feed()
        self.generate()

    # -- looking

    def dropped(self) -> dict[str, int]:
        counts = self.ledger.groups.dropped
        return {reason_name(reason): count for reason, count in counts.items() if count}

    def groups(self, refs: Sequence[replay_pb2.LeaseRef]) -> list[Group]:
        return [self.ledger.groups[ref.uid] for ref in refs]

    def uids(self, *states: prompt_pb2.PromptState.ValueType) -> set[str]:
        return {group.uid for group in self.ledger.groups if group.state in states}

    def states(self) -> dict[str, int]:
        """Count the groups that the window is about, by state; none is left out."""
        found = self.ledger.groups.counts
        live = (states.PENDING, states.RUNNING, states.FINISHED, states.FAILED, states.SAMPLED)
        return {state_name(state): found[state] for state in live if found[state]}

    def fine(self) -> None:
        """Have the ledger's own audit find nothing."""
        assert audit(self.ledger, self.settings) == []


def filled(count: int, **rules: Any) -> World:
    """Build a world with one committed step, a checkpoint of it, and `count` finished groups."""
    world = World(settings(window_size=count, **rules))
    world.step()
    world.feed()
    world.generate()
    assert world.states() == ({"finished": count} if count else {})
    world.save()
    return world
