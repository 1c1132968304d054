"""Find memories (FFN neurons) that fire on nearly every token, and the usual size of each memory's coefficient."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.corpus import open_corpus
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import weights_checksum
from unembed.names import MemoryIndex, MemoryValue
from unembed.results import format_number
from unembed.results.cached_arrays import cached_arrays
from unembed.stream.massive_activations import massive_positions
from unembed.stream.run import run
from unembed.sweeps import FIRES

if TYPE_CHECKING:
    from unembed.index.index import Index

ALWAYS_ON = 0.9
"""A memory that fires on at least this share of tokens is listed as always on."""
_WORK, _LEAST, _MOST, _WINDOW = 1e11, 64, 512, 64
"""The size of the sample of the shipped text on which coefficients are measured if there is no index: the largest
number of multiplications, the smallest and the largest number of tokens, and the number of tokens in a window."""
_BEGIN = 40
"""The first `_BEGIN * window` characters of each document are tokenised, which is enough for two windows of tokens."""
_FIELDS = ("always_on", "usual", "mean", "massive")
_MASSIVE = 2.0
"""A memory is counted as massive if massive positions make the root mean square of its coefficient this many times as
large."""


@dataclass(frozen=True, eq=False)
class UsualCoefficients:
    """The usual coefficients of all memories (FFN neurons), by layer; layers without memories are left out."""

    always_on: dict[int, Bool[Tensor, " d_mlp"]]
    """The memory fires on at least nine of ten tokens: its coefficient is above 0; in gated layers, its size is at
    least half of the usual one."""
    usual: dict[int, Float[Tensor, " d_mlp"]]
    """Root mean square of the coefficient over the tokens where the memory is active (gated layers: over all). Without
    an index, only gated layers are included, because most memories of other layers are active too rarely to measure
    this on a sample."""
    mean: dict[int, Float[Tensor, " d_mlp"]] = field(default_factory=dict[int, Float[Tensor, " d_mlp"]])
    """Mean of the coefficient over all tokens."""
    massive: dict[int, Bool[Tensor, " d_mlp"]] = field(default_factory=dict[int, Bool[Tensor, " d_mlp"]])
    """The memory's coefficient at the sample's positions with massive activations, which the other fields leave out, is
    so large that its root mean square over all positions would be at least twice as large. With an index, which counts
    every position, the other fields of these memories are those of the sample."""


def usual_coefficients(lm: Decoder, index: Index | None) -> UsualCoefficients:
    """Read usual coefficients from an index of the model, or measure them on a sample of the shipped text.

    Without an index and without a tokenizer, the result is empty. Measured coefficients are saved in the cache folder,
    in a file whose name is a hash of the weights and of the sample's tokens.

    Positions with massive activations are left out of the sample, which is measured in any case: in many models the
    first position of a text is one, and some coefficients are a thousand times as large there.

    Memory: layers * 512 * (d_mlp + d_model) numbers.
    """
    sample = lm.once(__name__, lambda: _measured(lm))
    return sample if index is None else _of_index(lm, index, sample)


def _of_index(lm: Decoder, index: Index, sample: UsualCoefficients) -> UsualCoefficients:
    columns = {name: torch.from_numpy(column).float() for name, column in index.statistics.items()}
    always, usual, means = {}, {}, {}
    for layer in range(lm.n_layers):
        rows = slice(int(index.bounds[layer]), int(index.bounds[layer + 1]))
        if rows.start == rows.stop:
            continue
        mean, variance, active = (columns[name][rows] for name in ("mean", "variance", "active_fraction"))
        signed = lm.is_signed(layer)
        # An index that was built by an earlier version counts a gated memory as active wherever its coefficient is not
        # exactly 0, that is, nearly everywhere. With such an index, a gated memory counts as always on if its squared
        # mean exceeds its variance.
        counts = not signed or index.firing_shares is not None
        always[layer] = active >= ALWAYS_ON if counts else mean**2 > variance
        usual[layer] = ((mean**2 + variance) / (1.0 if signed else active.where(active > 0, 1.0))).sqrt()
        means[layer] = mean
        if (massive := sample.massive.get(layer)) is not None:
            means[layer] = mean.where(~massive, sample.mean[layer])
            if signed:
                usual[layer] = usual[layer].where(~massive, sample.usual[layer])
    return UsualCoefficients(always, usual, means, sample.massive)


@torch.no_grad()
def _measured(lm: Decoder) -> UsualCoefficients:
    if lm.tokenizer is None:
        return UsualCoefficients({}, {})
    window = min(_WINDOW, lm.n_ctx or _WINDOW)
    work = 12 * lm.n_layers * lm.d_model**2
    rows = max(1, int(min(_MOST, max(_LEAST, _WORK / work))) // window)
    begins = [one.text[: _BEGIN * window] for one in open_corpus(None, max_documents=4 * rows).documents()]
    text = open_corpus(begins, segmentation="windows", window=window)
    # The sample is the second window of each document (`sentence` counts from 0), because the first window begins with
    # the title.
    cut = (one.tokens for one in text.segments(lm) if one.sentence == 1 and len(one) == window)
    if not (batch := list(islice(cut, rows))):
        return UsualCoefficients({}, {})
    tokens = torch.stack(batch)
    if _has_hooks(lm):
        return _of_tokens(lm, tokens)  # the weights alone do not determine the numbers
    key = hashlib.sha256(f"{_FIELDS} {weights_checksum(lm)} {tokens.tolist()}".encode()).hexdigest()[:16]
    return _unpacked(cached_arrays(f"usual-{key}", lambda: _packed(_of_tokens(lm, tokens))))


def _has_hooks(lm: Decoder) -> bool:
    """Return whether the model has hooks (other than those of transformers), which may change activations."""
    hooks = (hook for m in lm.hf.modules() for of in (m._forward_hooks, m._forward_pre_hooks) for hook in of.values())
    return any(not (getattr(hook, "__module__", None) or "").startswith("transformers.") for hook in hooks)


def _packed(found: UsualCoefficients) -> dict[str, np.ndarray]:
    return {f"{name} {n}": t.numpy() for name in _FIELDS for n, t in getattr(found, name).items()}


def _unpacked(arrays: Mapping[str, np.ndarray]) -> UsualCoefficients:
    columns: dict[str, dict[int, Tensor]] = {name: {} for name in _FIELDS}
    for label, array in arrays.items():
        name, layer = label.split()
        columns[name][int(layer)] = torch.from_numpy(array)
    return UsualCoefficients(**columns)


def _of_tokens(lm: Decoder, tokens: Int[Tensor, "window pos"]) -> UsualCoefficients:
    captured = run(lm, tokens.to(lm.device), ["coefficients", "resid_post"], logits=False)
    lengths = torch.linalg.vector_norm(captured["resid_post"], dim=-1, dtype=torch.float32).flatten(1).cpu()
    is_usual = torch.from_numpy(~massive_positions(lengths.numpy()))
    always, usual, means, massive = {}, {}, {}, {}
    for layer in range(lm.n_layers):
        if captured.has("coefficients", layer):
            everywhere = captured.at("coefficients", layer).flatten(0, 1).float().cpu()
            m = everywhere[is_usual]
            means[layer] = m.mean(0)
            massive[layer] = everywhere.square().mean(0) > _MASSIVE**2 * m.square().mean(0)
            fires = m > 0
            if lm.is_signed(layer):
                usual[layer] = m.square().mean(0).sqrt()
                fires = (m.abs() >= FIRES * usual[layer]) & (m != 0)
            always[layer] = fires.float().mean(0) >= ALWAYS_ON
    return UsualCoefficients(always, usual, means, massive)


def usual_size(lm: Decoder, layer: int, index: MemoryIndex, known: Index | None = None) -> tuple[float, str]:
    """Return the usual absolute coefficient of a memory (FFN neuron), and the text that it was measured on, in words.

    Args:
        known: an index of the model; when None, a sample of the shipped text is measured, which gives the size for
            memories of gated layers only.

    Raises:
        Unsupported: there is no index, and the sample does not give the size.
    """
    layer, number = lm.memory(layer, index)
    found = usual_coefficients(lm, known)
    size = float(found.usual[layer][number]) if layer in found.usual else 0.0
    if known is not None and not (layer in found.massive and found.massive[layer][number]):
        return size, "the index's corpus"
    if size <= 0:
        raise Unsupported(
            f"the usual coefficient of {lm.memory_name(layer, number)}",
            why="it cannot be measured on a sample of the shipped text",
            instead="Build an index of the model (unembed index build), or give the coefficient itself",
        )
    return size, "a sample of the shipped text"


def sized(lm: Decoder, given: MemoryValue, known: Index | None = None) -> tuple[float, str]:
    """Convert a coefficient in units of the memory's usual size to a number, and explain the conversion in words.

    A coefficient that is already a number is returned with an empty text. Errors are those of `usual_size`.
    """
    if not given.in_usual:
        return given.value, ""
    size, source = usual_size(lm, given.layer, given.index, known)
    name = lm.memory_name(*lm.memory(given.layer, given.index))
    return given.value * size, f"the usual size of {name} is {format_number(size)}, by {source}"
