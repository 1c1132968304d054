"""Split a logit by the features of a dictionary, with the reconstruction error as a separate row.

The model's activation is exactly the sum of each feature's activation times its decoder row, the bias, and the
reconstruction error. Each of these terms contributes to the logit linearly. If the activation is the residual stream,
these rows replace those of all earlier components.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from unembed.dictionaries.dictionary import Dictionary
from unembed.errors import Unsupported
from unembed.lens import final_scale, logit_direction
from unembed.logit_attribution import Attribution, attribution, points_needed, proved_sum
from unembed.models.decoder import Decoder
from unembed.stream.decomposition import Directions, directions
from unembed.stream.run import Run, Tokens, position_of, run

_STREAM = ("resid_pre", "resid_post")


@torch.no_grad()
def feature_attribution(
    lm: Decoder,
    parts: Sequence[tuple[int, Dictionary]],
    tokens: Tokens,
    token: str | int,
    position: int = -1,
    against: str | int | None = None,
) -> Attribution:
    """Split the logit of a token at a position (or its difference from another token's logit) by feature.

    Args:
        parts: pairs of a layer and the dictionary that encodes its activation.
        token: the token whose logit is split.
        position: the position whose next-token logit is split; -1 is the last.
        against: a token whose logit is subtracted, if any.

    Returns:
        Rows of kind "feature" for features that are not 0, "dictionary bias" and "dictionary error" for each layer that
        is reconstructed, and a row for each component that the dictionary does not replace.

    Raises:
        SumNotProved: the rows miss the logit by more than the tolerance of the model's dtype.
        Unsupported: the logit is not linear in the activation that the dictionary reconstructs.
    """
    of_parts = [point for _, part in parts for point in (part.reads, part.writes)]
    seen = run(lm, tokens, list(dict.fromkeys((*points_needed(lm, "component"), *of_parts))))
    whole = attribution(lm, seen, token, position, against)
    column = position_of(seen, position)
    last = seen.at("resid_post", lm.n_layers - 1)[0, column]
    u = logit_direction(lm, whole.token, whole.against) / final_scale(lm, last)
    pulled = directions(lm, u, seen, column)
    if pulled.constants or not pulled.end:
        raise Unsupported(
            f"attribution by feature in {lm.name}",
            why="the model normalises or mixes its residual stream between layers",
        )
    written = sorted({n + offset for n, part in parts for offset in range(len(part.W_dec))})
    writes = parts[0][1].writes
    others = _other_rows(whole, writes, written)
    rows: list[tuple[str, int, int, float]] = []
    features = {n: part.encode(seen.at(part.reads, n)[0, column]) for n, part in parts}
    for n, part in parts:
        on = features[n].nonzero()[:, 0]
        total = torch.zeros(len(on), dtype=u.dtype, device=u.device)
        for offset, W_dec in enumerate(part.W_dec):
            total += features[n][on].to(u) * (W_dec[on].to(u) @ _direction(lm, pulled, writes, n + offset))
        rows += [("feature", n, i, c) for i, c in zip(on.tolist(), total.tolist(), strict=True)]
    readers = dict(parts)
    for layer in written:
        direction = _direction(lm, pulled, writes, layer)
        if layer in readers:
            rows.append(("dictionary bias", layer, -1, float(readers[layer].b_dec.to(u) @ direction)))
        error = _error(parts, seen, layer, column, features).to(u) @ direction
        rows.append(("dictionary error", layer, -1, float(error)))
    return _joined(lm, whole, others, rows)


def _direction(lm: Decoder, pulled: Directions, point: str, layer: int) -> Tensor:
    """Return the direction whose dot product with a vector at this capture point is the vector's logit contribution."""
    if point == "resid_post":
        return pulled.end[layer]
    if point == "resid_pre":
        return pulled.end[layer - 1] if layer else pulled.start
    if point in ("mlp_out", "attn_out"):
        return pulled.steps[layer][point]
    raise Unsupported(
        f"features at {point} of {lm.name}",
        why="only resid_pre, resid_post, attn_out and mlp_out can be split by feature",
    )


def _other_rows(whole: Attribution, writes: str, written: list[int]) -> Tensor:
    """Return a mask of the rows of the attribution by component that the features do not replace."""
    kinds = [whole.kinds[int(kind)] for kind in whole.kind]
    layers = whole.layer.tolist()
    if writes in _STREAM:
        last = written[0] if writes == "resid_post" else written[0] - 1
        early = [k in ("embedding", "positions") or 0 <= n <= last for k, n in zip(kinds, layers, strict=True)]
        return ~torch.tensor(early)
    names = {"mlp_out": ("ffn",), "attn_out": ("attention", "mixer")}[writes]
    return ~torch.tensor([k in names and n in written for k, n in zip(kinds, layers, strict=True)])


def _error(
    parts: Sequence[tuple[int, Dictionary]], seen: Run, layer: int, column: int, features: dict[int, Tensor]
) -> Tensor:
    """Return the reconstruction error of a layer's activation at one position."""
    own = seen.at(parts[0][1].writes, layer)[0, column]
    for n, part in parts:
        if 0 <= layer - n < len(part.W_dec):
            own = own - part.decode(features[n], layer - n).to(own)
    return own


def _joined(lm: Decoder, whole: Attribution, others: Tensor, rows: list[tuple[str, int, int, float]]) -> Attribution:
    """Combine the rows of components and of features, and check that they add up to the logit."""
    kinds = [*whole.kinds, *dict.fromkeys(kind for kind, *_ in rows)]
    new = [torch.tensor(c) for c in zip(*((kinds.index(k), n, i) for k, n, i, _ in rows), strict=True)]
    values = torch.tensor([c for *_, c in rows], dtype=whole.contribution.dtype)
    device = whole.contribution.device
    kind, layer, index = (
        torch.cat([old[others], own.to(device)])
        for old, own in zip((whole.kind, whole.layer, whole.index), new, strict=True)
    )
    source = torch.cat([whole.source[others], torch.full((len(rows),), -1, dtype=torch.long, device=device)])
    contribution = torch.cat([whole.contribution[others], values.to(device)])
    what = f"the attribution of token {whole.token} by feature in {lm.name}"
    total, error = proved_sum(lm, contribution, whole.logit, what)
    return replace(
        whole,
        by="feature",
        kinds=tuple(kinds),
        kind=kind,
        layer=layer,
        index=index,
        source=source,
        contribution=contribution,
        total=total,
        error=error,
    )
