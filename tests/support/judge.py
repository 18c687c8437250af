"""Judges a run from outside: what the recorder was told, what the journal says, what is left.

    recorder's history ─┐
    journal's records  ─┼─► findings, one line each; none if the run was what it should be
    last audit         ─┘

The journal is read by its format, not by headrace's reader (`judge_journal`), and replayed by a
model of the judge's own (`judge_model`). Findings of this file:

    balance     counts do not add up, or differ from what the system said of itself
    twice       a prompt was trained on by two steps
    lost        a prompt is neither trained on nor dropped at the end, or was forgotten by somebody
    drop        a prompt was dropped for a reason that this scenario does not give
    testimony   the trainer was told one thing, and the journal says another
    rows        a trajectory is not what its key, its lease and its prompt say
    durable     what was answered is not in the journal, or was not when its keeper was killed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from history import Entry
from judge_durable import Witness
from judge_model import Model
from judge_rules import DROPPED, TRAINED, HandedOut, Rules

from headrace.v1 import journal_pb2, replay_pb2, store_pb2
from headrace.v1.trajectory_pb2 import Trajectory
from headrace.verify.verdict import seen


def judge(
    records: Sequence[journal_pb2.JournalRecord],
    history: Sequence[Entry],
    audit: replay_pb2.AuditResponse,
    rules: Rules,
    witness: Witness | None = None,
) -> list[str]:
    """Say everything that is wrong with a run that has ended."""
    model = Model(rules)
    model.follow(records)
    return [
        *model.found,
        *_balance(model, history, audit),
        *_twice(model),
        *_trained(model, history),
        *_told(model, history),
        *_durable(model, history),
        *_watched(records, history),
        *(witness or Witness()).findings(records, history),
        *_rows(model, history),
        *_left(model),
    ]


def judge_watched(
    records: Sequence[journal_pb2.JournalRecord],
    history: Sequence[Entry],
    audit: replay_pb2.AuditResponse,
    rules: Rules,
    digest: str | None,
) -> list[str]:
    """Say what is wrong with a run that has ended and was looked at only.

    Its trainer was not asked. But the weights that it left have kept a digest of the prompts that
    they have seen, step by step: `digest`; None where the journal begins with a checkpoint, and so
    does not have the steps before.
    """
    model = Model(rules)
    model.follow(records)
    return [
        *model.found,
        *_balance(model, history, audit),
        *_twice(model),
        *(_seen(model, digest) if digest is not None else ()),
        *_watched(records, history),
        *_left(model),
    ]


def _answers(history: Sequence[Entry], call: str) -> Iterator[Entry]:
    return (entry for entry in history if entry.call == call and entry.answer is not None)


def _balance(
    model: Model, history: Sequence[Entry], last: replay_pb2.AuditResponse
) -> Iterator[str]:
    """Compare every audit, and the last one, with the model at the same position."""
    audits = [entry.answer for entry in _answers(history, "Audit")]
    for answer in [*audits, last]:
        if not answer.ok or answer.violations:
            yield f"balance: the audit at {answer.position} found {list(answer.violations)}"
        if answer.position > model.position:
            yield f"durable: audited at {answer.position}, the journal ends at {model.position}"
            continue
        counted = answer.counts
        said = {f"{DROPPED}:{reason}": count for reason, count in counted.dropped.items()}
        states = ("pending", "running", "finished", "failed", "sampled", "trained")
        said |= {state: getattr(counted, state) for state in states}
        if sum(said.values()) != counted.fed:
            yield f"balance: fed {counted.fed}, in states {sum(said.values())}"
        if Counter(said) != model.counts[answer.position]:
            expected = dict(model.counts[answer.position])
            yield f"balance: at {answer.position} the system says {said}, the judge {expected}"
    if last.position != model.position:
        yield f"balance: the last audit is of {last.position}, not of {model.position}"


def _twice(model: Model) -> Iterator[str]:
    """Find what was trained more than once in the living line."""
    steps_of: dict[str, list[int]] = {}
    for step, uids in model.trained.items():
        for uid in uids:
            steps_of.setdefault(uid, []).append(step)
    yield from (f"twice: {uid} in steps {steps}" for uid, steps in steps_of.items() if steps[1:])


def _seen(model: Model, digest: str) -> Iterator[str]:
    """Compare what the weights have seen with what the living line has trained."""
    steps = range(1, model.step)
    if digest != seen(model.trained[step] for step in steps):
        yield f"testimony: the weights have not seen what was trained in {len(steps)} steps"


def _trained(model: Model, history: Sequence[Entry]) -> Iterator[str]:
    """Compare what was trained by both accounts."""
    learned = {
        (model.line_of.get(entry.request.incarnation, ""), entry.request.step): entry
        for entry in _answers(history, "CommitStep")
    }
    for line, step in learned.keys() ^ model.trained_in.keys():
        yield f"testimony: step {step} of {line} is committed by one account only"
    for (line, step), uids in model.trained_in.items():
        given = [uid for groups in _last_given(model, history, line, step) for uid in groups]
        if Counter(given) != Counter(uids):
            yield f"testimony: step {step} trained {sorted(uids)}, was given {sorted(given)}"
        if (line, step) in learned:
            answer = learned[line, step].answer
            if answer.trained_count != len(uids):
                yield f"testimony: step {step} is said to have trained {answer}"


def _last_given(model: Model, history: Sequence[Entry], line: str, step: int) -> list[list[str]]:
    """The parts of a line's step as the trainer got them last."""
    parts: dict[int, list[str]] = {}
    for entry in _answers(history, "SampleBatch"):
        at = (model.line_of.get(entry.request.incarnation, ""), entry.request.step)
        if at == (line, step) and entry.answer.status == replay_pb2.SAMPLE_STATUS_READY:
            parts[entry.request.part] = [group.uid for group in entry.answer.groups]
    return list(parts.values())


