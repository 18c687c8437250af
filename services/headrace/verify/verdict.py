"""What is said of a rehearsal: a line for each thing that must hold, from what was recorded outside.

The run under test judges nothing here. Two plays are compared: one that was left alone, and one that
was struck. Knows no process.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf import json_format

from headrace.checkpoint.directory import CheckpointDirectory, storage_of
from headrace.checkpoint.storage import step_name
from headrace.config.config import Config
from headrace.v1 import journal_pb2, prompt_pb2
from headrace.verify.model import Model
from headrace.verify.play import Played
from headrace.verify.told import DROPPED, LIVE, TRAINED, Rules

SHOWN: Final = 3
"""Violations of one kind that are shown in full."""

INVARIANTS: Final[Mapping[str, str]] = {
    "I1": "every prompt is in exactly one place, always",
    "I2": "no prompt is fed or trained on twice in the live time line",
    "I3": "steps are committed in order, each on one time line, and undone together",
    "I4": "no prompt is skipped",
    "I5": "the window is kept, and nothing is fed or leased while the run is resumed",
    "I6": "leases, attempts and trainers of before change nothing",
    "I7": "nothing past the threshold is trained on",
    "I8": "finished groups have all their sessions, in the living store",
    "I9": "every checkpoint is whole, and of one moment",
    "I10": "what was shown stays",
    "I11": "the run ends, by itself and well",
    "I12": "prompts are fed in their order, and sampled oldest first",
    "I13": "failed prompts have failed often enough",
    "I14": "weights of a dead time line are never used",
    "same": "trained on the same prompts as undisturbed",
    "seen": "each checkpoint's weights have seen what the ledger says",
    "audit": "the run's own audit agrees",
}


@dataclass(frozen=True)
class Line:
    """One thing that must hold."""

    key: str
    what: str
    wrong: tuple[str, ...] = ()
    """What is wrong with it; nothing if it holds."""


def fold(played: Played, rules: Rules) -> tuple[Model, list[str]]:
    """Follow a play's events; give where they lead, and what was wrong on the way."""
    found: list[str] = []
    model = Model(rules, found.append)
    for event in played.recorder.events:
        model.apply(to_record(event))
    return model, found


def to_record(event: prompt_pb2.LedgerEvent) -> journal_pb2.JournalRecord:
    """Make a journal record of an event as tools are shown it."""
    record = journal_pb2.JournalRecord(position=event.position)
    json_format.Parse(event.detail_json, getattr(record, event.name))
    getattr(record, event.name).SetInParent()
    return record


def rules_of(config: Config, order: Mapping[int, str]) -> Rules:
    """Tell the model what the run was told.

    Args:
        config: The rehearsal's.
        order: Uids by ordinal, as far as they are known from another play.

    """
    sampler = config.sampler
    return Rules(
        n=config.rollout.n,
        batch=config.data.train_batch_size,
        window=config.window_size,
        threshold=sampler.max_off_policy_threshold,
        drops=sampler.max_off_policy_strategy == "drop"
        and sampler.max_off_policy_threshold is not None,
        basis=sampler.basis,
        max_failures=config.ledger.max_failures,
        max_expiries=config.ledger.max_expiries,
        uid_of=order.get,
    )


def judge(reference: Played, struck: Played) -> list[Line]:
    """Judge a play that was struck beside one that was not."""
    undisturbed, _ = fold(reference, rules_of(reference.config, {}))
    order = {group.ordinal: uid for uid, group in undisturbed.groups.items()}
    model, found = fold(struck, rules_of(struck.config, order))
    wrong: dict[str, list[str]] = {key: [] for key in INVARIANTS}
    for line in found:
        key, _, text = line.partition(": ")
        wrong[key if key in wrong else "I1"].append(text or line)
    wrong["I10"] += struck.recorder.contradictions
    if struck.exit_code != 0:
        wrong["I11"] += [f"exit code {struck.exit_code}", *struck.reasons]
    wrong["I4"] += _left(model)
    wrong["I9"] += _damaged(struck.config)
    wrong["same"] += _differences(undisturbed, model, struck.config)
    wrong["seen"] += _unseen(struck.config, model)
    wrong["audit"] += _audit(struck, model)
    return [Line(key, what, tuple(wrong[key])) for key, what in INVARIANTS.items()]


def _left(model: Model) -> Iterable[str]:
    for uid, group in model.groups.items():
        if group.state in LIVE:
            yield f"{uid} is {group.state} in the end"
    there = {group.ordinal for group in model.groups.values()}
    missing = set(range(model.cursor)) - there
    if missing:
        yield f"ordinals {sorted(missing)[:5]} were never fed"


