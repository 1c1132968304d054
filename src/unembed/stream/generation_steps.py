"""Generate text with transformers' `generate`, one token at a time.

`generate` runs in a thread that waits after each token. While it waits, the edits are removed and the caller's random
state is restored, so the model can be used between two steps. The text is therefore that of `generate`, for every
generation configuration and every kind of position encoding.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.stream.generation import (
    check_length,
    generate_ids,
    generation_settings,
    pad_left,
    refusing_options,
    rules_followed,
)
from unembed.stream.hooks import attach_hooks, memory_guard
from unembed.stream.interventions import Edits
from unembed.stream.run import prepare, run
from unembed.validation import positive_int, valid_seed


@dataclass(frozen=True)
class Step:
    """One new token, with its probability and the text so far."""

    position: int
    id: int
    token: str
    probability: float
    """The token's probability under the model's own distribution, before penalties, temperature, top-k and top-p."""
    candidates: tuple[tuple[int, str, float], ...]
    """The most probable tokens at this step: id, text, probability."""
    text: str
    """The continuation so far."""


def generate_steps(
    lm: Decoder,
    prompt: str | Tensor,
    edits: Edits = (),
    *,
    max_new_tokens: int = 20,
    seed: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    top: int = 5,
    generation_config: GenerationConfig | None = None,
) -> Iterator[Step]:
    """Yield the tokens of a continuation one by one, as `generate` gives them, until an end-of-text token.

    Args:
        prompt: a text, or its token ids.
        edits: changes to make at every step, as in `generate`.
        seed: if given, tokens are sampled with this seed; else the most probable token is taken at each step.
        temperature: the sampling temperature. If this, top_k or top_p is None, the generation configuration's is used.
        top_k: sample among the k most likely tokens; 0 for all.
        top_p: sample among the most probable tokens of this total probability; 1.0 for all.
        top: number of most probable tokens to list at each step.
        generation_config: a configuration for transformers' `generate`; by default, penalties, suppressed tokens and
            beam search of the model's own configuration are ignored.

    Raises:
        InvalidInput: the prompt is empty, or the text does not fit into the model's context.
        NotFinite: the edits make the logits overflow.
    """
    max_new_tokens = positive_int("max_new_tokens", max_new_tokens)
    ids, mask = pad_left(*prepare(lm, prompt))
    if temperature is not None and not temperature > 0:
        raise InvalidInput(f"temperature {temperature}", why="it must be above zero")
    check_length(lm, ids, max_new_tokens)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p} if seed is not None else {}
    options = {name: value for name, value in sampling.items() if value is not None}
    settings = generation_settings(lm, seed, options, generation_config, max_new_tokens=max_new_tokens)

    def work(streamer: BaseStreamer) -> None:
        model: Any = lm.hf
        with memory_guard("a step of a generation"), refusing_options(options):
            model.generate(ids, attention_mask=mask, streamer=streamer, **settings)

    steps = (
        _of_whole(lm, ids, edits, max_new_tokens, seed, generation_config, options)
        if _has_beams(lm, generation_config)
        else _Handover(lm, edits, seed, generation_config).steps(work)
    )
    new: list[int] = []
    for chosen, logits in steps:
        new.append(chosen)
        whole = torch.cat([ids, torch.tensor([new], device=ids.device)], dim=1)
        probability, found = _candidates(lm, logits, chosen, top)
        text = lm.vocabulary.continuations(whole, ids.shape[1])[0]
        yield Step(whole.shape[1] - 1, chosen, lm.token_strings([chosen])[0], probability, found, text)


def _has_beams(lm: Decoder, config: GenerationConfig | None) -> bool:
    """Tell whether the text is found by beam search.

    The number of beams is the given configuration's or, if it has none, that of the model's own configuration.
    """
    if config is None:
        return False
    given = config.num_beams if config.num_beams is not None else lm.hf.generation_config.num_beams
    return given not in (1, None)


def _of_whole(
    lm: Decoder,
    ids: Int[Tensor, "1 pos"],
    edits: Edits,
    max_new_tokens: int,
    seed: int | None,
    config: GenerationConfig | None,
    options: dict[str, Any],
) -> Iterator[tuple[int, Float[Tensor, " d_vocab"]]]:
    """Yield the tokens of a beam search, which are known only at its end, with the logits at each."""
    found, start = generate_ids(
        lm, ids, edits, max_new_tokens=max_new_tokens, seed=seed, generation_config=config, **options
    )
    for at in range(start, found.shape[1]):
        yield int(found[0, at]), run(lm, found[:1, :at], edits=edits).logits[0, -1].float()


def _candidates(
    lm: Decoder, logits: Float[Tensor, " d_vocab"], chosen: int, top: int
) -> tuple[float, tuple[tuple[int, str, float], ...]]:
    own = logits.softmax(dim=-1)
    likely = own.topk(min(top, own.shape[-1]))
    texts = lm.token_strings(likely.indices)
    return float(own[chosen]), tuple(zip(likely.indices.tolist(), texts, likely.values.tolist(), strict=True))


class _Abandoned(Exception):
    """Raised in the thread of `generate` when the caller wants no more tokens."""


class _Handover(BaseStreamer):
    """A streamer for `generate` that lets its thread wait after each token, with the edits removed."""

    def __init__(self, lm: Decoder, edits: Edits, seed: int | None, config: GenerationConfig | None) -> None:
        self._lm, self._edits, self._seed, self._config = lm, edits, seed, config
        self._attached = ExitStack()
        self._given: queue.Queue[tuple[int, Tensor] | None] = queue.Queue()
        self._wanted = threading.Semaphore(0)
        self._is_abandoned = self._is_past_prompt = False
        self._fault: BaseException | None = None
        self._logits: Tensor | None = None
        self._random = self._seeded(seed)

    def _seeded(self, seed: int | None) -> Tensor | None:
        """Return the random state that a seed gives, without changing the caller's."""
        if seed is None:
            return None
        before = self._state()
        torch.manual_seed(valid_seed(seed))
        made = self._state()
        self._set(before)
        return made

    def _state(self) -> Tensor:
        on_gpu = self._lm.device.type == "cuda"
        return torch.cuda.get_rng_state(self._lm.device) if on_gpu else torch.get_rng_state()

    def _set(self, state: Tensor) -> None:
        if self._lm.device.type == "cuda":
            torch.cuda.set_rng_state(state, self._lm.device)
        else:
            torch.set_rng_state(state)

    def steps(self, work: Callable[[BaseStreamer], None]) -> Iterator[tuple[int, Float[Tensor, " d_vocab"]]]:
        """Yield each new token with the model's logits for it, in float32, before sampling settings change them."""
        thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        thread.start()
        try:
            while True:
                self._wanted.release()
                if (item := self._given.get()) is None:
                    break
                yield item
        finally:
            self._is_abandoned = True
            self._wanted.release()
            thread.join()
        if self._fault is not None:
            raise self._fault

    def _run(self, work: Callable[[BaseStreamer], None]) -> None:
        try:
            self._resume()
            work(self)
        except _Abandoned:
            pass
        except BaseException as fault:
            self._fault = fault
        finally:
            self._attached.close()
            self._given.put(None)

    def _resume(self) -> None:
        """Wait until a token is wanted; then attach the edits and set the random state of this generation."""
        self._wanted.acquire()
        if self._is_abandoned:
            raise _Abandoned
        self._attached.enter_context(attach_hooks(self._lm, {}, self._edits))
        self._attached.enter_context(rules_followed(self._lm, self._seed, self._config))
        self._attached.callback(self._lm.hf.register_forward_hook(self._note).remove)
        if self._random is not None:
            outside = self._state()
            self._set(self._random)
            self._attached.callback(self._leave, outside)

    def _leave(self, outside: Tensor) -> None:
        self._random = self._state()
        self._set(outside)

    def _note(self, _module: Any, _given: Any, out: Any) -> None:
        self._logits = out.logits[0, -1].detach().float()

    def put(self, value: Int[Tensor, "*new"]) -> None:
        """Receive a new token from `generate`, whose first call passes the prompt."""
        if not self._is_past_prompt:
            self._is_past_prompt = True
            return
        self._attached.close()
        assert self._logits is not None
        self._given.put((int(value.flatten()[-1]), self._logits))
        self._resume()

    def end(self) -> None:
        """Do nothing at the end of the text."""
