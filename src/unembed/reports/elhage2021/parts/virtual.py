"""Virtual heads: a head a and a later head b act as one head with pattern A_b A_a and OV circuit W_OV_a W_OV_b.

The report shows the pairs that add most to one logit of the example prompt. The scales of the norms between the two
heads are fixed at their values in the run and are included in the patterns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.paths.expansion import Path
from unembed.attention.paths.linearized import FrozenLayer, FrozenRun, frozen_run
from unembed.attention.weights.by_layer import number_or_none
from unembed.attention.weights.paper import NOT_IN_PAPER
from unembed.attention.weights.stream_gains import changes_stream
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Section
from unembed.errors import Unsupported
from unembed.names import SUM_TOLERANCE
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, judged, once
from unembed.results import format_error, format_number, visible
from unembed.stream.decomposition import tolerance

PAIRS = 10
"""Number of virtual heads shown."""
_SCORES = ("copying_score", "earlier_head_score", "later_head_score")


@dataclass(frozen=True, eq=False)
class VirtualHead:
    """Two heads on the example prompt, the later of which reads the output of the earlier.

    Attributes:
        label: the name, such as "L0H2 > L1H3".
        path: the two heads, each (layer, head), earliest first.
        contribution: what the pair adds to the logit of the predicted token at the last position.
        pattern: the product of the two heads' attention patterns.
        copying_score: the copying score of the pair's full OV circuit.
        error: relative difference, over all positions, between what the two heads add one after the other and what the
            virtual head adds (its pattern, with norm scales, times the input times its OV circuit).
    """

    label: str
    path: Path
    contribution: float
    pattern: Float[Tensor, "dst src"]
    copying_score: float
    error: float


def _require_factors(m: Measurements, layer: FrozenLayer) -> None:
    """Raise an error if an output of a head depends on more than its pattern, its OV circuit and norm scales.

    Raises:
        Unsupported: the layer has gates that differ between positions, or blocks rescale the residual stream.
    """
    what = f"virtual heads of {m.lm.name} as one pattern and one OV circuit"
    if changes_stream(m.lm):
        raise Unsupported(what, why="its blocks rescale or normalise the residual stream itself")
    if layer.gate is not None:
        raise Unsupported(
            what, why=f"in layer {layer.layer} a gate that differs between positions multiplies what the heads write"
        )


def _scaled(layer: FrozenLayer, head: int) -> Float[Tensor, "dst src"]:
    """Return a head's attention pattern, to which the norm scales before, in and after the attention are applied."""
    pattern = layer.pattern[0, head].double()
    pattern = pattern if layer.scale is None else pattern / layer.scale[0, :, 0].double()
    if layer.value_factor is not None:
        group = head // layer.lm.structure.blocks[layer.layer].attention.queries_per_kv
        pattern = pattern * layer.value_factor[0, min(group, layer.value_factor.shape[1] - 1), :, 0].double()
    scale = layer.branch.scale
    return pattern if scale is None else pattern / scale[0].double()


def _virtual_head(m: Measurements, frozen: FrozenRun, place: int) -> VirtualHead:
    path = (a, h), (b, k) = m.expansion.paths[place]
    first, second = frozen.layers[a], frozen.layers[b]
    for layer in (first, second):
        _require_factors(m, layer)
    x = frozen.constants_before(a)
    in_turn = second.heads(first.heads(x)[:, h])[0, k].double()
    pair = m.circuits.virtual_head((a, h), (b, k))
    moved = _scaled(second, k) @ (_scaled(first, h) @ x[0].double())
    ov = pair.ov("folded")
    at_once = (moved @ ov.left.double()) @ ov.right.double()
    return VirtualHead(
        m.expansion.labels[place], path, float(m.expansion.contribution(m.predicted)[place]),
        second.pattern[0, k] @ first.pattern[0, h], float(pair.copying(m.basis).score),
        float((at_once - in_turn).norm() / in_turn.norm().clamp_min(1e-30)),
    )  # fmt: skip