def _told(model: Model, history: Sequence[Entry]) -> Iterator[str]:
    """Compare each batch that was handed out with what the journal handed out."""
    current: dict[tuple[str, int, int], list[str]] = {}
    for entry in history:
        if entry.call == "RegisterTrainer":
            current.clear()
        if entry.call == "ReturnGroups":
            line = model.line_of.get(entry.request.incarnation, "")
            current.pop((line, entry.request.step, entry.request.part), None)
        if entry.call != "SampleBatch" or entry.answer is None:
            continue
        if entry.answer.status != replay_pb2.SAMPLE_STATUS_READY:
            continue
        line = model.line_of.get(entry.request.incarnation, "")
        place = (line, entry.request.step, entry.request.part)
        uids = [group.uid for group in entry.answer.groups]
        if current.setdefault(place, uids) != uids:
            yield f"testimony: {place} was {current[place]}, then {uids}"
        told = {
            group.uid: (
                group.ordinal,
                group.span,
                tuple(ref.key for ref in group.trajectories),
                (group.min_version, group.max_version),
            )
            for group in entry.answer.groups
        }
        written = [
            {uid: _as_told(group) for uid, group in groups.items()}
            for groups in model.handed_out.get(place, [])
        ]
        if told not in written:
            yield f"testimony: {place} was handed out as {told}, not as {written}"


def _as_told(
    group: HandedOut,
) -> tuple[int, int, tuple[str, ...], tuple[int, int]]:
    oldest = min((old for old, _ in group.versions), default=-1)
    versions = (oldest, max((new for _, new in group.versions), default=-1))
    return group.ordinal, group.span, group.keys, versions


def _durable(model: Model, history: Sequence[Entry]) -> Iterator[str]:
    """Find what was answered in the journal."""
    for entry in _answers(history, "PublishWeights"):
        weights = entry.request.weights
        if model.published.get((weights.id.lineage, weights.id.version)) != weights.checksum:
            yield f"durable: weights v{weights.id.version} are not in the journal as published"
    for entry in _answers(history, "RegisterTrainer"):
        if entry.answer.incarnation > model.incarnation:
            yield f"durable: trainer {entry.answer.incarnation} is not in the journal"


