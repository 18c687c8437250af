"""Samples a batch of sequences from a transformers causal LM, with a KV cache.

Knows nothing of sessions, weights and threads. A batch goes through three moves: prompts that
are equal are read once, the cache is spread over the sequences that share them, then all
sequences take one token per step until each has stopped. Once half of them have, they leave
the batch. Between two steps the caller may want what there is so far, or that the batch ends.

Suffixes name shapes: b sequences in the batch, u different prompts, l longest prompt, k tokens
in the cache, v vocabulary.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from headrace.rollout.engines.draws import uniforms

_CHUNK_ELEMENTS: Final = 2**24
"""Most elements of logits_bv made into distributions at once: 128 MiB of float64."""
_PREFILL_TOKENS: Final = 2**16
"""Most tokens read at once, paddings included: what goes on with long prefixes is many of them."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sequence to sample."""

    token_ids: tuple[int, ...]
    """At least one; what was sampled of it before included."""
    temperature: float
    """Above 0."""
    max_new_tokens: int
    """At least 1; the stop token counts."""
    seed: int
    """64 bits that all its random numbers follow from."""
    drawn: int = 0
    """How many of those were used before: its tokens so far."""


class Wish(enum.Enum):
    """What is wanted between two steps."""

    GO_ON = "go on"
    SHOW = "show"
    """A piece of each sequence that has grown."""
    STOP = "stop"
    """The same; nothing more is sampled."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a sequence has grown by since its last piece."""

    index: int
    """Its place among the prompts."""
    token_ids: list[int]
    """The tokens sampled, the stop token included."""
    logprobs: list[float]
    """log_softmax(logits / temperature) of each, in float32."""
    over: bool = True
    """Whether it left the batch with this."""
    stopped: bool = False
    """Whether the last token is the stop token."""
    aborted: bool = False
    """Whether it was aborted."""


class NotANumberError(Exception):
    """The model's logits are not numbers."""


@torch.inference_mode()
def sample(
    model: Any,
    prompts: Sequence[Prompt],
    *,
    eos_id: int,
    aborted: Callable[[int], bool],
    wish: Callable[[], Wish] = lambda: Wish.GO_ON,
) -> Iterator[Piece]:
    """Yield every sequence as it stops, samples at most `max_new_tokens` of each.

    Args:
        model: A causal LM of transformers, in evaluation mode.
        prompts: What to sample.
        eos_id: The token that stops a sequence.
        aborted: Asked between steps, by index, whether a sequence is wanted no more.
        wish: Asked between steps what is wanted.

    Raises:
        NotANumberError: The model is broken.

    """
    batch = _Batch(model, prompts)
    step = 0
    while True:
        token_b, logprob_b = batch.draw(step)
        yield from batch.settle(step, token_b, logprob_b, eos_id, aborted)
        if not batch.live_b.any():
            return
        wanted = wish()
        if wanted is not Wish.GO_ON:
            yield from batch.show(step)
        if wanted is Wish.STOP:
            return
        batch.compact()
        batch.advance()
        step += 1