def is_theorem(config: Config, model: Model) -> bool:
    """Whether the same prompts must be trained on, whatever happens.

    Where nothing is dropped, and the data are used up without a rest.
    """
    sampler = config.sampler
    drops = sampler.max_off_policy_strategy == "drop" and sampler.max_off_policy_threshold
    used_up = model.total_steps * config.data.train_batch_size == model.ordinal_count
    failed = any(group.reason not in ("", "too_long") for group in model.groups.values())
    return bool(not drops and not config.algorithm.filter_groups.enable and used_up and not failed)


def _differences(undisturbed: Model, model: Model, config: Config) -> Iterable[str]:
    batch = config.data.train_batch_size
    trained = [uid for uids in model.trained.values() for uid in uids]
    twice = [uid for uid, count in Counter(trained).items() if count > 1]
    if twice:
        yield f"trained twice: {twice[:SHOWN]}"
    if model.committed != undisturbed.committed and not _may_end_early(config):
        yield f"{model.committed} steps, {undisturbed.committed} undisturbed"
    if is_theorem(config, model) and is_theorem(config, undisturbed):
        before = Counter(uid for uids in undisturbed.trained.values() for uid in uids)
        now = Counter(trained)
        for uid in (before - now).keys() | (now - before).keys():
            yield f"{uid} was trained {now[uid]} times, {before[uid]} undisturbed"
        return
    # Both went through the data in one order: what one has settled up to where the other is, is
    # settled in the other, too, but for the last window.
    reach = min(undisturbed.cursor, model.cursor)
    for name, each in (("undisturbed", undisturbed), ("struck", model)):
        known = {group.ordinal: group for group in each.groups.values()}
        for ordinal in range(reach):
            group = known.get(ordinal)
            if group is None or (group.state not in (TRAINED, DROPPED)):
                yield f"{name}: ordinal {ordinal} is neither trained on nor dropped"
            elif group.state == DROPPED and not group.reason:
                yield f"{name}: {group.uid} was dropped for no reason"
    if len(trained) != model.committed * batch:
        yield f"{len(trained)} prompts trained in {model.committed} steps of {batch}"


def _may_end_early(config: Config) -> bool:
    """Whether what was dropped may use up the data before the steps are done."""
    sampler = config.sampler
    drops = sampler.max_off_policy_strategy == "drop" and sampler.max_off_policy_threshold
    return bool(drops or config.algorithm.filter_groups.enable)


def _damaged(config: Config) -> Iterable[str]:
    directory = _checkpoints(config)
    whole = [found for found in directory.find(read=True) if not found.unfinished]
    for found in whole:
        yield from found.problems
    newest = whole[0].step if whole else None
    if directory.latest() != newest:
        yield f"the pointer names step {directory.latest()}, the newest is of step {newest}"


def _unseen(config: Config, model: Model) -> Iterable[str]:
    """Compare what the weights of each checkpoint have seen with what the ledger has trained."""
    directory = _checkpoints(config)
    for found in directory.find():
        step = found.step
        if found.manifest is None or step > model.committed:
            continue
        files = [file.path for part in found.manifest.parts for file in part.files]
        [path] = [path for path in files if path.endswith("/state.json")]
        state = json.loads(directory.storage.read_bytes(f"{step_name(step)}/{path}"))
        expected = seen(model.trained[number] for number in range(1, step + 1))
        if state["seen"] != expected:
            yield f"the weights of step {step} have not seen what was trained up to it"


def seen(steps: Iterable[Sequence[str]]) -> str:
    """Give the digest that a trainer keeps of the prompts its weights have seen, step by step."""
    digest = ""
    for number, uids in enumerate(steps, 1):
        text = f"{digest}\n{number}:{','.join(sorted(uids))}"
        digest = hashlib.sha256(text.encode()).hexdigest()
    return digest


def _audit(struck: Played, model: Model) -> Iterable[str]:
    if struck.audit is None:
        yield "nobody answered"
        return
    yield from struck.audit.violations
    counts = struck.audit.counts
    said = {"trained": counts.trained, "dropped": sum(counts.dropped.values())}
    for state, count in said.items():
        if count != model.counts[state]:
            yield f"it counts {count} {state}, the history {model.counts[state]}"


def _checkpoints(config: Config) -> CheckpointDirectory:
    return CheckpointDirectory(storage_of(config))