def _watched(
    records: Sequence[journal_pb2.JournalRecord], history: Sequence[Entry]
) -> Iterator[str]:
    """Find every event that a watcher was told of in the journal; it was told of each once."""
    last = 0
    for entry in _answers(history, "WatchEvents"):
        for event in entry.answer.events:
            if event.position != last + 1:
                yield f"testimony: event {event.position} was told after {last}"
            last = event.position
            if last > len(records):
                yield f"durable: event {last}, {event.name}, was told and is not in the journal"
                continue
            written = records[last - 1]
            name = written.WhichOneof("event")
            if (event.name, event.unix_time_s) != (name, written.unix_time_s):
                yield f"durable: event {last} was told as {event.name}, and is {name}"


def _rows(model: Model, history: Sequence[Entry]) -> Iterator[str]:
    """Look at every trajectory that was read, and whether every one trained on was."""
    read: dict[str, Trajectory] = {}
    for entry in _answers(history, "GetTrajectories"):
        request: store_pb2.GetTrajectoriesRequest = entry.request
        for trajectory in entry.answer:
            if trajectory.key not in request.keys:
                yield f"rows: {trajectory.key} was not asked for"
            if read.setdefault(trajectory.key, trajectory) != trajectory:
                yield f"rows: {trajectory.key} has changed"
    for step, uids in model.trained.items():
        for uid in uids:
            complete = [
                groups[-1][uid]
                for (line, at, _), groups in model.handed_out.items()
                if (line, at) == (model.line_of_step[step], step) and uid in groups[-1]
            ]
            if not complete or len(complete[0].keys) != model.rules.n:
                yield f"rows: {uid} of step {step} does not have {model.rules.n} sessions"
                continue
            group = complete[0]
            for key, versions, begun in zip(group.keys, group.versions, group.begun, strict=True):
                yield from _row(model, uid, key, versions, begun, read.get(key))


def _row(
    model: Model,
    uid: str,
    key: str,
    versions: tuple[int, int],
    begun: Sequence[int],
    row: Trajectory | None,
) -> Iterator[str]:
    if row is None:
        yield f"rows: {key} was trained on and never read"
        return
    made_by = [span.version for span in row.weight_spans]
    length = len(row.response_token_ids)
    faults = {
        "its key": row.key != key,
        "its prompt": list(row.prompt_token_ids) != list(model.prompts[uid].payload.token_ids),
        "its lengths": not length == len(row.logprobs) == len(row.loss_mask) > 0,
        "its weights": not made_by or (min(made_by), max(made_by)) != versions,
        "its time line": not all(model.lives(s.lineage, s.version) for s in row.weight_spans),
        "its spans": [span.begin for span in row.weight_spans] + [length]
        != [0] + [span.end for span in row.weight_spans],
        "its beginning": list(row.response_token_ids[: len(begun)]) != list(begun),
    }
    yield from (f"rows: {key}: {what} is wrong" for what, wrong in faults.items() if wrong)


def _left(model: Model) -> Iterator[str]:
    """Account for every prompt at the end."""
    rules = model.rules
    if not model.ended:
        yield "lost: the run has not ended"
    for prompt in model.prompts.values():
        if prompt.state not in (TRAINED, DROPPED):
            yield f"lost: {prompt.uid} is {prompt.state} at the end"
        if prompt.reason and prompt.reason not in rules.may_drop:
            yield f"drop: {prompt.uid} is dropped as {prompt.reason}"
    ordinals = sorted(prompt.ordinal for prompt in model.prompts.values())
    if ordinals != list(range(len(ordinals))):
        yield f"ordinal: {ordinals} are there"
    uses_all = rules.steps == rules.rows * rules.epochs // rules.batch
    if uses_all and len(ordinals) != rules.rows * rules.epochs:
        yield f"lost: {len(ordinals)} of {rules.rows * rules.epochs} rows are accounted for"
    if model.ended == "steps_done" and len(model.trained) != rules.steps:
        yield f"step: {len(model.trained)} of {rules.steps} steps"
