"""Compute from the weights alone at which distance a head attends, whatever the tokens are.

The offset is the number of tokens from source to destination. Three kinds of models are covered. A table of position
embeddings (added to the stream, or to the input of queries and keys alone) gives a score for every pair of positions.
Rotary positions rotate the QK circuit by the offset. ALiBi adds a slope. Other models have no separate term for
positions.

Source: Elhage et al. 2021, "Splitting attention head terms into circuits" (positional terms), "Induction heads"
(previous-token heads).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.weights.composed_weights import require_qk
from unembed.attention.weights.folded_weights import reading_weights, require_heads
from unembed.attention.weights.low_rank import LowRank
from unembed.attention.weights.paper import NOT_IN_PAPER, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices, offsets_of
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Answer, Section
from unembed.errors import Unsupported
from unembed.names import HeadBasis, head_name
from unembed.options import CircuitBasis, Head, Option
from unembed.results import Provenance, format_percent
from unembed.validation import positive_int


@torch.no_grad()
def position_scores(
    circuits: HeadMatrices, layer: int, head: int, basis: HeadBasis = "raw", *, positions: int | None = None
) -> Float[Tensor, "dst src"]:
    """Return the attention score of every pair of positions, from the table of position embeddings alone.

    Scores are multiplied by the model's scale of scores, such as 1 / sqrt(d_head). The division by a norm is left out,
    because it depends on the run.

    Args:
        positions: number of positions; the model's context when None.

    Raises:
        OutOfRange: there is no such head.
        Unsupported: the model has no table of position embeddings.
    """
    lm = circuits.lm
    layer, head = circuits.resolve_head(layer, head, basis)
    if (table := lm.weights.W_pos) is None:
        site = lm.structure.blocks[layer].attention
        by_offset = site.scores.understood and (site.scores.rotary is not None or site.scores.alibi_slopes is not None)
        raise Unsupported(
            f"position scores of layer {layer} of {lm.name}",
            why="the model has no table of position embeddings",
            instead="Use scores_by_offset" if by_offset else "Capture the attention patterns of a run",
        )
    n = table.shape[0] if lm.n_ctx is None else min(table.shape[0], lm.n_ctx)
    table = table[: n if positions is None else min(n, positive_int("positions", positions))]
    qk = circuits.qk(layer, head, 0, basis)
    table = table.to(torch.promote_types(qk.left.dtype, torch.float32))
    scores = LowRank(table @ qk.left.to(table.dtype), qk.right.to(table.dtype) @ table.T).dense()
    return scores * circuits.scales[layer]


@torch.no_grad()
def attention_by_position(scores: Float[Tensor, "dst src"]) -> Float[Tensor, "dst src"]:
    """Apply the causal softmax to scores, to show where a head would attend if it saw only positions."""
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.double().masked_fill(hidden, -torch.inf).softmax(dim=-1)


@torch.no_grad()
def previous_token_by_weights(circuits: HeadMatrices, basis: HeadBasis = "raw") -> Float[Tensor, "layer head"] | None:
    """Return the mean attention to the previous position, from position embeddings alone; NaN without attention.

    The result is None if the model has no table of position embeddings.

    Memory: one (pos, pos) matrix.
    """
    lm = circuits.lm
    require_heads(lm, "attention by positions")
    if lm.weights.W_pos is None:
        return None
    found = torch.full((lm.n_layers, lm.n_heads), torch.nan, dtype=torch.float64)
    for layer in lm.attention_layers:
        for head in range(lm.structure.blocks[layer].attention.n_heads):
            pattern = attention_by_position(position_scores(circuits, layer, head, basis))
            found[layer, head] = pattern.diagonal(-1).mean()
    return found


@torch.no_grad()
def scores_by_offset(
    circuits: HeadMatrices, layer: int, head: int, offsets: Sequence[int], basis: HeadBasis = "raw"
) -> Float[Tensor, " offset"]:
    """Return the mean score of a source at each offset (number of tokens back), multiplied by the scale of scores.

    With a table of position embeddings, this is the score between two of its rows, averaged over destinations. With
    rotary positions, it is the score of the mean token embedding with itself, rotated by the offset. The term of ALiBi
    is added.

    Args:
        offsets: at least 0; with a table of position embeddings, below its length.

    Raises:
        OutOfRange: there is no such head.
        Unsupported: how the layer computes scores could not be determined, or scores do not depend on positions.
    """
    lm = circuits.lm
    layer, head = circuits.resolve_head(layer, head, basis)
    site = lm.structure.blocks[layer].attention
    require_qk(lm, layer)
    total = torch.zeros(len(offsets), dtype=torch.float64)
    if lm.weights.W_pos is not None:
        scores = position_scores(circuits, layer, head, basis).double()
        total += torch.stack([scores.diagonal(-o).mean() for o in offsets]).cpu()
    elif site.scores.rotary is None and site.scores.alibi_slopes is None:
        added = lm.structure.positions == "added"
        raise Unsupported(
            f"scores by offset of layer {layer} of {lm.name}",
            why="the model adds positions to the embedding outside any module, so they cannot be read separately"
            if added
            else "its scores do not depend on positions",
            instead="Capture the attention patterns of a run" if added else "Use qk, which is the same at every offset",
        )
    if (rotary := site.scores.rotary) is not None:
        mean = circuits.mean_embedding(basis).double()
        query = mean @ reading_weights(lm, layer, "q", basis)[head].double()
        key = mean @ reading_weights(lm, layer, "k", basis, grouped=True)[head // site.queries_per_kv].double()
        at = torch.tensor(offsets_of(offsets), device=mean.device)
        source = rotary.rotate(key[None], at.new_zeros(1))[0]
        # Each offset is rotated in a call of its own. `rotate` takes the positions of one call as one text, and some
        # models use other angles in long texts, so a large offset would change the angles of the small ones.
        turned = torch.cat([rotary.rotate(query[None], one[None]) for one in at])
        total += (turned @ source).cpu() * site.scores.scale
    if site.scores.alibi_slopes is not None:
        total -= float(site.scores.alibi_slopes[head]) * torch.tensor(list(offsets), dtype=torch.float64)
    return total


FARTHEST = 16
"""Largest offset in the report's picture."""
_DRAWN = {"x_label": "tokens back", "published": NOT_IN_PAPER}
_MEANS = (
    "The score of a source at each offset (number of tokens back), whatever the tokens are. With a table of position "
    "embeddings, it is the score of the positions alone, averaged over destinations. With rotary positions, it is the "
    "score of the mean token embedding with itself, rotated by the offset. ALiBi is added. What norms divide by "
    "depends on the run and is left out."
)


