"""Collect training examples for early exit: one random prefix of each sentence.

An example has the activations of the prefix's last position after every layer, and the prediction after every layer: by
the model's fitted lens (basis "jacobian"), or by the logit lens as in the paper (basis "final": the model's final norm
and unembedding). Its saturation layer is the first layer from which on the top token is the model's final prediction.

Source: Geva et al. 2022, section 6.2 (one random prefix of each of 10,000 sentences).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus import CorpusSource, open_corpus
from unembed.errors import InvalidInput
from unembed.jacobian import basis_or_default
from unembed.jacobian.basis import fitted_lens
from unembed.lens import logits_of
from unembed.memories.events import saturation_layer
from unembed.memories.sub_updates import contributions
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import Basis
from unembed.results import Table
from unembed.stream.hooks import Callback, Stop, attach_hooks
from unembed.stream.run import forward_arguments, padded
from unembed.validation import one_of, positive_int, valid_seed

DOMINANT = 10
"""Number of sub-updates that represent a layer's update in the paper."""
BASES: tuple[Basis, ...] = ("final", "jacobian")
"""The bases in which scores can be read as a distribution over tokens."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Activations and predictions at text positions, after every layer. All tensors are on the CPU."""

    dominant: Int[Tensor, "example layer k"]
    """Indices of the memories with the largest |m| * ||v|| (coefficient m, value vector v), largest first."""
    top: Int[Tensor, "example layer"]
    """The most probable token after each layer's FFN; the last column is the model's prediction."""
    margin: Float[Tensor, "example layer"]
    """Probability of the most probable token minus that of the second."""
    entropy: Float[Tensor, "example layer"]
    """Entropy of the distribution after each layer, in nats."""
    before: Float[Tensor, "example layer d_model"]
    """The residual stream to which the FFN adds its output: resid_mid, or resid_pre if attention and FFN are
    parallel."""
    update: Float[Tensor, "example layer d_model"]
    corpus: str | None = None
    basis: Basis = "final"
    """How the stream was turned into predictions: "final" or "jacobian"."""
    logit_lens_top: Int[Tensor, "example layer"] | None = None
    """The most probable token by the logit lens, if the basis is "jacobian"."""

    def __len__(self) -> int:
        return self.top.shape[0]

    @property
    def n_layers(self) -> int:
        """Number of layers of the model."""
        return self.top.shape[1]

    @property
    def saturation(self) -> Int[Tensor, " example"]:
        """The first layer from which on the top token is the final prediction."""
        return _saturation(self.top)

    @property
    def logit_lens_saturation(self) -> Int[Tensor, " example"]:
        """The saturation layer if predictions are by the logit lens, for either basis."""
        return _saturation(self.top if self.logit_lens_top is None else self.logit_lens_top)

    def __getitem__(self, rows: Tensor | slice) -> Examples:
        return replace(self, **{name: value[rows] for name, value in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, Tensor)}


def _saturation(top: Int[Tensor, "example layer"]) -> Int[Tensor, " example"]:
    return saturation_layer(torch.where(top == top[:, -1:], 1, 2).T)


def confidence(
    logits: Float[Tensor, "*pos d_vocab"],
) -> tuple[Int[Tensor, "*pos"], Float[Tensor, "*pos"], Float[Tensor, "*pos"]]:
    """Return the most probable token, its probability minus that of the second, and the entropy in nats."""
    log_p = logits.float().log_softmax(-1)
    p = log_p.exp()
    best = log_p.topk(2, dim=-1)
    values = best.values.exp()
    # A token with a logit of -inf has probability 0. It must add 0 to the entropy, but 0 * -inf would be NaN.
    entropy = -(p * log_p.clamp_min(-1e4)).sum(-1)
    return best.indices[..., 0], values[..., 0] - values[..., 1], entropy


@torch.no_grad()
def examples(
    lm: Decoder,
    corpus: CorpusSource = None,
    n: int = 10_000,
    *,
    seed: int = 0,
    basis: Basis | None = None,
    tokens_per_batch: int = 2048,
    progress: Callable[[int, int], None] | None = None,
) -> Examples:
    """Draw one random prefix from each of n random sentences, and record its last position after every layer.

    A prefix ends at a random token of the sentence other than the last, as in the released code for GPT-2.

    Args:
        corpus: what `unembed.corpus.open_corpus` takes.
        n: number of sentences; if the corpus has fewer, all are used.
        seed: the seed of the choice of sentences and positions.
        basis: "final" or "jacobian"; by default "jacobian" if the model has a fitted lens.
        tokens_per_batch: number of tokens in a batch, with padding.
        progress: called with the number of examples done and their total.

    Raises:
        InvalidInput: no sentence has two tokens or more; or the basis is "jacobian", and the model has no lens.

    Memory: 2 * n * layers * d_model floats, and a batch's activations.
    """
    lm = require_decoder(lm)
    n, seed = positive_int("n", n), valid_seed(seed)
    texts = open_corpus(corpus)
    segments = [s for s in texts.segments(lm) if len(s.tokens) - s.lead >= 2]
    if not segments:
        raise InvalidInput(
            "no examples", why="no sentence of the corpus has two tokens or more", instead="Give more text"
        )
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(segments), generator=generator)[:n].tolist()
    at = [int(torch.randint(segments[i].lead, len(segments[i].tokens) - 1, (), generator=generator)) for i in chosen]
    rows = [torch.as_tensor(segments[i].tokens[: p + 1], dtype=torch.long) for i, p in zip(chosen, at, strict=True)]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    parts, places, batch = [], [], []
    for i in order:
        if batch and len(rows[i]) * (len(batch) + 1) > tokens_per_batch:
            parts.append(examples_of_prefixes(lm, [rows[j] for j in batch], basis))
            places += batch
            batch = []
            if progress is not None:
                progress(len(places), len(rows))
        batch.append(i)
    parts.append(examples_of_prefixes(lm, [rows[j] for j in batch], basis))
    places += batch
    ordered = concatenate(parts)[torch.tensor(places).argsort()]
    return replace(ordered, corpus=texts.fingerprint)


