"""Text from the real model, edits holding at every step, the cache included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from unembed.errors import InvalidInput, NotFinite, UnembedError
from unembed.models.decoder import Decoder
from unembed.stream.hooks import memory_guard, watch
from unembed.stream.interventions import Edit
from unembed.stream.run import prepare
from unembed.validation import as_str, as_tuple, positive_int, valid_seed


class _Finite(LogitsProcessor):
    """Stops a generation whose logits have overflowed, before a wrong text is made of them."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if bool(torch.isnan(scores).any()) or bool(torch.isposinf(scores).any()):
            raise NotFinite("the logits", why="they overflowed under these edits", instead="Use smaller edits")
        return scores


@torch.no_grad()
def generate(
    lm: Decoder,
    prompt: str | Sequence[str],
    edits: Sequence[Edit] = (),
    *,
    max_new_tokens: int = 20,
    seed: int | None = None,
    **options: Any,
) -> list[str]:
    """The prompts with their continuations, under edits.

    Args:
        lm: the model.
        prompt: one prompt or several (padded on the left).
        edits: changes that hold at every step. Positions count from each prompt's first token, through the
            continuation; "last" is the newest token of each step.
        max_new_tokens: how many tokens to add.
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
    edits: Sequence[Edit] = (),
    *,
    max_new_tokens: int = 20,
    seed: int | None = None,
    **options: Any,
) -> tuple[Int[Tensor, "row pos"], int]:
    """The tokens of `generate`, prompts included, and the column at which continuations start.

    Not every tokenizer makes the same tokens of its own text again, so what counts tokens counts these.
    """
    max_new_tokens = positive_int("max_new_tokens", max_new_tokens)
    ids, mask = prepare(lm, list(prompts))
    if lm.n_ctx is not None and ids.shape[1] + max_new_tokens > lm.n_ctx:
        raise InvalidInput(
            f"{ids.shape[1]} prompt tokens and {max_new_tokens} new ones",
            why=f"{lm.name} has a context of {lm.n_ctx}",
            instead="Ask for fewer",
        )
    ids, mask = _left(ids, mask)
    settings: dict[str, Any] = {"do_sample": seed is not None, "pad_token_id": _filler(lm), **options}
    checks = LogitsProcessorList([_Finite(), *settings.pop("logits_processor", [])])
    with (
        torch.random.fork_rng(devices=[lm.device] if lm.device.type == "cuda" else []),
        memory_guard(f"generating {max_new_tokens} tokens"),
        watch(lm, {}, edits),
    ):
        if seed is not None:
            torch.manual_seed(valid_seed(seed))
        model: Any = lm.hf  # its generate() is a mixin that the type checker cannot see through
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


def _filler(lm: Decoder) -> int:
    for value in (getattr(lm.tokenizer, "pad_token_id", None), lm.hf.generation_config.eos_token_id):
        if value is not None:
            return value if isinstance(value, int) else value[0]
    return 0


def _left(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows padded on the right, turned so that they are padded on the left."""
    shift = (mask == 0).sum(dim=1, keepdim=True)
    columns = (torch.arange(ids.shape[1], device=ids.device) - shift) % ids.shape[1]
    return ids.gather(1, columns), mask.gather(1, columns)