def positions_section(circuits: HeadMatrices, basis: HeadBasis, provenance: Provenance) -> Section | None:
    """Show every head's score by offset in one picture; None if no head's scores depend on positions."""
    lm = circuits.lm
    offsets = list(range(FARTHEST + 1 if lm.n_ctx is None else min(FARTHEST + 1, lm.n_ctx)))
    rows: list[tuple[str, torch.Tensor]] = []
    for layer in lm.attention_layers:
        for head in range(lm.structure.blocks[layer].attention.n_heads):
            try:
                rows.append((head_name(layer, head), scores_by_offset(circuits, layer, head, offsets, basis)))
            except Unsupported:
                continue
    if not rows:
        return None
    columns = {
        "head": [name for name, _ in rows for _ in offsets],
        "offset": [offset for _ in rows for offset in offsets],
        "score": [float(value) for _, scores in rows for value in scores],
        # Scores of different heads differ in scale, so the picture shows each head's scores relative to their range.
        "of_range": [
            float((value - scores.mean()) / (scores - scores.mean()).abs().max().clamp_min(1e-30))
            for _, scores in rows
            for value in scores
        ],
    }
    text = [_MEANS, "The picture shows each head's scores minus their mean, divided by the largest deviation."]
    exhibits = [
        exhibit("scores_by_offset", "Scores by offset", columns, provenance, percent=("of_range",), folded=True)
    ]
    if (by_weights := previous_token_by_weights(circuits, basis)) is not None:
        best = by_weights.nan_to_num(-torch.inf).flatten().topk(min(5, int((~by_weights.isnan()).sum())))
        places = [divmod(int(i), lm.n_heads) for i in best.indices]
        cells = {"head": [head_name(a, h) for a, h in places], "previous_token": best.values.tolist()}
        title, shares = "Attention to the token before, by positions alone", ("previous_token",)
        exhibits.insert(0, exhibit("previous_token_by_weights", title, cells, provenance, percent=shares))
        a, h = places[0]
        text.append(
            f"By positions alone head {head_name(a, h)} puts {format_percent(float(best.values[0]), 0)} on the token "
            "before."
        )
    drawn = "Scores by offset, head by head"
    figure = drawing("heat", "scores_by_offset", drawn, "offset", "of_range", rows="head", **_DRAWN)
    return Section("Positions", tuple(text), tuple(exhibits), (figure,))


def offsets_answer(
    circuits: HeadMatrices,
    head: Head,
    *,
    farthest: Annotated[
        int, Option("Largest offset to show, in tokens back from the destination.", low=1, high=4096, aliases=("--to",))
    ] = 24,
    basis: CircuitBasis = None,
) -> Answer:
    """Show how a head's score depends on how far back a source is, by the weights alone.

    Caution: Only the part of a score that depends on distance is shown; the content of the tokens may outweigh it.
    """
    lm, chosen = circuits.lm, circuits.known_basis(basis)
    layer, index = lm.layer_and_head(*head)
    offsets = list(range(farthest + 1 if lm.n_ctx is None else min(farthest + 1, lm.n_ctx)))
    scores, provenance = scores_by_offset(circuits, layer, index, offsets, chosen), lm.provenance(basis=chosen)
    text = [_MEANS]
    if (by_weights := previous_token_by_weights(circuits, chosen)) is not None:
        share = format_percent(float(by_weights[layer, index]), 0)
        text.append(f"By positions alone the head attends to the token before with {share} of its weight.")
    columns: dict[str, list] = {"offset": offsets, "score": scores.tolist()}
    table = exhibit("offsets", f"Scores of head {head_name(layer, index)} by offset", columns, provenance)
    figure = drawing("line", "offsets", "Score by offset", "offset", "score", **_DRAWN)
    section = Section("Offsets", tuple(text), (table,), (figure,))
    return Answer(f"Head {head} of {lm.name} by offset", (section,), provenance)


ANALYSIS = of_circuits("offsets", offsets_answer, "offsets L0H0 --farthest 12")
