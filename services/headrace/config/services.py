"""Settings of the processes around the training loop."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, model_validator

from headrace.config.section import Section

_THIS_MACHINE: Final = (None, "localhost", "127.0.0.1", "::1")


class RunSection(Section):
    """The run as a whole."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """A name for people, and of the run directory."""
    run_dir: Path | None = None
    """Where the run keeps its files; null = `runs/{name}` below the current folder. A run that is
    there already is gone on with."""
    run_id: str = Field(default="", pattern=r"^[A-Za-z0-9-]{0,64}$")
    """Identity of the run; empty = made from the run directory's name."""


class JournalConfig(Section):
    """The ledger's journal."""

    kind: Literal["file", "redis"] = "file"
    """`file`: in the run directory. `redis`: a Redis Stream, for a replay buffer without a disk
    of its own."""
    redis_url: str | None = None
    """For `redis`: `redis://host:port/db`, `rediss://host:port/db?ssl_ca_certs=FILE` with TLS, or
    `unix:///path`."""
    redis_password_file: Path | None = None
    """A file with Redis's password. A password goes to another machine only with TLS."""
    allow_weak_fsync: bool = False
    """Accept a Redis without `appendfsync always`, which loses acknowledged events when killed."""
    fsync: Literal["always", "never"] = "always"
    """`always`: durable against power loss. `never`: only against a killed process."""
    compact_every: int = Field(default=50_000, ge=100)
    """Events after which the ledger is written down whole, so that a restart is quick."""
    keep_settled: int = Field(default=10_000, ge=0)
    """Trained and dropped prompts that `where` and `prompts` still know one by one."""
    keep_events: int = Field(default=200_000, ge=0)
    """Events before the last compaction that stay readable, for `where` and `watch`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind == "redis") != (self.redis_url is not None):
            msg = "journal.kind: redis and journal.redis_url go together"
            raise ValueError(msg)
        url = urlsplit(self.redis_url or "")
        has_password = (
            self.redis_password_file is not None
            or url.password is not None
            or "password" in parse_qs(url.query)
        )
        if has_password and url.scheme == "redis" and url.hostname not in _THIS_MACHINE:
            msg = (
                f"journal.redis_url: the password is not sent to {url.hostname} without TLS, where "
                "others could read it: use rediss://"
            )
            raise ValueError(msg)
        return self


class LedgerConfig(Section):
    """Leases, failures and the circuit."""

    lease_s: float = Field(default=60.0, gt=0)
    """A lease not renewed for this long returns its prompt to PENDING."""
    max_failures: int = Field(default=3, ge=1)
    """Errors reported on one prompt before it is dropped as failed."""
    max_expiries: int = Field(default=100, ge=1)
    """Leases of one prompt that may run out before it is dropped as failed."""
    eject_after: int = Field(default=3, ge=1)
    """Failures in a row, on different prompts, after which a worker gets one probe lease at a
    time. When all workers are there, the circuit opens."""
    worker_timeout_s: float = Field(default=60.0, gt=0)
    """A worker not heard of for this long does not count for the circuit."""
    max_draft_bytes: int = Field(default=2**28, ge=0)
    """With `rollout.journal_tokens_every`: room in memory for responses under way, 8 bytes a token.
    What does not fit is not kept, and begins anew after a death."""
    audit_every_s: float = Field(default=5.0, gt=0)
    """How often the balance rule is checked."""


class StoreConfig(Section):
    """The trajectory store."""

    capacity_bytes: int = Field(default=4 * 2**30, ge=2**20)
    """The most bytes of trajectories it holds; leases reserve their room in it."""
    storage_units: int = Field(default=1, ge=1)
    """TransferQueue storage units."""
    durability: Literal["log", "memory"] = "log"
    """`log`: each trajectory is also in a log in the run directory before its put is confirmed, so
    that a killed store comes back with what it had. `memory`: trajectories of a killed store are
    generated again."""
    fsync: Literal["always", "never"] = "always"
    """Of that log. `always`: durable against power loss. `never`: only against a killed
    process."""
    call_timeout_s: float = Field(default=30.0, gt=0)
    """Deadline of every call to TransferQueue."""
    sweep_every_s: float = Field(default=2.0, gt=0)
    """How often rows that nobody refers to are looked for."""
    sweep_grace_s: float = Field(default=30.0, gt=0)
    """How old such a row must be before it is removed."""


class WeightsConfig(Section):
    """How weights travel from the trainer to the workers."""

    transport: Literal["dir", "grpc", "nccl"] = "dir"
    """`dir`: versioned safetensors in a directory that all can reach. `grpc`: each worker gets
    them from the trainer (`endpoints.trainer`); nothing is shared. `nccl`: as `grpc`, and into a
    running vLLM (`rollout.engine.kind: vllm`, on GPUs) the trainer sends them over NCCL."""
    dir: Path | None = None
    """The directory; null = `weights` in the run directory. With `grpc` only the trainer uses
    it."""
    tmpdir: Path | None = None
    """Where a worker makes private folders: with `grpc` and `nccl` for what it has got, one version
    at a time; with `rollout.engine.kind: vllm` for links to the files that vLLM reads; null = the
    system's folder for temporary files."""
    nccl_timeout_s: float = Field(default=60.0, gt=0)
    """With `nccl`: how long getting connected may take, and one version's way. After that both
    sides give up, and the worker gets files, as with `grpc`."""

    @property
    def are_served(self) -> bool:
        """Whether workers get files from the trainer."""
        return self.transport != "dir"


class EndpointsConfig(Section):
    """Where the services are: `host:port`. `headrace run` fills them in."""

    replay: str | None = None
    """The replay buffer."""
    feeder: str | None = None
    """The prompt feeder."""
    store: str | None = None
    """The trajectory store."""
    trainer: str | None = None
    """The trainer; workers need it with `weights.transport: grpc` or `nccl`."""
    checkpoint: str | None = None
    """The checkpoint coordinator; the trainer needs it where `trainer.save_freq` is set, and from the
    replay buffer's configuration tools learn where it is."""
    bind_host: str = "127.0.0.1"
    """The address that services listen on; with `security.token_file` and `security.tls` set, it
    may be another one than loopback."""
    advertise_host: str | None = None
    """The host by which notebooks reach this process, as the replay buffer tells them; null =
    `bind_host`, or this machine's name where that means all interfaces."""


class WatchdogConfig(Section):
    """No silent stall."""

    stall_after_s: float = Field(default=300.0, gt=0)
    """A wait that lasts longer than this is a stall, unless it names its own limit."""
    idle_after_s: float = Field(default=3600.0, gt=0)
    """The same for a feeder without demand and a worker without work, while others are busy, and
    for an update that the trainer computes."""
    on_stall: Literal["report", "fail"] = "report"
    """`report`: say so and go on. `fail`: end the run with exit code 5."""


class LauncherConfig(Section):
    """How `headrace run` looks after its children."""

    max_restarts: int = Field(default=10, ge=0)
    """Restarts of one process within `restart_window_s` before the run gives up. Of a trainer that
    resumes: deaths in a row without coming beyond a step; 0 = it is never started again."""
    restart_window_s: float = Field(default=300.0, gt=0)
    """The span of time over which restarts are counted."""
    stop_grace_s: float = Field(default=20.0, gt=0)
    """How long a process may take to stop before it is killed."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """How long a process may take to announce itself."""