def concatenate(parts: Sequence[Examples]) -> Examples:
    """Concatenate examples that were recorded separately."""
    tensors = [part._tensors() for part in parts]
    return replace(parts[0], **{name: torch.cat([one[name] for one in tensors]) for name in tensors[0]})


@torch.no_grad()
def examples_of_prefixes(lm: Decoder, prefixes: Sequence[Tensor], basis: Basis | None = None) -> Examples:
    """Record the activations of every layer at the last position of each prefix, in one forward pass.

    Args:
        prefixes: the token ids of each prefix.
        basis: "final" or "jacobian"; by default "jacobian" if the model has a fitted lens.

    Raises:
        InvalidInput: the basis is "jacobian", and the model has no lens.
    """
    basis = exit_basis(lm, basis)
    lm.feed_forward(0)  # raises an error if the model has no layers
    ids, mask = padded(lm, prefixes)
    rows, last = torch.arange(len(prefixes), device=lm.device), mask.sum(dim=1) - 1
    captured: dict[tuple[str, int], Tensor] = {}

    def capture(point: str, layer: int) -> Callback:
        def callback(t: Tensor) -> None:
            own = t[rows, last]
            if point == "coefficients":
                own = contributions(own, lm.weights.W_out[layer]).topk(min(DOMINANT, own.shape[-1]), dim=-1).indices
            captured[point, layer] = own.clone()
            if len(captured) == len(points):
                raise Stop  # skips the logits: at all positions of a small model they would take longer than the layers

        return callback

    points = [
        (p, n) for n in range(lm.n_layers) for p in (before_point(lm, n), "coefficients", "mlp_out", "resid_post")
    ]
    with suppress(Stop), attach_hooks(lm, {key: capture(*key) for key in points}) as current:
        lm.hf(ids, **forward_arguments(lm, mask), **current.arguments)
    layers = range(lm.n_layers)
    # Results are written into tensors that are allocated before the loop. Small tensors that are allocated between
    # large ones would fragment the memory, so that the memory of the large ones could not be used again.
    shape = (len(prefixes), lm.n_layers)
    top, margin, entropy = torch.empty(shape, dtype=torch.long), torch.empty(shape), torch.empty(shape)
    plain = None if basis == "final" else torch.empty_like(top)
    for n in layers:
        stream = captured["resid_post", n]
        top[:, n], margin[:, n], entropy[:, n] = confidence(logits_of(lm, readable(lm, stream, n, basis)))
        if plain is not None:
            plain[:, n] = logits_of(lm, stream).argmax(-1)

    def stacked(tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(tensors), dim=1).cpu()

    return Examples(
        dominant=stacked([captured["coefficients", n] for n in layers]),
        top=top,
        margin=margin,
        entropy=entropy,
        before=stacked([captured[before_point(lm, n), n].float() for n in layers]),
        update=stacked([captured["mlp_out", n].float() for n in layers]),
        basis=basis,
        logit_lens_top=plain,
    )


def exit_basis(lm: Decoder, basis: Basis | None) -> Basis:
    """Return `basis`, or if it is None the model's default: "jacobian" with a fitted lens, else "final".

    Raises:
        InvalidInput: the basis is "raw" or "frozen"; or it is "jacobian", and the model has no lens.
    """
    chosen = basis_or_default(lm, basis, "final")
    one_of("basis", chosen, BASES)
    if chosen == "jacobian":
        fitted_lens(lm)
    return chosen


def readable(lm: Decoder, stream: Float[Tensor, "*pos d_model"], layer: int, basis: Basis) -> Tensor:
    """Return a layer's resid_post as input for the final norm and the unembedding.

    The lens maps it if the basis is "jacobian"; for "final" it is unchanged.
    """
    if basis == "final" or layer == lm.n_layers - 1:
        return stream
    return fitted_lens(lm).carried(stream, layer).to(stream.dtype)


def before_point(lm: Decoder, layer: int) -> str:
    """Return the capture point of the stream to which a layer's FFN adds its output."""
    return "resid_pre" if lm.structure.blocks[layer].parallel else "resid_mid"


def saturation_table(lm: Decoder, found: Examples) -> Table:
    """Return a table with the number and percentage of examples by saturation layer.

    Columns `examples` and `share` are by the logit lens, as in the paper; if the basis is "jacobian", `lens_examples`
    and `lens_share` are by the fitted lens. Source: Geva et al. 2022, Tables 9 and 10.
    """
    columns: dict[str, list[Any]] = {"layer": list(range(found.n_layers))}
    columns |= _shares(found.logit_lens_saturation, found.n_layers)
    if found.basis == "jacobian":
        columns |= {f"lens_{name}": values for name, values in _shares(found.saturation, found.n_layers).items()}
    about = lm.provenance(corpus=found.corpus, basis=found.basis)
    return Table("Layer at which the prediction saturates", columns, about)


def _shares(saturation: Int[Tensor, " example"], n_layers: int) -> dict[str, list[Any]]:
    counts = torch.bincount(saturation, minlength=n_layers).tolist()
    return {"examples": counts, "share": [100 * count / len(saturation) for count in counts]}
