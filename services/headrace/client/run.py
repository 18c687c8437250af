"""A run in a notebook: looked at, plotted and controlled."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from headrace.client.checkpoints import (
    checkpoints_frame,
    list_checkpoints,
    stored_checkpoints,
    take_snapshot,
)
from headrace.client.finding import same_machine
from headrace.client.frames import needs, prompts_frame, read_steps, steps_frame
from headrace.client.last_resume import LastResume, times_from_coordinator, times_from_events
from headrace.client.ledger import LiveLedger
from headrace.client.others import feed_rows, steps_so_far
from headrace.client.peers import Peers, Roll
from headrace.client.place import Event, Place
from headrace.client.plots import Plots
from headrace.client.queries import Queries
from headrace.client.rollouts import fetch, groups_with_text, keys_of, trajectories_frame
from headrace.client.status import Status
from headrace.client.watch import Watch
from headrace.client.window import STATES, count
from headrace.config.load import load_config
from headrace.config.rundir import RunDirectory
from headrace.errors import UsageError
from headrace.rpc.security import Security
from headrace.v1 import prompt_pb2
from headrace.v1 import replay_pb2 as pb

if TYPE_CHECKING:
    import grpc
    import pandas as pd

    from headrace.tokenizer import Tokenizer

SNAPSHOT_WITHIN_S: Final = 600.0
"""How long a snapshot is waited for, unless another time is given."""
SHOWN_GROUPS: Final = 64
"""Groups whose trajectories are read, unless more are asked for."""


class Run:
    """A run. `connect` makes one.

    Every method asks anew, and waits out a restart of the replay buffer. Tables and plots need
    the extra `headrace[notebook]`.

    Attributes:
        plot: `run.plot.reward()`, `.window()`, `.staleness()`; each gives matplotlib's Axes.

    """

    def __init__(
        self,
        ledger: LiveLedger,
        *,
        security: Security | None = None,
        directory: RunDirectory | None = None,
        checkpoint: str | None = None,
        patience_s: float = 0.0,
    ) -> None:
        self.plot = Plots(self)
        self._ledger = ledger
        self._queries = Queries(ledger)
        self._peers = Peers(security, {"checkpoint": checkpoint} if checkpoint else {})
        self._directory = directory
        self._patience_s = patience_s

    # -- looking

    def status(self) -> Status:
        """Say where the run is: step, window, workers, waits, circuit. A table in a notebook."""
        answer = self._ask_status()
        # Those of a run that is over are gone, and so is what they waited for.
        over = answer.ended or not answer.process.process
        roll = Roll() if over else self._peers.call_the_roll()
        return Status(answer, roll, str(self._directory.path) if self._directory else "")

    def prompts(self, *, state: str | None = None, reason: str | None = None) -> pd.DataFrame:
        """List prompts by ordinal, one a row.

        Args:
            state: only these: `pending`, `running`, `finished`, `sampled`, `trained`, `dropped`, …
            reason: only those dropped for this reason: `stale`, `failed`, `too_long`, …

        Of trained and dropped ones the ledger knows the last `journal.keep_settled`.

        Raises:
            UsageError: no such state or reason.

        """
        return prompts_frame(self._queries.prompts(state=state, reason=reason))

    def where(self, uid: str) -> Place:
        """Say where one prompt is and what happened to it: `.group`, `.history`.

        Raises:
            PromptUnknownError: no prompt of that uid was fed.

        """
        return Place(self._queries.where(uid))

    def audit(self) -> pb.AuditResponse:
        """Check the balance rule and everything else that must hold."""
        return self._queries.audit()

    def trajectories(
        self, step: int | None = None, *, limit: int | None = SHOWN_GROUPS
    ) -> pd.DataFrame:
        """Read what was generated, one trajectory a row: text, reward, versions, finish reason.

        The store holds a trajectory until its step is committed; after that its text is gone
        for good. So there are those of finished groups, which wait for the trainer, and those
        of the step that the trainer has sampled and works on.

        Text needs the tokenizer of the run's configuration, and so its run directory on this
        machine; without it `prompt` and `response` are lists of token ids.

        Args:
            step: None = finished and sampled groups. Else only those sampled for this step.
            limit: The most groups, by ordinal; None = all.

        Raises:
            UsageError: the step is committed, or the store does not answer.

        """
        committed = self._ask_status().committed_step
        groups = groups_with_text(self._queries, step, committed=committed)[:limit]
        keys = [key for group in groups for key in keys_of(group)]
        found = (
            fetch(self._peers.channel("store"), keys, patience_s=self._patience_s) if keys else {}
        )
        return trajectories_frame(groups, found, self._tokenizer())

    def checkpoints(self, *, verify: bool = False) -> pd.DataFrame:
        """List the run's checkpoints, newest first, one a row; those left behind come last.

        Asks the coordinator, or reads `checkpoint.storage` if the run is over. `problem` says what
        is wrong with a checkpoint; it is empty for one that a run can go on from.

        Args:
            verify: whether every byte is read and compared, not only sizes.

        Raises:
            UsageError: the coordinator does not answer, or nobody has said where it is.

        """
        answer = self._ask_status()
        if answer.process.process:
            channel = self._peers.channel("checkpoint")
            found = list_checkpoints(channel, verify=verify, patience_s=self._patience_s)
        else:
            assert self._directory is not None  # else nobody would have answered
            config = load_config(self._directory.config_file)
            found = stored_checkpoints(config, latest=answer.saved_step, verify=verify)
        return checkpoints_frame(found)

    def last_resume(self) -> LastResume | None:
        """Say how the run last went on from a checkpoint: a table in a notebook; None if never."""
        answer = self._ask_status()
        if not answer.HasField("resume"):
            return None
        if answer.process.process:
            channel = self._peers.known_channel("checkpoint")
            times = times_from_coordinator(channel, answer.resume.resume_id) if channel else {}
        else:
            times = times_from_events(self._ledger.events(), answer.resume.resume_id)
        return LastResume(answer.resume, times)

    def metrics(self) -> pd.DataFrame:
        """Give each step's metrics: a row per step, a column per metric.

        From the run directory, or else from the trainer, which must still be there.

        Raises:
            UsageError: there is neither.

        """
        self._ask_status()
        if self._directory is not None and self._directory.metrics_file.exists():
            return steps_frame(read_steps(self._directory.metrics_file))
        return steps_frame(
            steps_so_far(self._peers.channel("trainer"), patience_s=self._patience_s)
        )

    def window(self) -> pd.DataFrame:
        """Count prompts by state after each event of the journal, a row each.

        Where the journal's beginning was compacted away (`journal.keep_events`) the first rows
        are as good as can be told from what is left.
        """
        status = self._ask_status()
        counts = Status(status).counts
        n = self._sessions_per_group() if status.first_position > 1 else 0
        events = self._ledger.events(until=status.position)
        moments = count(events, counts, step=status.committed_step, n=n)
        pandas = needs("pandas")
        frame: pd.DataFrame = pandas.DataFrame(
            [(m.position, m.unix_time_s, m.step, *m.counts.values()) for m in moments],
            columns=["position", "time", "step", *STATES],
        )
        frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
        return frame

    def watch(self, *, after: int | None = None, for_s: float | None = None) -> Watch:
        """Follow the run.

        In a loop, gives its events as they come, each once, across restarts of the replay buffer.
        As the last line of a notebook's cell, draws the status again and again; interrupt the
        kernel to go on.

        Args:
            after: The journal position to begin after; None = now, 0 = as far back as there is.
            for_s: End after so many seconds; None = at the end of the run.

        """
        begin = self._ask_status().position if after is None else after
        events = self._ledger.events(begin, for_s=for_s)
        return Watch(self, map(Event.from_proto, events), for_s)

    # -- control

    def pause(self) -> Status:
        """Stop feeding and leasing; what is running goes on to its end, and is trained on."""
        self._ledger.pause()
        return self.status()

    def resume(self) -> Status:
        """Let a paused run go on."""
        self._ledger.resume()
        return self.status()

    def snapshot(self, *, wait_s: float = SNAPSHOT_WITHIN_S) -> int:
        """Save the step that the trainer is in, at its end, and wait for it; give the step.

        Args:
            wait_s: how long to wait.

        Raises:
            SnapshotFailedError: it could not be saved, or the run makes no checkpoints.
            UsageError: the run is over, or the trainer does not answer, or not in time.

        """
        if self._ask_status().ended:
            raise UsageError("the run is over; its last step is saved already")

        def trainer() -> grpc.Channel:
            self._ask_status()  # it may listen elsewhere by now
            return self._peers.channel("trainer")

        return take_snapshot(trainer, wait_s=wait_s, patience_s=self._patience_s)

    def feed(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Put rows of your own into the run, beside the data set; each is trained on once.

        Args:
            rows: Each with `prompt`, a text or a list of chat messages, and perhaps `answer` and
                `data_source`; what else it has reaches the reward function as metadata. JSON's
                types only. At most 4096 rows.

        Returns:
            Their uids, in order, for `where`.

        Raises:
            WireError: a row has no prompt, is too long, or the run is not on yet.
            UsageError: the run is over, or the feeder does not answer.

        """
        if self._ask_status().ended:
            raise UsageError("the run is over; rows can be fed while it is on")
        return feed_rows(
            self._peers.channel("feeder"),
            rows,
            request_id=uuid.uuid4().hex,
            patience_s=self._patience_s,
        )

    def drop_stale(self, step: int | None = None) -> list[str]:
        """Drop every group that is too old for a step (None = the current one); give the uids.

        Raises:
            InvalidFieldError: no threshold is configured, or the step is over.

        """
        return self._ledger.drop_stale(step or 0)

    def drop(self, uids: str | Iterable[str]) -> list[str]:
        """Give up prompts that nobody can do: they are dropped as cancelled, and not trained on.

        Returns:
            Those that were not dropped before.

        Raises:
            PromptUnknownError: one was never fed, or settled so long ago that it is forgotten;
                nothing is dropped then.
            PromptInUseError: one is finished, sampled or trained; nothing is dropped then.

        """
        return self._ledger.drop([uids] if isinstance(uids, str) else list(uids))

    def close_circuit(self) -> Status:
        """Close an open circuit, after its cause was mended: failed prompts are tried again."""
        self._ledger.close_circuit()
        return self.status()

    # -- what the above share

    def __repr__(self) -> str:
        return str(self.status())

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def _ask_status(self) -> pb.GetReplayStatusResponse:
        """Ask, and learn where the others are."""
        answer = self._ledger.status()
        if self._directory is None:
            self._directory = same_machine(answer)
        # What a run that is not running announced may be another process's by now.
        live = self._directory if answer.process.process else None
        self._peers.learn(answer.addresses, live)
        return answer

    def _tokenizer(self) -> Tokenizer | None:
        if self._directory is None:
            return None
        from headrace.tokenizer import load_tokenizer

        try:
            return load_tokenizer(load_config(self._directory.config_file).model)
        except UsageError as error:  # token ids are better than nothing
            warnings.warn(f"token ids instead of text: {error}", stacklevel=3)
            return None

    def _sessions_per_group(self) -> int:
        for state in ("trained", "finished", "sampled"):
            group: prompt_pb2.PromptGroup
            for group in islice(self._queries.prompts(state=state), 1):
                return len(group.sessions)
        return 0
