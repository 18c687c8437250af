"""What a vLLM server is, as it says itself, and whether it was started as it must be.

vLLM's defaults are wrong for training: log-probabilities before the temperature, and sampling
settings out of the model's own files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.rollout.engines.vllm_server.calls import Calls, ServerAnsweredError, ServerAwayError

BACKEND: Final = "headrace_checked"
EXTENSION: Final = "headrace.rollout.engines.vllm_server.extension.ServerExtension"
GENERATE: Final = "/inference/v1/generate"
COMMAND: Final = (
    "VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --model MODEL "
    "--enable-scale-out --logprobs-mode processed_logprobs --generation-config vllm "
    f'--weight-transfer-config \'{{"backend": "{BACKEND}"}}\' --worker-extension-cls {EXTENSION}'
)
"""How a server is started; whatever else vLLM knows may be added."""
_ABORT: Final = "/inference/v1/abort_requests"
_ASK_S: Final = 60.0
"""The first answer takes a while: vLLM looks at the whole machine for it."""
_MISSING: Final = (403, 404, 405)


class UnfitServerError(HeadraceError):
    """The server cannot be used as it was started: a user's mistake."""


@dataclass(frozen=True)
class Facts:
    """What of a server's settings matters here."""

    version: str
    """vLLM's."""
    dtype: str
    """Number format of the weights, as torch calls it."""
    max_positions: int
    """Most tokens of prompt and response."""


async def read_facts(calls: Calls) -> Facts:
    """Ask the server, and see whether it is fit.

    Raises:
        ServerAwayError: There is no answer.
        UnfitServerError: It is not.

    """
    await _find_generate(calls)
    version = await calls.get("/version", timeout_s=_ASK_S)
    try:
        info = await calls.get("/server_info", timeout_s=_ASK_S, config_format="json")
    except ServerAnsweredError as error:
        if error.status in _MISSING:
            raise _unfit(
                calls, "it does not take weights: VLLM_SERVER_DEV_MODE is not 1"
            ) from error
        raise ServerAwayError(str(error)) from error
    try:
        config = info["vllm_config"]
        if problem := _problem(config):
            raise _unfit(calls, problem)
        model = config["model_config"]
        return Facts(
            version=str(version["version"]),
            dtype=str(model["dtype"]).removeprefix("torch."),
            max_positions=int(model["max_model_len"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnfitServerError(
            f"{calls.host}: /server_info is not what vLLM 0.32 says of itself ({error!r}): its "
            "version is not known here"
        ) from error


async def _find_generate(calls: Calls) -> None:
    """See whether the endpoint is there, by one that is there with it and changes nothing."""
    try:
        await calls.post(_ABORT, {"request_ids": []}, timeout_s=_ASK_S)
    except ServerAnsweredError as error:
        if error.status == 401:
            raise UnfitServerError(
                f"{calls.host} refuses the key: see that rollout.engine.api_key_file holds the one "
                "that it was started with (--api-key, VLLM_API_KEY)"
            ) from error
        if error.status in _MISSING:
            raise _unfit(calls, f"it has no {GENERATE}: --enable-scale-out is missing") from error
        raise ServerAwayError(str(error)) from error


def _problem(config: Mapping[str, Any]) -> str | None:
    """Say what is wrong with vLLM's configuration."""
    model = config["model_config"]
    transfer = config["weight_transfer_config"] or {}
    wanted = {
        "--logprobs-mode": ("processed_logprobs", model["logprobs_mode"]),
        "--generation-config": ("vllm", model["generation_config"]),
        "--override-generation-config": (None, model["override_generation_config"] or None),
        "--logits-processors": (None, model["logits_processors"] or None),
        "--speculative-config": (None, config["speculative_config"]),
        "--watermark-config": (None, config["watermark_config"]),
        # What keeps keys and values elsewhere need not forget those of older weights.
        "--kv-transfer-config or --kv-offloading-size": (None, config["kv_transfer_config"]),
        "--weight-transfer-config": (BACKEND, transfer.get("backend")),
        "--worker-extension-cls": (EXTENSION, config["parallel_config"]["worker_extension_cls"]),
    }
    wrong = [
        f"{name} is {found or 'not given'}, it must {f'be {value}' if value else 'not be given'}"
        for name, (value, found) in wanted.items()
        if found != value
    ]
    return "; ".join(wrong) or None


def _unfit(calls: Calls, problem: str) -> UnfitServerError:
    return UnfitServerError(f"{calls.host}: {problem}. Start it so: {COMMAND}")
