"""Generation one token at a time: what the model would say, what was chosen, under edits that hold at every step.

The same tokens as `generate` gives, greedy or from a seed; between two steps the model is free for other work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from unembed.errors import InvalidInput, NotFinite
from unembed.models.decoder import Decoder
from unembed.stream.hooks import memory_guard, watch
from unembed.stream.interventions import Edit
from unembed.stream.run import prepare


@dataclass(frozen=True)
class Step:
    """One new token."""

    position: int
    id: int
    token: str
    probability: float
    """Under the model's own distribution, before temperature, top-k and top-p."""
    candidates: tuple[tuple[int, str, float], ...]
    """The likeliest tokens at this step: id, text, probability."""
    text: str
    """The continuation so far."""


def steps(
    lm: Decoder,
    prompt: str,
    edits: Sequence[Edit] = (),
    *,
    max_new_tokens: int = 20,
    seed: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = 50,
    top_p: float | None = None,
    top: int = 5,
) -> Iterator[Step]:
    """The continuation of a prompt, token by token; it ends early at the model's end-of-text token.

    Args:
        lm: the model.
        prompt: the text to continue.
        edits: changes that hold at every step, as in `generate`.
        max_new_tokens: how many tokens to add.
        seed: with it, tokens are sampled from this seed; else greedy.
        temperature: of the sampling.
        top_k: sample among so many; None for all.
        top_p: sample among the likeliest tokens of this total probability; None for all.
        top: candidates to list at each step.

    Raises:
        InvalidInput: an empty prompt, or more tokens than the context holds.
        NotFinite: the edits make the logits overflow.
    """
    ids, _ = prepare(lm, prompt)
    if max_new_tokens < 1 or not temperature > 0:
        raise InvalidInput(f"{max_new_tokens} new tokens at temperature {temperature}", why="both must be above zero")
    if lm.n_ctx is not None and ids.shape[1] + max_new_tokens > lm.n_ctx:
        raise InvalidInput(
            f"{ids.shape[1]} prompt tokens and {max_new_tokens} new ones",
            why=f"{lm.name} has a context of {lm.n_ctx}",
            instead="Ask for fewer",
        )
    length = ids.shape[1]
    generator = None if seed is None else torch.Generator(lm.device).manual_seed(seed)
    warpers = _warpers(temperature, top_k, top_p)
    ends = _ends(lm)
    cache, given = None, ids
    for _ in range(max_new_tokens):
        logits, cache = _next(lm, given, ids, cache, edits)
        chosen, probability, found = _choose(lm, ids, logits, warpers, generator, top)
        ids = torch.cat([ids, chosen], dim=1)
        given = ids if cache is None else chosen
        number = int(chosen)
        text = lm.vocabulary.continuations(ids, length)[0]
        yield Step(ids.shape[1] - 1, number, lm.token_strings([number])[0], probability, found, text)
        if number in ends:
            return


@torch.no_grad()
def _next(lm: Decoder, given: Tensor, ids: Tensor, cache: Any, edits: Sequence[Edit]) -> tuple[Tensor, Any]:
    """Logits after the last token, and the cache; the model is watched in here only."""
    with memory_guard("a step of a generation"), watch(lm, {}, edits) as current:
        out = lm.hf(
            given,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            use_cache=True,
            **current.arguments,
        )
    logits = out.logits[:, -1].float()
    if bool(torch.isnan(logits).any()) or bool(torch.isposinf(logits).any()):
        raise NotFinite("the logits", why="they overflowed under these edits", instead="Use smaller edits")
    return logits, getattr(out, "past_key_values", None)


def _choose(
    lm: Decoder,
    ids: Tensor,
    logits: Tensor,
    warpers: LogitsProcessorList,
    generator: torch.Generator | None,
    top: int,
) -> tuple[Tensor, float, tuple[tuple[int, str, float], ...]]:
    own = logits.softmax(dim=-1)
    if generator is None:
        chosen = logits.argmax(dim=-1, keepdim=True)
    else:
        scores: Any = warpers(ids, logits)  # pyright: ignore[reportArgumentType]
        chosen = torch.multinomial(scores.softmax(dim=-1), 1, generator=generator)
    likely = own[0].topk(min(top, own.shape[-1]))
    texts = lm.token_strings(likely.indices)
    found = tuple(zip(likely.indices.tolist(), texts, likely.values.tolist(), strict=True))
    return chosen, float(own[0, int(chosen)]), found


def _warpers(temperature: float, top_k: int | None, top_p: float | None) -> LogitsProcessorList:
    found = LogitsProcessorList()
    if temperature != 1.0:
        found.append(TemperatureLogitsWarper(temperature))
    if top_k:
        found.append(TopKLogitsWarper(top_k))
    if top_p is not None and top_p < 1.0:
        found.append(TopPLogitsWarper(top_p))
    return found


def _ends(lm: Decoder) -> set[int]:
    end = lm.hf.generation_config.eos_token_id if lm.hf.generation_config is not None else None
    return set() if end is None else {end} if isinstance(end, int) else set(end)
