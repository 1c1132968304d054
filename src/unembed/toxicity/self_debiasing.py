"""Self-debiasing: make tokens less probable if their probability rises after a prefix that announces toxic text.

Let p be the model's next-token distribution, and p_y the one after a prefix y such as "The following text contains
...". With delta(w) = p(w) - max_y p_y(w), p(w) is multiplied by max(epsilon, exp(decay * delta(w))) where delta(w) is
negative, and the result is scaled to sum to 1.

Source: Schick, Udupa, Schütze 2021, section 4 (Eqs. 2-4). Prefixes, epsilon and the maximum over prefixes are those of
the released code.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

from unembed.errors import InvalidInput, Unsupported
from unembed.models.structure.families import facts_of

PREFIXES = tuple(
    f"The following text contains {what}:\n"
    for what in (
        "rude, disrespectful, or unreasonable language",
        "very hateful, aggressive, disrespectful language",
        "sexually explicit language",
        "a threat",
        "negative or hateful language targeting someone because of their identity",
        "swear words, curse words, or other obscene or profane language",
    )
)
DECAY = 50.0
EPSILON = 0.01


def debiased(
    logits: Float[Tensor, "*pos d_vocab"],
    announced: Float[Tensor, "prefix *pos d_vocab"],
    decay: float = DECAY,
    epsilon: float = EPSILON,
) -> Float[Tensor, "*pos d_vocab"]:
    """Return the corrected log-probabilities.

    Args:
        logits: the model's logits without a prefix.
        announced: the model's logits after each prefix.
        decay: the decay constant; a larger one reduces probabilities more.
        epsilon: the smallest factor by which a probability is multiplied.
    """
    log_p = logits.float().log_softmax(-1)
    excess = announced.float().softmax(-1).amax(dim=0) - log_p.exp()
    factor = torch.exp(-decay * excess.clamp_min(0)).clamp_min(epsilon)
    return (log_p + factor.log()).log_softmax(-1)


class SelfDebiasing(LogitsProcessor):
    """A logits processor for self-debiasing; it runs the same model on prefix and text, with a KV cache of its own.

    It works in any `transformers` generation, with batches (padded on the left), sampling and beams, but only for one
    generation at a time. It detects when a new generation starts.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        prefixes: Sequence[str] = PREFIXES,
        *,
        decay: float = DECAY,
        epsilon: float = EPSILON,
        pad_token_id: int | None = None,
    ) -> None:
        """Encode the prefixes.

        Args:
            model: the model.
            tokenizer: its tokenizer.
            prefixes: texts that announce unwanted text.
            decay: the decay constant; 50 in the paper's comparison.
            epsilon: the smallest factor by which a probability is multiplied.
            pad_token_id: the padding token; by default the tokenizer's, else its end token.

        Raises:
            InvalidInput: no prefixes.
            Unsupported: the model does not ignore padding on the left, which is needed because prefixes differ in
                length.
        """
        if not prefixes:
            raise InvalidInput("self-debiasing without prefixes", instead="Give at least one")
        if why := facts_of(model.config.model_type).reads_left_padding:
            raise Unsupported(
                f"self-debiasing with {type(model).__name__}",
                why=f"prefixes are padded on the left, and {why}",
                instead="Use a word filter or edits",
            )
        self._model = model
        encoded = [tokenizer(prefix)["input_ids"] for prefix in prefixes]
        self.prefixes = [torch.tensor(ids, dtype=torch.long) for ids in encoded]
        self.decay, self.epsilon = decay, epsilon
        fill = (pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self._pad = next(i for i in fill if i is not None)
        self._seen: Tensor | None = None
        self._cache: Any = None
        self._mask: Tensor | None = None

    @property
    def longest(self) -> int:
        """The number of tokens of the longest prefix; prompt and continuation must leave room for it in the context."""
        return max(len(p) for p in self.prefixes)

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return corrected log-probabilities of the next token."""
        announced = self._announced(input_ids)
        # If an earlier logits processor set a token's score to minus infinity, the score stays minus infinity.
        return debiased(scores, announced, self.decay, self.epsilon).to(scores.dtype)

    @torch.no_grad()
    def scores(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        """Return corrected log-probabilities at every position, for perplexity."""
        plain = self._model(ids, use_cache=False).logits
        announced = []
        for prefix in self.prefixes:
            front = prefix.to(ids.device).expand(ids.shape[0], -1)
            announced.append(self._model(torch.cat([front, ids], dim=1), use_cache=False).logits[:, len(prefix) :])
        return debiased(plain, torch.stack(announced), self.decay, self.epsilon)

    def _announced(self, input_ids: Tensor) -> Float[Tensor, "prefix batch d_vocab"]:
        order = self._order(input_ids)
        logits = self._start(input_ids) if order is None else self._step(input_ids, order)
        self._seen = input_ids.clone()
        return logits.view(len(self.prefixes), input_ids.shape[0], -1)

    def _order(self, input_ids: Tensor) -> Tensor | None:
        """Return for each row the index of the row in the last call that it continues; None for a new generation."""
        seen = self._seen
        if seen is None or self._cache is None or input_ids.shape != (seen.shape[0], seen.shape[1] + 1):
            return None
        equal = (input_ids[:, None, :-1] == seen[None]).all(-1)
        return equal.long().argmax(1) if bool(equal.any(1).all()) else None

    def _start(self, input_ids: Tensor) -> Tensor:
        rows = []
        for prefix in self.prefixes:
            for row in input_ids:
                text = row[int((row != self._pad).long().argmax()) :]
                rows.append(torch.cat([prefix.to(row.device), text]))
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self._pad, dtype=torch.long, device=input_ids.device)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, longest - len(row) :], mask[i, longest - len(row) :] = row, 1
        self._mask = mask
        return self._forward(ids, None)

    def _step(self, input_ids: Tensor, order: Tensor) -> Tensor:
        n, batch = len(self.prefixes), input_ids.shape[0]
        assert self._mask is not None
        if not bool((order == torch.arange(batch, device=order.device)).all()):
            rows = (torch.arange(n, device=order.device)[:, None] * batch + order).flatten()
            self._cache.batch_select_indices(rows)
            self._mask = self._mask[rows]
        self._mask = torch.cat([self._mask, self._mask.new_ones(n * batch, 1)], dim=1)
        return self._forward(input_ids[:, -1:].repeat(n, 1), self._cache)

    def _forward(self, ids: Tensor, cache: Any) -> Tensor:
        mask = self._mask
        assert mask is not None
        limit = getattr(self._model.config, "max_position_embeddings", None)
        if isinstance(limit, int) and mask.shape[1] > limit:
            raise InvalidInput(
                f"{mask.shape[1]} tokens with the self-debiasing prefixes",
                why=f"the model has a context of {limit}",
                instead="Shorten the prompt or generate fewer tokens",
            )
        extra: dict[str, Tensor] = {}
        if "position_ids" in inspect.signature(type(self._model).forward).parameters:
            extra["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)[:, -ids.shape[1] :]
        out = self._model(ids, attention_mask=mask, past_key_values=cache, use_cache=True, **extra)
        self._cache = getattr(out, "past_key_values", None)  # None for Mamba: then each step runs all tokens
        return out.logits[:, -1]
