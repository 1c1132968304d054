"""Measure how removing a memory (FFN neuron) changes the probability of the tokens it promotes, where it fires most.

Each text ends with the trigger token, on which the memory fires. The coefficient is set to 0 at this token only, and
the next-token distribution is compared with the unchanged one. All earlier activations are the same with and without
the memory. Therefore prefixes of the same text are run together, and if the KV cache has only plain keys and values,
only the trigger token is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from unembed.lens import logits_of
from unembed.models.decoder import Decoder
from unembed.stream.hooks import Callback, Hook, accepts_argument, attach_hooks
from unembed.stream.run import forward_arguments, padded

_TOKENS_AT_ONCE = 2048
_SAME = 1e-3
"""Largest difference of a probability with and without a KV cache that counts as a rounding error. If the difference is
larger, the cache is not used."""


@dataclass(frozen=True)
class Removal:
    """One measurement: a memory (FFN neuron), and a prefix at whose last token it is removed."""

    layer: int
    index: int
    ids: Int[Tensor, " pos"]
    promoted: Int[Tensor, " k"]
    """The tokens whose probability is summed."""


@dataclass(frozen=True)
class _At:
    """A removal in a batch, and the row of its text in the batch."""

    number: int
    removal: Removal
    row: int

    @property
    def position(self) -> int:
        return len(self.removal.ids) - 1


@torch.no_grad()
def probability_drops(
    lm: Decoder, removals: Sequence[Removal], progress: Callable[[int], None] = lambda _done: None
) -> Float[Tensor, " removal"]:
    """Return how much the total probability of the promoted tokens falls when the memory is removed.

    It is positive if the memory promotes them. One forward pass measures several memories, of any layers.

    Args:
        progress: called with the number of removals that are done.

    Memory: the activations and the cache of a batch of 2,048 tokens, and the logits at its trigger tokens.
    """
    drops = torch.zeros(len(removals), dtype=torch.float64)
    cached = None
    done = 0
    for texts, places in _batches(removals):
        before, cache = _before(lm, texts, places)
        if cached is None:
            again = None if cache is None else _last_token(lm, places[:1], cache, remove=False)
            cached = again is not None and float((again - before[:1]).abs().max()) < _SAME
        for part in _parts(places):
            of_part = [places.index(one) for one in part]
            after = _last_token(lm, part, cache, remove=True) if cached else _whole(lm, part)
            drops[[one.number for one in part]] = before[of_part] - after
            done += len(part)
            progress(done)
    return drops


def _batches(removals: Sequence[Removal]) -> Iterator[tuple[list[Tensor], list[_At]]]:
    """Yield batches of texts, each with the removals in these texts.

    A prefix that begins another prefix is not a separate text: it is run as a part of the longer one.
    """
    order = sorted(range(len(removals)), key=lambda i: removals[i].ids.tolist(), reverse=True)
    texts: list[tuple[list[int], list[int]]] = []  # for each text, its token ids and the indices of its removals
    for i in order:
        ids = removals[i].ids.tolist()
        # In descending order, a list of tokens comes directly after all longer lists that begin with it. If there is
        # such a longer list, the last text begins with these tokens too, so this removal needs no text of its own.
        if not texts or texts[-1][0][: len(ids)] != ids:
            texts.append((ids, []))
        texts[-1][1].append(i)
    texts.sort(key=lambda text: len(text[0]))
    start = 0
    while start < len(texts):
        end = start + 1
        while end < len(texts) and len(texts[end][0]) * (end + 1 - start) <= _TOKENS_AT_ONCE:
            end += 1
        chosen = texts[start:end]
        places = [_At(i, removals[i], row) for row, (_, numbers) in enumerate(chosen) for i in numbers]
        yield [torch.tensor(ids) for ids, _ in chosen], places
        start = end


def _parts(places: Sequence[_At]) -> Iterator[list[_At]]:
    """Yield removals in groups, longest prefixes first; groups of long prefixes have fewer rows, to limit memory."""
    ordered = sorted(places, key=lambda one: -one.position)
    start = 0
    while start < len(ordered):
        step = max(1, 2 * _TOKENS_AT_ONCE // (ordered[start].position + 1))
        yield ordered[start : start + step]
        start += step


def _before(
    lm: Decoder, texts: Sequence[Tensor], places: Sequence[_At]
) -> tuple[Float[Tensor, " removal"], DynamicCache | None]:
    """Return each removal's total probability of the promoted tokens in the unchanged model, and the KV cache.

    The cache is None if it cannot be used to rerun the last token of a prefix alone.
    """
    is_cached = accepts_argument(lm, "past_key_values") and accepts_argument(lm, "position_ids")
    out, last = _run(lm, texts, {}, {"use_cache": True} if is_cached else {})
    rows, columns = [one.row for one in places], [one.position for one in places]
    cache = getattr(out, "past_key_values", None)
    plain = isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)
    # The KV cache of a model that is spread over several devices is spread over them too. Rerunning tokens from such a
    # cache is not supported.
    plain = plain and len({parameter.device for parameter in lm.hf.parameters()}) == 1
    return _promoted(logits_of(lm, last[rows, columns]), places), cache if plain else None


def _run(
    lm: Decoder, texts: Sequence[Tensor], hooks: dict[tuple[str, int], Hook], options: dict[str, Any]
) -> tuple[Any, Float[Tensor, "text pos d_model"]]:
    """Run whole texts; return the model's output and the residual stream after the last layer."""
    ids, mask = padded(lm, texts)
    arguments = forward_arguments(lm, mask) | options
    if accepts_argument(lm, "logits_to_keep"):
        arguments["logits_to_keep"] = 1
    last: list[Tensor] = []
    captures: dict[tuple[str, int], Callback] = {("resid_post", lm.n_layers - 1): lambda t: last.append(t.clone())}
    with attach_hooks(lm, captures, hooks=hooks) as current:
        return lm.hf(ids, **arguments, **current.arguments), last[0]