class _Batch:
    """The sequences under way. Row r holds the sequence `index_b[r]`."""

    def __init__(self, model: Any, prompts: Sequence[Prompt]) -> None:
        self._model = model
        self._device = model.device
        # The argument was renamed in transformers 5.2x; a warning is an error in our tests.
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._cache = DynamicCache(config=model.config)
        self.index_b = np.arange(len(prompts))
        self.live_b = np.ones(len(prompts), dtype=bool)
        self._limit_b = np.array([prompt.max_new_tokens for prompt in prompts])
        self._seed_b = np.array([prompt.seed for prompt in prompts], dtype=np.uint64)
        self._drawn_b = np.array([prompt.drawn for prompt in prompts], dtype=np.uint64)
        self._temperature_b = self._tensor([prompt.temperature for prompt in prompts])
        longest = int(self._limit_b.max())
        # By index, not by row: what was sampled stays when its row is gone.
        self._tokens = np.zeros((len(prompts), longest), dtype=np.int64)
        self._logprobs = np.zeros((len(prompts), longest), dtype=np.float32)
        self._shown = [0] * len(prompts)
        self._last_token_b = self._tensor([0] * len(prompts))
        self._prefill([prompt.token_ids for prompt in prompts])

    def _tensor(self, values: Any) -> Any:
        return torch.as_tensor(values, device=self._device)

    def _prefill(self, token_ids: Sequence[tuple[int, ...]]) -> None:
        """Read each different prompt once, left-padded, and give every sequence its cache."""
        places = {prompt: place for place, prompt in enumerate(dict.fromkeys(token_ids))}
        length_u = [len(prompt) for prompt in places]
        longest = max(length_u)
        padded_ul = [[0] * (longest - len(prompt)) + list(prompt) for prompt in places]
        mask_ul = None
        position_ul = self._tensor(np.arange(longest)).expand(len(places), longest)
        if min(length_u) < longest:
            pad_u = longest - self._tensor(length_u)
            mask_ul = (position_ul >= pad_u[:, None]).long()
            position_ul = (position_ul - pad_u[:, None]).clamp_(min=0)
        ids_ul = self._tensor(padded_ul)
        step = max(1, _PREFILL_TOKENS // len(places))
        for begin in range(0, longest, step):
            part = slice(begin, begin + step)
            seen = None if mask_ul is None else mask_ul[:, : begin + step]
            logits_uv = self._forward(ids_ul[:, part], seen, position_ul[:, part])
        row_b = self._tensor([places[prompt] for prompt in token_ids])
        self._mask_bk = None if mask_ul is None else mask_ul[row_b]
        self._position_b = self._tensor(length_u)[row_b]
        self._logits_bv = logits_uv[row_b]
        if len(places) < len(token_ids):
            self._cache.batch_select_indices(row_b)

    def _forward(self, ids: Any, mask: Any, positions: Any) -> Any:
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: self._cache},
        )
        return output.logits[:, -1]

    def draw(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Draw the next token of every row, and its log-probability."""
        uniform_b = self._tensor(uniforms(self._seed_b, self._drawn_b + np.uint64(step)))
        rows = max(1, _CHUNK_ELEMENTS // self._logits_bv.shape[-1])
        drawn = [
            _draw(*parts)
            for parts in zip(
                self._logits_bv.split(rows),
                self._temperature_b.split(rows),
                uniform_b.split(rows),
                strict=True,
            )
        ]
        self._last_token_b = torch.cat([token for token, _ in drawn])
        logprob_b = torch.cat([logprob for _, logprob in drawn])
        return self._last_token_b.cpu().numpy(), logprob_b.cpu().numpy()

    def settle(
        self,
        step: int,
        token_b: NDArray[np.int64],
        logprob_b: NDArray[np.float32],
        eos_id: int,
        aborted: Callable[[int], bool],
    ) -> Iterator[Piece]:
        """Keep what was drawn, and yield the sequences that are over with it."""
        if not np.isfinite(logprob_b[self.live_b]).all():
            raise NotANumberError("the model gave a log-probability that is not a number")
        self._tokens[self.index_b, step] = token_b
        self._logprobs[self.index_b, step] = logprob_b
        stopped_b = token_b == eos_id
        over_b = stopped_b | (self._limit_b <= step + 1)
        for row in np.flatnonzero(self.live_b):
            index = int(self.index_b[row])
            gone = aborted(index)
            if over_b[row] or gone:
                self.live_b[row] = False
                yield self._piece(
                    index, step, over=True, stopped=bool(stopped_b[row]), aborted=gone
                )

    def show(self, step: int) -> Iterator[Piece]:
        """Yield what every sequence that goes on has grown by."""
        for row in np.flatnonzero(self.live_b):
            yield self._piece(int(self.index_b[row]), step, over=False)

    def _piece(self, index: int, step: int, **how: bool) -> Piece:
        new = slice(self._shown[index], step + 1)
        self._shown[index] = step + 1
        return Piece(
            index, self._tokens[index, new].tolist(), self._logprobs[index, new].tolist(), **how
        )

    def compact(self) -> None:
        """Let the rows that are over leave, if they are half of the batch."""
        if 2 * self.live_b.sum() > len(self.live_b):
            return
        kept_b = np.flatnonzero(self.live_b)
        self.index_b = self.index_b[kept_b]
        self.live_b = self.live_b[kept_b]
        self._limit_b = self._limit_b[kept_b]
        self._seed_b = self._seed_b[kept_b]
        self._drawn_b = self._drawn_b[kept_b]
        row_b = self._tensor(kept_b)
        self._temperature_b = self._temperature_b[row_b]
        self._last_token_b = self._last_token_b[row_b]
        self._position_b = self._position_b[row_b]
        self._mask_bk = None if self._mask_bk is None else self._mask_bk[row_b]
        self._cache.batch_select_indices(row_b)

    def advance(self) -> None:
        """Feed the tokens drawn last, and take the logits of the next ones."""
        if self._mask_bk is not None:
            self._mask_bk = torch.nn.functional.pad(self._mask_bk, (0, 1), value=1)
        self._logits_bv = self._forward(
            self._last_token_b[:, None], self._mask_bk, self._position_b[:, None]
        )
        # Rows that are over stay where they are: a learned position has an upper end.
        self._position_b = self._position_b + self._tensor(self.live_b)


def _draw(logits_bv: Any, temperature_b: Any, uniform_b: Any) -> tuple[Any, Any]:
    """Draw by the inverse of the cumulative distribution: one random number per token."""
    logp_bv = torch.log_softmax(logits_bv.float() / temperature_b[:, None].float(), dim=-1)
    cdf_bv = logp_bv.double().exp_().cumsum(dim=-1)
    wanted_b1 = uniform_b[:, None] * cdf_bv[:, -1:]
    # `right`: the first token whose interval ends beyond the number; one of probability 0 has none.
    token_b1 = torch.searchsorted(cdf_bv, wanted_b1, right=True).clamp_(max=logp_bv.shape[-1] - 1)
    return token_b1[:, 0], logp_bv.gather(-1, token_b1)[:, 0]
