"""How sequences are generated and scored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from headrace.config.section import Section
from headrace.config.vllm import VllmEngine
from headrace.config.vllm_server import VllmServerEngine


class TorchEngine(Section):
    """transformers and torch in the worker's own process, batched, with a KV cache."""

    kind: Literal["torch"] = "torch"
    device: str = "auto"
    """`auto` takes CUDA if it is there; else a torch device name."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the engine's weights."""
    max_batch_sequences: int = Field(default=1024, ge=1)
    """The most sequences sampled together."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; null = torch's own choice."""
    logprob_tolerance: float | None = Field(default=None, gt=0)
    """How far log-probabilities may be from the trainer's, in nats, on average over a few fixed
    sequences; weights beyond are refused. null = 0.001 where trainer and engine both compute in
    float32, 0.1 otherwise."""


class ScriptedEngine(Section):
    """No model: lengths, latencies and failures by seed. For tests and for trying a set-up."""

    kind: Literal["scripted"]
    seed: int = 0
    """Every outcome is a function of (seed, uid, session, attempt)."""
    min_tokens: int = Field(default=1, ge=1)
    """Shortest response."""
    mean_latency_s: float = Field(default=0.01, ge=0)
    """Mean time to generate a session; exponentially distributed."""
    token_latency_s: float = Field(default=0.0, ge=0)
    """Further time per token, so that long responses take longer."""
    failure_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of sessions whose generation raises an error."""
    hang_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of sessions that never end by themselves."""
    failing_file: str | None = None
    """While this file exists every generation fails."""
    load_latency_s: float = Field(default=0.0, ge=0)
    """Time that loading weights takes."""


Engine = Annotated[
    TorchEngine | ScriptedEngine | VllmEngine | VllmServerEngine, Field(discriminator="kind")
]


class RolloutConfig(Section):
    """The rollout workers."""

    engine: Engine = TorchEngine()
    """What generates: `kind: torch | vllm | vllm_server | scripted` and what that kind needs."""
    workers: int = Field(default=1, ge=1)
    """Workers that `headrace run` starts."""
    gpus: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """GPUs of this machine, by torch's numbers, that `headrace run` deals out to its workers: one
    each, for vLLM `tensor_parallel_size` x `pipeline_parallel_size` each. null = each worker sees
    all of them and takes the first. The trainer's is `trainer.device`."""
    n: int = Field(default=8, ge=1)
    """Samples per prompt."""
    temperature: float = Field(default=1.0, gt=0)
    """Softmax temperature; the trainer divides its logits by the same."""
    max_groups_in_flight: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Groups one worker holds leases for at a time. `auto` = as many as fill the engine, if it can
    tell (vLLM, by its places and its memory for keys and values), else 64."""
    max_generation_s: float = Field(default=600.0, gt=0)
    """A session not done after this long is an error of the engine."""
    partial_rollout: bool = False
    """For `separate_async`: newer weights take over in the middle of responses, which are then made
    by several versions. false = a response is finished by the weights it began with."""
    journal_tokens_every: int | None = Field(default=None, ge=1)
    """Workers report responses under way whenever one has grown by so many tokens; the journal
    keeps them, so that others go on behind them after a death. null = they begin anew. In
    `separate_async` it needs `partial_rollout`."""


class HttpReward(Section):
    """How a reward service is called."""

    token_file: Path | None = None
    """A file with the bearer token that is sent; null = none."""
    ca_file: Path | None = None
    """Certificates, PEM, that an `https` service is checked against; null = the usual ones."""
    max_batch: int = Field(default=256, ge=1)
    """The most responses in one call; the responses of one group that end together stay
    together, however many they are."""
    max_calls: int = Field(default=4, ge=1)
    """Calls under way at a time, per worker."""
    max_tries: int = Field(default=5, ge=1)
    """How often a call is made at most, before its responses count as errors."""
    open_after: int = Field(default=5, ge=1)
    """Failed tries in a row, after which calls are held back, but for a probe now and then, until
    one is answered."""


class RewardConfig(Section):
    """How a response is scored. An error is never a zero reward; the group is tried again."""

    kind: Literal["exact_match", "positional", "reasoning_gym", "python", "http"] = "exact_match"
    """`exact_match`: 1 if the response is the answer. `positional`: 0.5 x share of right
    positions (the stop is one) + 0.5 if all are right. `reasoning_gym`: the data set's own
    scorer. `python`: a function of yours. `http`: a service of yours."""
    function: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    """For `python`: `module:function`, called with those of `prompt=`, `response=`, `answer=`,
    `metadata=`, `finish_reason=` and `data_source=` that it takes; it returns a number, or a
    mapping with `reward` and named parts."""
    answer_tag: str | None = Field(default=None, pattern=r"^\w+$")
    """For `reasoning_gym`: such as `answer`, if the answer stands between `<answer>` and
    `</answer>`; the last such place counts, and a response without one is worth 0. null = the
    whole response is the answer."""
    url: str | None = Field(default=None, pattern=r"^https?://[^/\s]+\S*$")
    """For `http`: where responses are POSTed to."""
    timeout_s: float = Field(default=10.0, gt=0)
    """A scoring that takes longer is killed and counts as an error. For `http`: a call that does."""
    processes: int = Field(default=1, ge=1)
    """Processes that score, per worker; not for `http`."""
    options: dict[str, Any] = {}
    """Further keyword arguments of the function."""
    http: HttpReward = HttpReward()
    """For `http`: how the service is called."""

    @property
    def sends_token_in_the_clear(self) -> bool:
        """Whether a token leaves this machine unencrypted."""
        if self.kind != "http" or self.url is None or self.http.token_file is None:
            return False
        parts = urlsplit(self.url)
        return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")
