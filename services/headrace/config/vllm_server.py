"""vLLM servers that run already, as an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from headrace.config.section import Section

_Url = Annotated[str, Field(pattern=r"^https?://[^/\s?#]+(/[^\s?#]*)?$")]


class VllmServerEngine(Section):
    """vLLM servers that run already, asked over HTTP. docs/vllm.md says how one is started."""

    kind: Literal["vllm_server"]
    base_urls: list[_Url] = Field(min_length=1)
    """The servers, each as `http://host:port`. All workers of a run may use the same ones; no other
    run may."""
    api_key_file: Path | None = None
    """A file with the key that the servers want (`--api-key`); null = none."""
    ca_file: Path | None = None
    """Certificates, PEM, that `https` servers are checked against; null = the usual ones."""
    max_requests_in_flight: int = Field(default=256, ge=1)
    """Sequences at a time, per worker and server; others wait in the worker."""
    stream_interval: int = Field(default=16, ge=1)
    """Tokens of a sequence that come together. Fewer cost both sides time, more are lost with a
    server."""
    eject_after: int = Field(default=3, ge=1)
    """Failures in a row, after which a server is not used until it was looked at anew."""
    look_every_s: float = Field(default=5.0, gt=0)
    """How often a server is asked whether it lives and has its weights."""
    silence_s: float = Field(default=120.0, gt=0)
    """A server that has sequences, is not paused and sends nothing for so long hangs."""
    update_timeout_s: float = Field(default=300.0, gt=0)
    """The longest that a server may take to check weights, and to load them."""
    logprob_tolerance: float | None = Field(default=None, gt=0)
    """How far log-probabilities may be from the trainer's, in nats, on average over a few fixed
    sequences; weights beyond are refused. null = 0.001 where trainer and servers both compute in
    float32, 0.1 otherwise."""

    @property
    def sends_key_in_the_clear(self) -> bool:
        """Whether the key leaves this machine unencrypted."""
        if self.api_key_file is None:
            return False
        parts = map(urlsplit, self.base_urls)
        local = ("localhost", "127.0.0.1", "::1")
        return any(part.scheme == "http" and part.hostname not in local for part in parts)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({url.rstrip("/") for url in self.base_urls}) < len(self.base_urls):
            msg = "base_urls: names a server twice"
            raise ValueError(msg)
        return self
