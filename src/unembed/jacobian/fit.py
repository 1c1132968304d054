"""Fitting a Jacobian lens: the mean, over contexts of a text, of the last stream's derivative at one position.

For each context the model reads all tokens but the last once. The last token is then run in many copies at once, each
with a graph, and copy k gives the gradient of channel k of its last stream: one backward pass gives as many rows
of every layer's Jacobian as there are copies. Earlier positions do not depend on this one, so nothing is lost by
leaving them out of the graph.

Source: Gurnee et al. 2026, the Jacobian lens, with the target at the source's own position.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus import Corpus, CorpusSource
from unembed.corpus.windows import windows_of
from unembed.errors import InvalidInput, Unsupported, first_sentence
from unembed.jacobian.check import check_lens
from unembed.jacobian.lens import JacobianLens
from unembed.lens import final_scale
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import sampled_fingerprint
from unembed.stream.capture_points import has_point
from unembed.stream.gradients import on_the_graph
from unembed.stream.hooks import attach_hooks, memory_guard
from unembed.stream.run import run
from unembed.validation import positive_int

SKIPPED = 4
"""First positions of a context whose streams do not enter the means: the first ones of many models are outliers."""
HELD_OUT = 4
"""Windows after the contexts that the lens is checked on."""
COPIES = 96
"""Copies of the last token that are run at once."""

Progress = Callable[[str, int, int], None]


def _silent(what: str, done: int, total: int) -> None:
    pass


@dataclass
class _Sums:
    """Running sums over the contexts in one half of the text."""

    before: Float[Tensor, "layer d_model d_model"]
    middle: Float[Tensor, "layer d_model d_model"]
    contexts: int = 0


def fit_lens(
    lm: Decoder,
    corpus: CorpusSource = None,
    contexts: int = 64,
    length: int = 64,
    *,
    progress: Progress = _silent,
) -> JacobianLens:
    """Fit a Jacobian lens on text.

    Args:
        corpus: anything `unembed.open_corpus` takes; the shipped text when None.
        contexts: stretches of text, one for each window of `length` tokens.
        length: tokens of each.
        progress: called with the name of a step, the amount done, and the total.

    Returns:
        The lens, which reads for this model.

    Raises:
        InvalidInput: the text has fewer than two windows of this length.
        Unsupported: the model has several streams, or a pass of it cannot be differentiated.

    Memory: two float32 Jacobians for each layer's resid_pre and resid_mid, one for each half of the contexts, so
    16 * layers * d_model^2 bytes, and the activations of `COPIES` tokens.
    """
    contexts, length = positive_int("contexts", contexts, 2), positive_int("length", length, SKIPPED + 2)
    if not lm.n_layers or lm.structure.streams is not None:
        what = "layers" if not lm.n_layers else "one stream"
        raise Unsupported(f"a Jacobian lens of {lm.name}", why=f"it does not have {what}")
    text = windows_of(corpus, length, overlap=0)
    found = list(islice(_whole_windows(lm, text, length), contexts + HELD_OUT))
    windows, held_out = found[:contexts], found[contexts:]
    if len(windows) < 2:
        raise InvalidInput(
            f"{len(windows)} windows of {length} tokens", why="a lens needs at least two", instead="Give a longer text"
        )
    size = (lm.n_layers, lm.d_model, lm.d_model)
    halves = [_Sums(torch.zeros(size), torch.zeros(size)) for _ in range(2)]
    means = _Means(lm)
    for number, window in enumerate(windows):
        progress("fitting the lens", number, len(windows))
        means.add(window)
        _add_jacobians(lm, window, halves[number % 2])
    progress("fitting the lens", len(windows), len(windows))
    lens = _finished(lm, text, halves, means, length)
    lens.check = check_lens(lens, held_out, SKIPPED) if held_out else None
    return lens


def _whole_windows(lm: Decoder, text: Corpus, length: int) -> Iterator[Int[Tensor, " pos"]]:
    """Yield the windows of a text that have the requested length."""
    for segment in text.segments(lm):
        if len(segment) == length:
            yield segment.tokens.to(lm.device)


def _points(lm: Decoder) -> list[tuple[str, int]]:
    """Return where the Jacobian is taken: the source points, and the last stream."""
    middle = [("resid_mid", n) for n in range(lm.n_layers) if has_point(lm, "resid_mid", n)]
    return [*(("resid_pre", n) for n in range(lm.n_layers)), *middle, ("resid_post", lm.n_layers - 1)]


class _Means:
    """Running sums of the streams and of the final norm's scale."""

    def __init__(self, lm: Decoder) -> None:
        self.lm = lm
        self.before = torch.zeros(lm.n_layers, lm.d_model, dtype=torch.float64)
        self.middle, self.final = torch.zeros_like(self.before), torch.zeros(lm.d_model, dtype=torch.float64)
        self.scale, self.positions = 0.0, 0

    def add(self, window: Int[Tensor, " pos"]) -> None:
        """Add the positions of a window after the first few."""
        lm, last = self.lm, self.lm.n_layers - 1
        points = sorted({point for point, _ in _points(lm)})
        found = run(lm, window, points, logits=False)
        for n in range(lm.n_layers):
            self.before[n] += _sum(found.at("resid_pre", n))
            if found.has("resid_mid", n):
                self.middle[n] += _sum(found.at("resid_mid", n))
        final = found.at("resid_post", last)[0, SKIPPED:]
        self.final += _sum(found.at("resid_post", last))
        self.scale += float(final_scale(lm, final).double().sum())
        self.positions += len(final)


