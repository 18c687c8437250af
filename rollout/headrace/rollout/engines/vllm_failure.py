"""What vLLM's failures are to whoever uses the engine. Knows nothing of vLLM itself."""

from __future__ import annotations

from headrace.rollout.engines.base import EngineError, EngineLostError


def lost(error: BaseException, what: str) -> EngineError:
    """Say that the weights are gone with an error; a probe's error stays what it is."""
    if isinstance(error, EngineError):
        error.weights_lost = True
        return error
    return EngineLostError(f"{what}: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """Say what an error is."""
    if isinstance(error, TimeoutError) and not str(error):
        return "it took too long"
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
