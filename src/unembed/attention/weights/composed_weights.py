"""Compute W_Q, W_K and W_V where they are products of several matrices, as in latent attention (MLA).

With W_D the down-projection, g the gain of the norm after it and W_U the up-projection, a head reads
x W_D g W_U / sigma, where sigma is the number by which the norm divides the latent vector x W_D at that position. Apart
from this division, the result is linear in x. Two cases have no fixed matrix and raise Unsupported in the folded basis:

- A key of latent attention has a content part, which is divided by sigma, and a rotary part, which is not (or is
  divided by a sigma of its own). Each part alone has a circuit; `score_terms` uses the values of sigma in a run.
- A gate with a factor for every channel lies between W_V and W_O, so W_V W_O is not what the head does.

Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2 and equations 9 to 19 (latent attention).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.structure.exotic import Latent, Reading
from unembed.models.structure.structure import GATES, AttentionSite
from unembed.names import HeadBasis

PARTS = ("rotary", "content")
"""The two parts of a query or key in latent attention, in the order of their columns in `composed_weights`."""


def is_composed(site: AttentionSite) -> bool:
    """Tell whether W_Q, W_K and W_V of a layer are products of several matrices (see `composed_weights`)."""
    return site.head_layout is None and site.readings is not None


def _without_qk(site: AttentionSite) -> str:
    """Say what to use instead in a layer that has no QK circuit."""
    has_values = site.head_layout is not None or (site.readings is not None and "v" in site.readings.parts)
    return (
        "Use OV circuits, or the attention patterns of a run" if has_values else "Use the attention patterns of a run"
    )


def check_part(site: AttentionSite, part: str | None) -> None:
    """Check that `part` is None or a part that the queries and keys of a layer have.

    Raises:
        InvalidInput: the part is not in `PARTS`, or the layer's queries and keys have no parts.
    """
    if part is None:
        return
    if part not in PARTS:
        raise InvalidInput(f"part {part!r:.60}", why=f"a key of latent attention has the parts {' and '.join(PARTS)}")
    if site.readings is None or len(site.readings.parts.get("k", ())) < len(PARTS):
        raise InvalidInput(f"part {part!r}", why="the keys of this layer have no parts", instead="Leave out `part`")


def composed_weights(
    lm: Decoder, layer: int, which: str, basis: HeadBasis = "raw", part: str | None = None
) -> Float[Tensor, "head d_model d_part"]:
    """Return W_Q, W_K or W_V of a layer as the product of its projections, for each query head or key-value head.

    Args:
        which: "q", "k" or "v".
        basis: "raw" leaves out the gains of the latents' norms, "folded" multiplies them in. In both, the division by
            the norm is left out.
        part: "rotary" or "content" columns of queries or keys; all columns when None.

    Raises:
        Unsupported: keys with both parts are wanted in the folded basis, but the parts have different norms; or the
            queries are not a linear map of one latent.

    Memory: head * d_model * d_part numbers, and the matrices of the latent.
    """
    site = lm.structure.blocks[layer].attention
    readings = site.readings
    if readings is None or which not in readings.parts:
        raise Unsupported(
            f"the {'queries' if which == 'q' else 'keys'} of layer {layer} of {lm.name}",
            why="its queries are a linear map neither of the stream nor of a single normalised latent vector",
            instead=_without_qk(site),
        )
    check_part(site, part)
    if which == "k" and part is None and basis == "folded" and readings.has_latent_keys:
        raise Unsupported(
            f"the whole keys of layer {layer} of {lm.name} in the folded basis",
            why="when the model runs, the content part of a key is divided by the norm of its latent vector, but the "
            "rotary part is not, so that no fixed matrix gives both",
            instead="Use basis='raw', or scores on a prompt, or pass part='content' or part='rotary' to qk()",
        )
    chosen = readings.parts[which] if part is None else [readings.parts[which][PARTS.index(part)]]
    heads = site.n_heads if which == "q" else site.n_kv_heads
    found = [_matrix(lm, reading, basis).expand(heads, -1, -1) for reading in chosen]
    return torch.cat(found, dim=-1) if len(found) > 1 else found[0]


def _matrix(lm: Decoder, reading: Reading, basis: HeadBasis) -> Float[Tensor, "head d_model d_part"]:
    folded = basis == "folded"
    latent = reading.latent
    matrix = None if reading.module is None else lm.weights.projection(reading.module)
    if latent is not None:
        down = _down(lm, latent)
        if matrix is None:
            matrix = torch.eye(down.shape[1], dtype=down.dtype, device=down.device)
        if folded:
            matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
            matrix = matrix if latent.norm is None else latent.norm.folded(matrix)
            matrix = matrix * latent.factor
        matrix = down.to(matrix.dtype) @ matrix
    assert matrix is not None
    heads = matrix.unflatten(-1, (reading.n_heads, -1))[..., reading.start : reading.stop]
    return (heads * reading.factor if folded else heads).movedim(0, -2)


def _down(lm: Decoder, latent: Latent) -> Float[Tensor, "d_model rank"]:
    return lm.weights.projection(latent.module)[:, latent.start : latent.stop]


def read_in_run(
    lm: Decoder, layer: int, which: str, parts: Mapping[str, Float[Tensor, "pos d_model"]]
) -> dict[str, Float[Tensor, "head pos d_part"]]:
    """Compute queries, keys or values separately for each term of the attention's input.

    Where a norm follows a latent, it divides every term by the same number: the one for the whole input.

    Args:
        which: "q", "k" or "v".
        parts: float64 vectors that add up to the attention's input, by name; biases are added to the name "bias".

    Raises:
        Unsupported: the queries are not a linear map of one latent.
    """
    site = lm.structure.blocks[layer].attention
    if site.readings is None or which not in site.readings.parts:
        composed_weights(lm, layer, which)  # has no result for `which` here: raises an error that says why
    assert site.readings is not None
    made: dict[str, list[Tensor]] = {}
    every = site.readings.parts[which]
    for at, reading in enumerate(every):
        read = dict(parts)
        if reading.latent is not None:
            read = _through(lm, reading.latent, read)
        if reading.module is not None:
            bias = lm.weights.projection_bias(reading.module)
            read = _plus({n: t @ lm.weights.projection(reading.module).double() for n, t in read.items()}, bias)
        for name, t in read.items():
            heads = reading.split(t).transpose(0, 1)
            empty = [heads.new_zeros(heads.shape[0], heads.shape[1], r.width) for r in every[:at]]
            made.setdefault(name, empty).append(heads)
        for name in made.keys() - read.keys():
            made[name].append(torch.zeros_like(made[name][0][..., :1]).expand(-1, -1, reading.width))
    heads = site.n_heads if which == "q" else site.n_kv_heads
    return {name: torch.cat([t.expand(heads, -1, -1) for t in ts], dim=-1) for name, ts in made.items()}


def _through(lm: Decoder, latent: Latent, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Compute a latent from each term of its input; where a norm follows, every term is divided by the sum's scale."""
    bias = lm.weights.projection_bias(latent.module)
    down = _down(lm, latent).double()
    read = _plus({n: t @ down for n, t in parts.items()}, None if bias is None else bias[latent.start : latent.stop])
    if latent.norm is not None:
        size = latent.norm.scale(torch.stack(list(read.values())).sum(dim=0))
        read = _plus({n: latent.norm.frozen(t, size) for n, t in read.items()}, latent.norm.bias)
    return {n: t * latent.factor for n, t in read.items()}


