"""Generate text with transformers' `generate` while the model is edited.

Edits apply at every step, also with the key-value cache. `generation_steps` gives the same tokens one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from unembed.errors import InvalidInput, NotFinite, UnembedError
from unembed.models.decoder import Decoder
from unembed.stream.generation_rules import merged, warn_of_rules, without_rules
from unembed.stream.hooks import attach_hooks, memory_guard
from unembed.stream.interventions import Edits
from unembed.stream.run import check_padding, prepare
from unembed.validation import as_str, as_tuple, positive_int, valid_seed


class _Finite(LogitsProcessor):
    """Stops a generation when its logits overflow, before it returns a wrong text."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if bool(torch.isnan(scores).any()) or bool(torch.isposinf(scores).any()):
            raise NotFinite("the logits", why="they overflowed under these edits", instead="Use smaller edits")
        return scores


@torch.no_grad()
def generate(
    lm: Decoder,
    prompt: str | Sequence[str] | Tensor,
    edits: Edits = (),
    *,
    max_new_tokens: int = 20,
    seed: int | None = None,
    generation_config: GenerationConfig | None = None,
    **options: Any,
) -> list[str]:
    """Return each prompt with its continuation, generated while the model is edited.

    Args:
        prompt: a text, several texts (padded on the left), or token ids (row, pos), such as `lm.chat` returns.
        edits: changes to make at every step. Positions count from each prompt's first token, through the
            continuation; "last" is the newest token of each step.
        seed: if given, tokens are sampled with this seed, by the temperature, top_k and top_p of the model's
            generation configuration, and the caller's random state is not changed; else the most probable is taken.
        generation_config: a configuration for transformers' `generate`: `lm.hf.generation_config` for the model's own,
            or another. By default, the penalties, suppressed tokens and beam search of the model's own configuration
            are ignored, and one warning names them.
        options: passed on to transformers' `generate` (temperature, top_p, num_beams, ...).

    Raises:
        InvalidInput: the prompt is empty, or the text does not fit into the model's context.
        NotFinite: the edits make the logits overflow.
    """
    given: list[str] | Tensor
    if isinstance(prompt, Tensor):
        given = prompt
    else:
        given = [prompt] if isinstance(prompt, str) else [as_str("prompt", p) for p in as_tuple("prompts", prompt)]
    ids, start = generate_ids(
        lm, given, edits, max_new_tokens=max_new_tokens, seed=seed, generation_config=generation_config, **options
    )
    new = lm.vocabulary.continuations(ids, start)
    if isinstance(given, Tensor):
        return [lm.decode(row[:start]) + text for row, text in zip(ids, new, strict=True)]
    copies = ids.shape[0] // len(given)
    return [given[i // copies] + text for i, text in enumerate(new)]


@torch.no_grad()
def generate_ids(
    lm: Decoder,
    prompts: Sequence[str] | Tensor,
    edits: Edits = (),
    *,
    max_new_tokens: int = 20,
    seed: int | None = None,
    generation_config: GenerationConfig | None = None,
    **options: Any,
) -> tuple[Int[Tensor, "row pos"], int]:
    """Return the token ids of prompts and continuations, and the column where the continuations start.

    Arguments are those of `generate`. Use these ids to count the tokens of a continuation: encoding the generated text
    again does not always give the same tokens.
    """
    max_new_tokens = positive_int("max_new_tokens", max_new_tokens)
    ids, mask = prepare(lm, prompts if isinstance(prompts, Tensor) else list(prompts))
    check_length(lm, ids, max_new_tokens)
    ids, mask = pad_left(ids, mask)
    check_padding(lm, mask)
    settings = generation_settings(lm, seed, options, generation_config, max_new_tokens=max_new_tokens)
    with (
        torch.random.fork_rng(devices=[lm.device] if lm.device.type == "cuda" else []),
        memory_guard(f"generating {max_new_tokens} tokens"),
        attach_hooks(lm, {}, edits),
        refusing_options(options),
        rules_followed(lm, seed, generation_config),
    ):
        if seed is not None:
            torch.manual_seed(valid_seed(seed))
        model: Any = lm.hf  # generate() comes from a mixin that the type checker cannot resolve
        out = model.generate(ids, attention_mask=mask, **settings)
    return out, ids.shape[1]


def generation_settings(
    lm: Decoder,
    seed: int | None,
    options: Mapping[str, Any],
    config: GenerationConfig | None = None,
    *,
    max_new_tokens: int,
) -> dict[str, Any]:
    """Return the arguments for transformers' `generate` besides the ids; call `generate` within `rules_followed`.

    A warning names the settings of the model's own configuration that are ignored.
    """
    chosen = {"do_sample": seed is not None, "max_new_tokens": max_new_tokens, "pad_token_id": _pad_token(lm)}
    settings: dict[str, Any] = {**chosen, **options}
    processors = LogitsProcessorList([_Finite(), *settings.pop("logits_processor", [])])
    if config is None:
        warn_of_rules(lm, settings)
    else:
        settings = merged(config, settings)
        if config.stop_strings:
            settings.setdefault("tokenizer", lm.tokenizer)
    return {**settings, "logits_processor": processors}


def rules_followed(lm: Decoder, seed: int | None, config: GenerationConfig | None) -> AbstractContextManager[None]:
    """Return the context in which to call `generate`.

    Unless `config` is given, this context removes the penalties, suppressed tokens and beam search of the model's own
    configuration.
    """
    return without_rules(lm, is_sampled=seed is not None) if config is None else nullcontext()


@contextmanager
def refusing_options(options: Mapping[str, Any]) -> Iterator[None]:
    """A context in which an error of `generate` about its options becomes one that names the caller's options.

    Raises:
        InvalidInput: `generate` refused an option.
    """
    try:
        yield
    except (TypeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, UnembedError) or not options:
            raise
        named = ", ".join(f"{name}={value!r:.40}" for name, value in options.items())
        raise InvalidInput(f"generating with {named}", why=str(error).split("\n")[0]) from error


def _pad_token(lm: Decoder) -> int:
    for value in (getattr(lm.tokenizer, "pad_token_id", None), lm.hf.generation_config.eos_token_id):
        if value is not None:
            return value if isinstance(value, int) else value[0]
    return 0


def pad_left(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move the padding of every row from the right to the left."""
    shift = (mask == 0).sum(dim=1, keepdim=True)
    columns = (torch.arange(ids.shape[1], device=ids.device) - shift) % ids.shape[1]
    return ids.gather(1, columns), mask.gather(1, columns)


def check_length(lm: Decoder, ids: Tensor, max_new_tokens: int) -> None:
    """Refuse a prompt that, together with the new tokens, does not fit into the model's context."""
    if lm.n_ctx is not None and ids.shape[1] + max_new_tokens > lm.n_ctx:
        raise InvalidInput(
            f"{ids.shape[1]} prompt tokens and {max_new_tokens} new ones",
            why=f"{lm.name} has a context of {lm.n_ctx}",
            instead="Ask for fewer",
        )


def end_tokens(lm: Decoder) -> set[int]:
    """Return the ids of the tokens that end a text."""
    end = lm.hf.generation_config.eos_token_id if lm.hf.generation_config is not None else None
    return set() if end is None else {end} if isinstance(end, int) else set(end)