@once
@torch.no_grad()
def virtual_heads(m: Measurements) -> Numbers | None:
    """Measure the pairs of heads that add most to the predicted token's logit; None for a model of one layer.

    Raises:
        Unsupported: no head reads another head's output, or a pattern and an OV circuit do not fully describe a pair.
    """
    if m.lm.n_layers < 2:
        return None
    m.require_earlier_heads("virtual heads")
    size = m.expansion.contribution(m.predicted).abs().cpu()
    size = size.masked_fill(torch.tensor(m.expansion.orders) != 2, -1.0)
    places = size.topk(min(PAIRS, int((size >= 0).sum()))).indices.tolist()
    frozen = frozen_run(m.lm, m.example)
    found = [_virtual_head(m, frozen, place) for place in places]
    future = torch.ones_like(found[0].pattern, dtype=torch.bool).triu(1)
    return Numbers(
        pairs=found,
        n_pairs=m.expansion.orders.count(2),
        error=max(one.error for one in found),
        # Many model families compute the softmax in float32 even if the weights have a higher precision, so the
        # tolerance is at least that of float32.
        limit=max(tolerance(m.lm), SUM_TOLERANCE["float32"]),
        most=max(float(one.pattern.sum(dim=1).max()) for one in found),
        future=max(float(one.pattern.masked_fill(~future, 0.0).abs().max()) for one in found),
        norms=m.lm.structure.final_norm is not None,
    )


def judge_virtual_heads(n: Numbers) -> Judgement:
    """Judge whether a pair of heads acts as one head, with a pattern over earlier positions and one OV circuit."""
    scales = ", with the norm scales of the run," if n.norms else ""
    return judged(
        f"For the {len(n.pairs)} pairs of {n.n_pairs:,} that add most to one logit, the product of the two "
        f"patterns{scales} and the product of the two OV circuits give what the two heads add in turn with a "
        f"relative error of at most {format_error(n.error)}. The weights of a product pattern add up to at most "
        f"{format_number(n.most)} at a position; "
        f"{'none is' if n.future == 0 else f'up to {format_error(n.future)} are'} on later positions.",
        n.error < n.limit,
        n.most < 1 + n.limit,
        n.future < n.limit,
    )


def section(m: Measurements) -> Section | None:
    """Show the virtual heads that add most to the predicted token's logit, and where the first of them attends."""
    n = virtual_heads(m)
    if n is None:
        return None
    names = m.lm.token_strings(m.example[0])
    last, scores = len(names) - 1, m.copying.score
    most = [int(one.pattern[last].argmax()) for one in n.pairs]
    cells = {
        "pair": [one.label for one in n.pairs],
        "contribution": [one.contribution for one in n.pairs],
        "copying_score": [one.copying_score for one in n.pairs],
        "earlier_head_score": [number_or_none(scores[one.path[0]]) for one in n.pairs],
        "later_head_score": [number_or_none(scores[one.path[1]]) for one in n.pairs],
        "attention": [float(one.pattern[last, at]) for one, at in zip(n.pairs, most, strict=True)],
        "source_token": [names[at] for at in most],
    }
    predicted, first = visible(m.lm.token_strings([m.predicted])[0]), n.pairs[0]
    pattern = {
        "position": list(range(last + 1)),
        "token": names,
        "attention": first.pattern[last].tolist(),
    }
    text = (
        "Two heads in a row act as one, a virtual head: its pattern is the product of their patterns, its OV circuit "
        f"that of their OV circuits. Shown are the pairs that add most to the logit of `{predicted}`, the predicted "
        "token at the last position of the prompt, with the copying score of the pair and of each head alone, and the "
        "source that the pair attends to most. Whether virtual heads matter for the loss is measured with the orders "
        "of paths.",
    )
    exhibits = (
        exhibit(
            "virtual_heads", f"The virtual heads that add most to one logit, of {n.n_pairs:,}", cells, m.provenance,
            percent=("attention",), apart=(_SCORES,),
        ),
        exhibit(
            "virtual_head_pattern", f"Pattern of {first.label} at the last position", pattern, m.provenance,
            percent=("attention",), folded=True,
        ),
    )  # fmt: skip
    drawn = f"Where {first.label} attends from the last position"
    figure = drawing("text", "virtual_head_pattern", drawn, "token", "attention", percent=True, published=NOT_IN_PAPER)
    return Section("Virtual heads", text, exhibits, (figure,))


PARTS: tuple[Part[Measurements], ...] = (
    Part(
        section,
        (
            Quantity(
                "products of heads",
                "Products of attention heads behave much like attention heads themselves: a virtual head has its own "
                "pattern and its own OV circuit.",
                where="Virtual attention heads",
                what="For the pairs of heads that add most to a logit, relative error of pattern A_b A_a and OV "
                "circuit W_OV_a W_OV_b against what the two heads add in turn.",
                published="an identity",
                test="The error is below the tolerance of the model's dtype; the weights of the product pattern add up "
                "to at most 1 and are 0 on later positions. An identity of the architecture: random weights pass it "
                "too.",
                measure=virtual_heads,
                judge=judge_virtual_heads,
            ),
        ),
        name="virtual heads",
        when=lambda m: m.lm.n_layers > 1,
    ),
)