def _sum(stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, " d_model"]:
    return stream[0, SKIPPED:].double().sum(dim=0).cpu()


def _add_jacobians(lm: Decoder, window: Int[Tensor, " pos"], sums: _Sums) -> None:
    """Add the Jacobians of a context, at its last position."""
    cache = _cache_of(lm, window[:-1])
    for start in range(0, lm.d_model, COPIES):
        channels = torch.arange(start, min(start + COPIES, lm.d_model))
        for (point, layer), gradient in _rows(lm, window, cache, channels).items():
            into = sums.before if point == "resid_pre" else sums.middle
            # Row k of the gradient holds the derivative of output channel k; vectors are rows here, so the transpose is
            # stored.
            into[layer, :, channels] += gradient.float().cpu().T
    sums.contexts += 1


@torch.no_grad()
def _cache_of(lm: Decoder, prefix: Int[Tensor, " pos"]) -> Any | None:
    """Return the model's cache after a prefix; None if the cache cannot be copied, so that whole contexts are run."""
    with lm.lock:
        cache = getattr(lm.hf(prefix[None], use_cache=True), "past_key_values", None)
    return cache if hasattr(cache, "batch_repeat_interleave") else None


@torch.no_grad()
def last_token_passes(
    lm: Decoder,
    window: Int[Tensor, " pos"],
    copies: int,
    layer: int,
    change: Callable[[Float[Tensor, "copy d_model"]], Float[Tensor, "copy d_model"]],
) -> Float[Tensor, "copy d_vocab"]:
    """The logits after the last token of a window, run in several copies whose streams after a layer are changed.

    Earlier positions are read once, and are the same in all copies.

    Args:
        change: from the streams at the last position after the layer to those that the next layer reads.
    """
    cache, arguments = _cache_of(lm, window[:-1]), dict[str, Any](use_cache=False)
    given = window[None].expand(copies, -1)
    if cache is not None:
        cache.batch_repeat_interleave(copies)
        arguments = {"past_key_values": cache, "use_cache": True, "attention_mask": torch.ones_like(given)}
        given = given[:, -1:]

    def hook(stream: Tensor, _layer: int) -> Tensor:
        changed = stream.clone()
        changed[:, -1] = change(stream[:, -1])
        return changed

    with (
        memory_guard(f"{copies} copies of a token"),
        attach_hooks(lm, {}, (), {("resid_post", layer): hook}) as current,
    ):
        return lm.hf(given, **arguments, **current.arguments).logits[:, -1]


def _rows(
    lm: Decoder, window: Int[Tensor, " pos"], cache: Any | None, channels: Int[Tensor, " copy"]
) -> dict[tuple[str, int], Float[Tensor, "copy d_model"]]:
    """Return, by point and layer, the gradients of channels of the last stream at the last position.

    Raises:
        Unsupported: the pass cannot be differentiated.
    """
    n, own = len(channels), dict[tuple[str, int], Tensor]()
    arguments: dict[str, Any] = {"use_cache": False}
    given = window[None].expand(n, -1)
    if cache is not None:
        cache = copy.deepcopy(cache)
        cache.batch_repeat_interleave(n)  # pyright: ignore[reportOptionalMemberAccess]
        arguments = {"past_key_values": cache, "use_cache": True, "attention_mask": torch.ones_like(given)}
        given = given[:, -1:]
    points = _points(lm)
    try:
        with memory_guard(f"{n} copies of a token"), attach_hooks(lm, {}) as current, torch.enable_grad():
            with on_the_graph(lm, points, own, current):
                lm.hf(given, **arguments, **current.arguments)
            last = own[points[-1]][:, -1]
            total = last[torch.arange(n), channels.to(last.device)].sum()
            found = torch.autograd.grad(total, [own[key] for key in points[:-1]], allow_unused=True)
    except RuntimeError as error:
        raise Unsupported(
            f"a Jacobian lens of {lm.name}", why=f"a pass has no derivative: {first_sentence(error)}"
        ) from error
    return {
        key: torch.zeros_like(own[key][:, -1]) if gradient is None else gradient[:, -1]
        for key, gradient in zip(points[:-1], found, strict=True)
    }


def _finished(lm: Decoder, text: Corpus, halves: list[_Sums], means: _Means, length: int) -> JacobianLens:
    contexts = sum(half.contexts for half in halves)
    first, second = (half.before.flatten(1) for half in halves)
    has_middle = torch.tensor([has_point(lm, "resid_mid", n) for n in range(lm.n_layers)])
    middle = (halves[0].middle + halves[1].middle) / contexts
    middle[~has_middle] = torch.nan
    notes = {"estimator": "same position", "contexts": contexts, "length": length, "skipped": SKIPPED}
    device, n = lm.device, means.positions
    return JacobianLens(
        ((halves[0].before + halves[1].before) / contexts).to(device),
        middle.to(device) if bool(has_middle.any()) else None,
        (means.before / n).float().to(device),
        (means.middle / n).float().to(device) if bool(has_middle.any()) else None,
        (means.final / n).float().to(device),
        means.scale / n,
        torch.nn.functional.cosine_similarity(first, second, dim=1),
        contexts,
        length,
        sampled_fingerprint(lm),
        lm.provenance(corpus=text.fingerprint, basis="jacobian", notes=notes),  # pyright: ignore[reportArgumentType]
    ).bound_to(lm)
