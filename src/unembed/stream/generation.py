"""Generate text with the real model under edits, all at once or one token at a time.

Edits hold at every step, also with the key-value cache. `generate_steps` yields the same tokens as `generate`, greedy
or from a seed, and leaves the model unchanged between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from unembed.errors import InvalidInput, NotFinite, UnembedError
from unembed.models.decoder import Decoder
from unembed.stream.hooks import attach_hooks, memory_guard
from unembed.stream.interventions import Edits
from unembed.stream.run import check_padding, prepare
from unembed.validation import as_str, as_tuple, positive_int, valid_seed


class _Finite(LogitsProcessor):
    """Stops a generation when its logits overflow, before it produces a wrong text."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if bool(torch.isnan(scores).any()) or bool(torch.isposinf(scores).any()):
            raise NotFinite("the logits", why="they overflowed under these edits", instead="Use smaller edits")
        return scores


@torch.no_grad()
def generate(
    lm: Decoder,
    prompt: str | Sequence[str],
    edits: Edits = (),
    *,
    max_new_tokens: int = 20,
    seed: int | None = None,
    **options: Any,
) -> list[str]:
    """Return the prompts with their continuations, generated under edits.

    Args:
        prompt: one prompt or several (padded on the left).
        edits: changes that hold at every step. Positions count from each prompt's first token, through the
            continuation; "last" is the newest token of each step.
        seed: with it, tokens are sampled from this seed, and the caller's random state is left alone; else greedy.
        options: passed on to transformers' `generate` (temperature, top_p, num_beams, ...).

    Raises:
        InvalidInput: empty prompt, or more tokens than the context holds.
        NotFinite: the edits make the logits overflow.
    """
    texts = [prompt] if isinstance(prompt, str) else [as_str("prompt", p) for p in as_tuple("prompts", prompt)]
    ids, start = generate_ids(lm, texts, edits, max_new_tokens=max_new_tokens, seed=seed, **options)
    copies = ids.shape[0] // len(texts)
    return [texts[i // copies] + new for i, new in enumerate(lm.vocabulary.continuations(ids, start))]


@torch.no_grad()
def generate_ids(
    lm: Decoder,
    prompts: Sequence[str],
    edits: Edits = (),
    *,
    max_new_tokens: int = 20,
    seed: int | None = None,
    **options: Any,
) -> tuple[Int[Tensor, "row pos"], int]:
    """Return the tokens of `generate`, prompts included, and the column where the continuations start.

    Encoding the decoded text again does not always give the same tokens, so continuations are counted on these ids.
    """
    max_new_tokens = positive_int("max_new_tokens", max_new_tokens)
    ids, mask = prepare(lm, list(prompts))
    _check_length(lm, ids, max_new_tokens)
    ids, mask = _pad_left(ids, mask)
    check_padding(lm, mask)
    settings: dict[str, Any] = {"do_sample": seed is not None, "pad_token_id": _pad_token(lm), **options}
    checks = LogitsProcessorList([_Finite(), *settings.pop("logits_processor", [])])
    with (
        torch.random.fork_rng(devices=[lm.device] if lm.device.type == "cuda" else []),
        memory_guard(f"generating {max_new_tokens} tokens"),
        attach_hooks(lm, {}, edits),
    ):
        if seed is not None:
            torch.manual_seed(valid_seed(seed))
        model: Any = lm.hf  # generate() comes from a mixin that the type checker cannot resolve
        try:
            out = model.generate(
                ids, attention_mask=mask, max_new_tokens=max_new_tokens, logits_processor=checks, **settings
            )
        except (TypeError, ValueError, ZeroDivisionError) as error:
            if isinstance(error, UnembedError) or not options:
                raise
            named = ", ".join(f"{name}={value!r:.40}" for name, value in options.items())
            raise InvalidInput(f"generating with {named}", why=str(error).split("\n")[0]) from error
    return out, ids.shape[1]


def _pad_token(lm: Decoder) -> int:
    for value in (getattr(lm.tokenizer, "pad_token_id", None), lm.hf.generation_config.eos_token_id):
        if value is not None:
            return value if isinstance(value, int) else value[0]
    return 0


def _pad_left(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move the padding of every row from the right to the left."""
    shift = (mask == 0).sum(dim=1, keepdim=True)
    columns = (torch.arange(ids.shape[1], device=ids.device) - shift) % ids.shape[1]
    return ids.gather(1, columns), mask.gather(1, columns)


def _check_length(lm: Decoder, ids: Tensor, max_new_tokens: int) -> None:
    if lm.n_ctx is not None and ids.shape[1] + max_new_tokens > lm.n_ctx:
        raise InvalidInput(
            f"{ids.shape[1]} prompt tokens and {max_new_tokens} new ones",
            why=f"{lm.name} has a context of {lm.n_ctx}",
            instead="Ask for fewer",
        )


@dataclass(frozen=True)
class Step:
    """One new token."""

    position: int
    id: int
    token: str
    probability: float
    """Under the model's own distribution, before temperature, top-k and top-p."""
    candidates: tuple[tuple[int, str, float], ...]
    """The most probable tokens at this step: id, text, probability."""
    text: str
    """The continuation so far."""


def generate_steps(
    lm: Decoder,
    prompt: str,
    edits: Edits = (),
    *,
    max_new_tokens: int = 20,
    seed: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = 50,
    top_p: float | None = None,
    top: int = 5,
) -> Iterator[Step]:
    """Yield the continuation of a prompt token by token; it ends early at the model's end-of-text token.

    Args:
        edits: changes that hold at every step, as in `generate`.
        seed: with it, tokens are sampled from this seed; else greedy.
        temperature: the temperature of the sampling.
        top_k: sample among the k most likely tokens; None for all.
        top_p: sample among the most probable tokens of this total probability; None for all.
        top: candidates to list at each step.

    Raises:
        InvalidInput: an empty prompt, or more tokens than the context holds.
        NotFinite: the edits make the logits overflow.
    """
    ids, _ = prepare(lm, prompt)
    if max_new_tokens < 1 or not temperature > 0:
        raise InvalidInput(f"{max_new_tokens} new tokens at temperature {temperature}", why="both must be above zero")
    _check_length(lm, ids, max_new_tokens)
    length = ids.shape[1]
    generator = None if seed is None else torch.Generator(lm.device).manual_seed(seed)
    warpers = _warpers(temperature, top_k, top_p)
    ends = end_tokens(lm)
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
def _next(lm: Decoder, given: Tensor, ids: Tensor, cache: Any, edits: Edits) -> tuple[Tensor, Any]:
    """Return the logits after the last token, and the cache. Hooks are attached only while this runs."""
    with memory_guard("a step of a generation"), attach_hooks(lm, {}, edits) as current:
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


def end_tokens(lm: Decoder) -> set[int]:
    """Return the tokens at which the model ends a text."""
    end = lm.hf.generation_config.eos_token_id if lm.hf.generation_config is not None else None
    return set() if end is None else {end} if isinstance(end, int) else set(end)