def _plus(parts: dict[str, Tensor], bias: Tensor | None) -> dict[str, Tensor]:
    if bias is None:
        return parts
    whole = bias.double().expand_as(next(iter(parts.values())))
    return {**parts, "bias": parts["bias"] + whole if "bias" in parts else whole}


def require_ov(lm: Decoder, layer: int, basis: HeadBasis) -> None:
    """Check that the heads of a layer map values by W_V W_O, up to a factor for each position.

    The raw basis is always accepted, since it leaves out gates and norms.

    Raises:
        Unsupported: in the folded basis, a gate on every channel, or a norm, lies between W_V and W_O.
    """
    site = lm.structure.blocks[layer].attention
    values = site.values
    if basis == "folded" and values is not None and values.gate in ("channel", "norm"):
        if not is_composed(site):
            # The error below recommends the raw basis. If that basis has no circuit either, this line raises the error
            # that says why.
            _ = site.layout
        raise Unsupported(
            f"the folded OV circuits of layer {layer} of {lm.name}",
            why=GATES[values.gate],
            instead="Use an attribution by source; or basis='raw', which leaves out the gate or norm",
        )


def require_qk(lm: Decoder, layer: int) -> None:
    """Check that the attention scores of a layer can be reproduced from its queries and keys.

    Raises:
        Unsupported: the scores cannot be reproduced, or the layer has no attention.
    """
    site = lm.structure.blocks[layer].attention
    if not site.scores.understood:
        what = f"the QK circuit of layer {layer} of {lm.name}"
        raise Unsupported(what, why=site.scores.missing, instead=_without_qk(site))


def composed_notes(site: AttentionSite, basis: HeadBasis, circuit: str) -> list[str]:
    """Return notes on the latents and gates that a layer's circuits leave out or include."""
    notes = []
    readings = site.readings if is_composed(site) else None
    letters = "v" if circuit == "ov" else "qk"
    parts = [] if readings is None else [r for letter in letters for r in readings.parts.get(letter, ())]
    if any(r.latent is not None and r.latent.norm is not None for r in parts):
        gains = "its gain folded in" if basis == "folded" else "its gain left out"
        notes.append(f"a latent's norm divides by the latent's size in a run: {gains}")
    if circuit == "ov" and readings is not None and readings.normed_values:
        notes.append("each head's values are divided by their size in a run")
    if circuit == "ov" and site.values is not None and site.values.gate:
        notes.append(f"{GATES[site.values.gate]}: left out")
    return notes