def _last_token(
    lm: Decoder, places: Sequence[_At], cache: DynamicCache | None, *, remove: bool
) -> Float[Tensor, " removal"]:
    """Return the total probability of each removal's promoted tokens, running only the last token of the prefix.

    The tokens before it are in the KV cache. With `remove`, the memory's coefficient is set to 0.
    """
    assert cache is not None
    n = max(one.position for one in places)
    rows = torch.tensor([one.row for one in places], device=lm.device)
    positions = torch.tensor([one.position for one in places], device=lm.device)
    own = DynamicCache()
    for number, layer in enumerate(cache.layers):
        assert isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None
        own.update(layer.keys[rows, :, :n], layer.values[rows, :, :n], number)
    # The cache is from a longer text, so it may also contain tokens that follow this prefix; the mask excludes them.
    before = torch.arange(n, device=lm.device) < positions[:, None]
    mask = torch.cat([before, torch.ones_like(before[:, :1])], dim=1).long() if n else torch.ones_like(rows)[:, None]
    ids = torch.stack([one.removal.ids[-1] for one in places])[:, None].to(lm.device)
    with attach_hooks(lm, {}, hooks=_silenced(places, [0] * len(places)) if remove else {}) as current:
        out = lm.hf(
            ids,
            attention_mask=mask,
            position_ids=positions[:, None],
            past_key_values=own,
            use_cache=True,
            **current.arguments,
        )
    return _promoted(out.logits[:, -1], places)


def _whole(lm: Decoder, places: Sequence[_At]) -> Float[Tensor, " removal"]:
    """Return the total probability of the promoted tokens with the memory removed, by running whole prefixes."""
    columns = [one.position for one in places]
    _, last = _run(lm, [one.removal.ids for one in places], _silenced(places, columns), {})
    return _promoted(logits_of(lm, last[list(range(len(places))), columns]), places)


def _promoted(logits: Float[Tensor, "removal d_vocab"], places: Sequence[_At]) -> Float[Tensor, " removal"]:
    p = logits.double().softmax(dim=-1).cpu()
    return torch.stack([p[row, one.removal.promoted].sum() for row, one in enumerate(places)])


def _silenced(places: Sequence[_At], columns: Sequence[int]) -> dict[tuple[str, int], Hook]:
    """Return, for each layer, a hook that sets the coefficient of each row's memory to 0 at its trigger token."""
    hooks: dict[tuple[str, int], Hook] = {}
    for layer in {one.removal.layer for one in places}:
        rows = [row for row, one in enumerate(places) if one.removal.layer == layer]
        indices = [places[row].removal.index for row in rows]
        at = [columns[row] for row in rows]

        def silence(
            coefficients: Float[Tensor, "batch pos d_mlp"],
            _layer: int,
            where: tuple[list[int], list[int], list[int]] = (rows, at, indices),
        ) -> Tensor:
            coefficients = coefficients.clone()
            coefficients[where] = 0
            return coefficients

        hooks["coefficients", layer] = silence
    return hooks
