"""A rehearsal says what it does while no step is done."""

from __future__ import annotations

from headrace.v1 import prompt_pb2, resume_pb2
from headrace.v1 import replay_pb2 as pb
from headrace.verify.progress import progress_in_words


def test_before_the_first_step_it_is_said_what_takes_its_time() -> None:
    status = pb.GetReplayStatusResponse()
    assert progress_in_words(status, {"trainer", "store"}) == "starting store, trainer"
    assert progress_in_words(status, ()) == "opening the data set"

    status.total_steps = 60
    assert progress_in_words(status, {"trainer"}) == "step 0/60: starting trainer"
    assert progress_in_words(status, ()) == (
        "step 0/60: the trainer makes its model and publishes weights 0"
    )

    status.latest_weights.id.version = 0
    status.counts.CopyFrom(prompt_pb2.StateCounts(fed=12, running=9, finished=3))
    assert progress_in_words(status, ()) == (
        "step 0/60: the first rollouts are being made, 3 groups are finished"
    )

    status.counts.CopyFrom(prompt_pb2.StateCounts(fed=12, running=8, sampled=4))
    assert progress_in_words(status, ()) == "step 0/60: the first step is being trained"


def test_later_it_is_said_what_is_between_two_steps() -> None:
    status = pb.GetReplayStatusResponse(total_steps=60, committed_step=5)
    status.latest_weights.id.version = 5
    assert progress_in_words(status, ()) == "step 5/60"

    status.snapshot.step = 5
    assert progress_in_words(status, ()) == "step 5/60: saving step 5"

    assert progress_in_words(status, ["trainer"]) == "step 5/60: starting trainer"
    status.ClearField("snapshot")
    status.committed_step = 60
    assert progress_in_words(status, ()) == "step 60/60: ending the run"

    status.committed_step = 5
    status.resume.CopyFrom(
        resume_pb2.ResumeState(phase=resume_pb2.RESUME_PHASE_WARMUP, step=5, lineage="l1")
    )
    assert progress_in_words(status, ()) == "step 5/60: resuming from step 5: filling the window"
