"""Who is started again: trainers that get somewhere, by what the ledger says."""

from __future__ import annotations

from headrace.cli.lives import MOST_CRASHES, Attempts
from headrace.cli.standing import Standing
from headrace.config.services import LauncherConfig
from headrace.v1 import replay_pb2 as pb
from headrace.v1 import resume_pb2

OPEN, WEIGHTS = resume_pb2.RESUME_PHASE_OPEN, resume_pb2.RESUME_PHASE_WEIGHTS


def attempts(most: int = 3) -> Attempts:
    return Attempts(LauncherConfig(max_restarts=most))


def at(step: int, *, gained: bool) -> Standing:
    return Standing(ended=False, committed_step=step, gained=gained)


def test_a_trainer_that_comes_further_each_time_may_die_as_often_as_it_likes() -> None:
    lives = attempts()

    pauses = [lives.spend(at(step, gained=True), crashed=True) for step in range(1, 100)]

    assert set(pauses) == {0.1}


def test_crashes_without_a_step_in_between_are_few() -> None:
    lives = attempts(most=100)

    for _ in range(MOST_CRASHES - 1):
        assert lives.spend(at(4, gained=False), crashed=True) is not None
    assert lives.spend(at(4, gained=True), crashed=True) is not None, "a step was committed"
    for _ in range(MOST_CRASHES - 2):
        assert lives.spend(None, crashed=True) is not None
    assert lives.spend(at(4, gained=False), crashed=True) is None
    assert lives.in_words() == "3 crashes in a row without a step committed in between"


def test_the_same_steps_again_and_again_are_not_enough() -> None:
    lives = attempts(most=2)

    pauses = [lives.spend(at(step, gained=True), crashed=False) for step in (9, 7, 9)]

    assert pauses == [0.1, 0.2, None]
    assert "without coming beyond step 9" in lives.in_words()


def test_no_restarts_are_none_at_all() -> None:
    assert attempts(most=0).spend(at(9, gained=True), crashed=False) is None


def status(committed: int, **resume: int) -> pb.GetReplayStatusResponse:
    answer = pb.GetReplayStatusResponse(committed_step=committed, trainer_incarnation=7)
    if resume:
        answer.resume.CopyFrom(resume_pb2.ResumeState(**resume))  # type: ignore[arg-type]
    return answer


def test_a_trainer_has_gained_when_it_committed_a_step_after_its_own_resume() -> None:
    own = {"trainer_incarnation": 7, "step": 5}
    cases = [
        (status(0), False),
        (status(3), True),
        (status(5, phase=OPEN, **own), False),
        (status(6, phase=OPEN, **own), True),
        (status(9, phase=WEIGHTS, **own), False),
        (status(9, phase=OPEN, trainer_incarnation=6, step=5), False),
    ]

    assert [Standing.of(answer).gained for answer, _ in cases] == [told for _, told in cases]
