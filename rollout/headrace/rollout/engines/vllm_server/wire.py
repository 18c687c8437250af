"""What a vLLM server is sent and answers when it generates: JSON, and events of a stream.

Knows nothing of connections and of what weights there are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.rollout.engines.base import EngineError, SampleRequest

_DATA: Final = "data:"
_DONE: Final = "[DONE]"
_NO_LOGPROB: Final = -9999.0
"""What vLLM writes where it has none, or one that is no number."""
_NOTHING_ELSE: Final = {
    "n": 1,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "detokenize": False,
    # The stop token is named; whatever else the model's files call an end is none.
    "ignore_eos": True,
}
"""Sampling settings that leave the model's distribution as it is, but for the temperature."""


class MalformedError(EngineError):
    """The answer is not what was agreed on."""


class ServerFaultError(EngineError):
    """The server says, in the middle of a stream, that it failed."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which weights made which tokens of an answer."""

    label: str
    """What the server calls them."""
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event brings: the tokens since the last."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str | None
    """None if more is to come."""
    spans: Sequence[Span]
    """With the last piece, over all tokens of the answer."""


def sampling_body(
    request: SampleRequest, *, request_id: str, eos_id: int, interval: int
) -> dict[str, Any]:
    """Ask for a stream of what comes behind prompt and prefix.

    Args:
        request: What to sample.
        request_id: New with each call.
        eos_id: The only token that stops it.
        interval: Tokens from one event to the next.

    """
    prefix = request.response.token_ids
    return {
        "request_id": request_id,
        "token_ids": [*request.prompt_token_ids, *prefix],
        "stream": True,
        "sampling_params": {
            **_NOTHING_ELSE,
            "temperature": request.temperature,
            "max_tokens": request.max_response_length - len(prefix),
            "stop_token_ids": [eos_id],
            "logprobs": 0,
            "stream_interval": interval,
        },
    }


def scoring_body(token_ids: Sequence[int], *, request_id: str) -> dict[str, Any]:
    """Ask for the log-probability of each token but the first, at temperature 1."""
    return {
        "request_id": request_id,
        "token_ids": list(token_ids),
        "stream": False,
        "sampling_params": {
            **_NOTHING_ELSE,
            "temperature": 1.0,
            "max_tokens": 1,
            "prompt_logprobs": 0,
        },
    }


def read_event(line: str) -> Piece | None:
    """Read a line of a stream; None if it brings nothing.

    Raises:
        MalformedError: It is not what a server should say.
        ServerFaultError: The server failed.

    """
    if not line.startswith(_DATA):  # empty, or a sign of life
        return None
    text = line.removeprefix(_DATA).strip()
    if text == _DONE:
        return None
    try:
        event = json.loads(text)
        if "error" in event:
            raise ServerFaultError(f"the server failed: {_shown(event['error'])}")
        choices = event["choices"]
        return _piece(choices[0]) if choices else None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise MalformedError(f"an event that cannot be read ({error!r}): {text[:200]}") from error


def read_scores(answer: Any, token_ids: Sequence[int]) -> list[float]:
    """Read the log-probabilities that `scoring_body` asked for.

    Raises:
        MalformedError: They are not there.

    """
    try:
        given = answer["prompt_logprobs"]
        if len(given) != len(token_ids):
            raise MalformedError(f"{len(given)} scores for {len(token_ids)} tokens")
        return [
            float(scores[str(token_id)]["logprob"])
            for scores, token_id in zip(given[1:], token_ids[1:], strict=True)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedError(f"no scores of a prompt in the answer: {error!r}") from error


def _piece(choice: Mapping[str, Any]) -> Piece:
    token_ids = [int(each) for each in choice["token_ids"] or ()]
    content = (choice["logprobs"] or {}).get("content") or ()
    if [each["token_id"] for each in content] != token_ids:
        raise MalformedError(f"log-probabilities of {len(content)} tokens beside {len(token_ids)}")
    logprobs = [float(each["logprob"]) for each in content]
    if not all(math.isfinite(each) and each > _NO_LOGPROB for each in logprobs):
        raise MalformedError("a token without a log-probability: the model's are not numbers")
    spans = [
        Span(str(each["version"]), int(each["start"]), int(each["end"]))
        for each in choice.get("weight_versions") or ()
    ]
    return Piece(token_ids, logprobs, choice["finish_reason"], spans)


def _shown(error: Any) -> str:
    text = error.get("message", "") if isinstance(error, Mapping) else str(error)
    return " ".join(str(text).split())[:300]
