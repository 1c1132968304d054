"""Claims about single heads: their outputs add up, no head of a layer depends on another, and a source has one effect.

"One effect" means that what a head writes for a source token is the same vector at every destination, multiplied by the
attention weight. All three claims follow from the architecture. They are measured on one prompt, from what the model
itself computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.behaviour.source_effects import effects_in_run
from unembed.attention.paths.linearized import FrozenRun, frozen_run
from unembed.attention.weights.folded_weights import require_heads
from unembed.attention.weights.paper import NOT_IN_PAPER
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Section
from unembed.errors import Unsupported
from unembed.names import head_name
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, judged, once
from unembed.results import format_error, visible
from unembed.stream.capture_points import has_point
from unembed.stream.decomposition import Branch, attention_branch, source_values, tolerance
from unembed.stream.interventions import scale_head
from unembed.stream.run import Run, run

DESTINATIONS = 6
"""Number of destinations shown for one source."""
RAISED = 5
"""Number of tokens listed for each destination: those whose logits the source raises most there."""


@dataclass(frozen=True)
class LayerOfHeads:
    """Errors of treating the heads of one layer as independent, on one prompt. All errors and changes are relative.

    Attributes:
        sum_error: difference between what the attention adds and the sum of what the heads and biases add.
        removed: the head whose output was set to 0: the one with the largest output.
        removal_error: difference between that head's output and the change of what the attention adds.
        others_change: the largest change of another head's output when that head is removed.
        source_error: difference between each head's output and its attention weights times one vector per source; None
            if the layer's values are not one vector per source.
        why: the reason why `source_error` is None; empty otherwise.
        normed: True if a norm follows the sum of the heads' outputs.
    """

    layer: int
    n_heads: int
    sum_error: float
    removed: int
    removal_error: float
    others_change: float
    source_error: float | None
    why: str
    normed: bool


def _relative(found: Tensor, whole: Tensor) -> float:
    return float((found - whole).double().norm() / whole.double().norm().clamp_min(1e-30))


def _layer_of_heads(m: Measurements, seen: Run, layer: int) -> LayerOfHeads:
    lm, z = m.lm, seen.at("z", layer)[0]
    site, branch = lm.structure.blocks[layer].attention, attention_branch(lm, layer, z)
    written = _written(m, layer, z, branch)  # (pos, head, d_model)
    removed = int(written.norm(dim=(0, 2)).argmax())
    total, added = written.sum(dim=1), seen.at("attn_out", layer)[0]
    if (bias := lm.weights.b_O[layer]) is not None:
        total = total + branch.written(bias.to(total.dtype).expand_as(total))
    for constant in (branch.bias, site.constant):
        total = total if constant is None else total + constant
    # If patterns are captured, the model uses eager attention instead of a fused kernel. The run without edits captured
    # them, so this one does too: the other kernel would round differently, which would look like an effect of the edit.
    points, edits = ("z", "attn_out", "pattern"), [scale_head(layer, removed, 0.0)]
    without = run(lm, m.example, points, edits, logits=False, layers=[n for n in lm.attention_layers if n <= layer])
    change = added - without.at("attn_out", layer)[0]
    others = [head for head in range(z.shape[1]) if head != removed]
    moved = (without.at("z", layer)[0] - z)[:, others]
    source_error, why = None, ""
    try:
        values = source_values(lm, seen, layer)  # (head, src, d_head)
        mixed = (seen.at("pattern", layer)[0].to(values.dtype) @ values).transpose(0, 1)
        source_error = _relative(mixed, z)
    except Unsupported as refused:
        why = refused.why
    return LayerOfHeads(
        layer, z.shape[1], _relative(total, added), removed, _relative(change, written[:, removed]),
        float(moved.abs().max() / z.abs().max().clamp_min(1e-30)) if others else 0.0, source_error, why,
        branch.norm is not None,
    )  # fmt: skip


def _written(
    m: Measurements, layer: int, z: Float[Tensor, "pos head d_head"], branch: Branch
) -> Float[Tensor, "pos head d_model"]:
    """Return what each head adds to the residual stream, without biases.

    If a norm follows the heads, its scale is fixed at the value in the run.
    """
    written = torch.einsum("phd,hdm->phm", z, m.lm.weights.W_O[layer].to(z.dtype))
    if branch.norm is not None and branch.scale is not None:
        written = branch.norm.frozen(written, branch.scale[:, None])
    return written * branch.multiplier


@once
@torch.no_grad()
def layers_of_heads(m: Measurements) -> Numbers:
    """Measure on the example prompt how exactly the heads of each layer are independent of one another.

    Raises:
        Unsupported: a layer does not compute a separate output for each head.
    """
    require_heads(m.lm, "heads as independent terms")
    for n in m.lm.attention_layers:
        if not has_point(m.lm, "z", n):
            why = m.lm.structure.blocks[n].attention.heads_missing
            raise Unsupported(f"the output of each head in layer {n} of {m.lm.name}", why=why)
    values = any(m.lm.structure.blocks[n].attention.values is not None for n in m.lm.attention_layers)
    seen = run(m.lm, m.example, ("z", "attn_out", "pattern", *(("values",) if values else ())), logits=False)
    return Numbers(
        layers=[_layer_of_heads(m, seen, n) for n in m.lm.attention_layers],
        limit=tolerance(m.lm),
        n_tokens=m.example.shape[1],
    )


def independence(m: Measurements) -> Numbers:
    """Return the errors of treating the outputs of heads as independent terms of a sum.

    Raises:
        Unsupported: a norm follows the sum of the heads' outputs, so that each head changes what the others add.
    """
    found = layers_of_heads(m)
    normed = [one.layer for one in found.layers if one.normed]
    if normed:
        raise Unsupported(
            f"independence of heads in {m.lm.name}",
            why=f"in {len(normed)} of {len(found.layers)} layers a norm follows the sum of the heads' outputs and "
            "rescales it, so removing one head changes what the others add",
        )
    return found


def judge_independence(n: Numbers) -> Judgement:
    """Judge whether the heads' outputs add up in every layer, and whether removing one head changes no other head."""
    heads = sum(one.n_heads for one in n.layers)
    total, removal, others = (
        max(getattr(one, name) for one in n.layers) for name in ("sum_error", "removal_error", "others_change")
    )
    return judged(
        f"On {n.n_tokens} tokens the outputs of the {heads} heads, with biases, give what each of {len(n.layers)} "
        f"layers adds with a relative error of at most {format_error(total)}. Setting the largest head of a layer to "
        f"0 takes away its output and nothing else, with an error of at most {format_error(removal)}; no other head "
        "of the layer changes" + (f" by more than {format_error(others)} of the largest output." if others else "."),
        total < n.limit,
        removal < n.limit,
        others < n.limit,
    )


def one_effect(m: Measurements) -> Numbers:
    """Return the errors of computing each head's output as its attention weights times one vector per source.

    Raises:
        Unsupported: in some layer, the value that a head reads from a source is not the same vector for all
            destinations.
    """
    found = layers_of_heads(m)
    for one in found.layers:
        if one.source_error is None:
            raise Unsupported(f"one vector per source token in layer {one.layer} of {m.lm.name}", why=one.why)
    return found


def judge_one_effect(n: Numbers) -> Judgement:
    """Judge whether the destination affects what heads write for a source only through the attention weight."""
    error = max(one.source_error for one in n.layers)
    return judged(
        f"In {len(n.layers)} layers each head's output at all {n.n_tokens} destinations is its attention weights "
        "times one vector per source, "
        f"{f'with a relative error of at most {format_error(error)}' if error else 'without any error'}.",
        error < n.limit,
    )


def _shown_source(m: Measurements, frozen: FrozenRun) -> tuple[tuple[int, int], int, list[int]]:
    """Return the head that copies most, a source that it attends to from several destinations, and these destinations.

    The first position is never chosen as the source, because many heads attend to it when no other token is relevant.
    Destinations are sorted by position.
    """
    scores = m.scores.copying.nan_to_num(-torch.inf)
    layer, head = divmod(int(scores.argmax()), scores.shape[1])
    layer = layer if layer in frozen.layers else m.first_layer
    pattern = frozen.layers[layer].pattern[0, head].clone()
    pattern[:, 0] = 0.0
    wanted = min(DESTINATIONS, max(1, len(pattern) - 1))
    # Choose a source to which several destinations attend: the one whose third-largest attention weight is the largest.
    source = int(pattern.topk(min(3, wanted), dim=0).values[-1].argmax())
    chosen = pattern[:, source].topk(wanted)
    return (layer, head), source, sorted(chosen.indices[chosen.values > 0].tolist())


@torch.no_grad()
def effect_table(m: Measurements) -> tuple[str, str, dict[str, list]]:
    """Return the names of a head and of a source token, and columns that compare the destinations that attend to it.

    All effects are on the logit of one token: the token that the source raises most at its first destination.
    """
    frozen = frozen_run(m.lm, m.example)
    place, source, destinations = _shown_source(m, frozen)
    names = m.lm.token_strings(m.example[0])
    x, layer = frozen.run.at("resid_pre", place[0]), frozen.layers[place[0]]
    x = x if layer.entry_to_end is None else x * layer.entry_to_end.to(x.dtype)
    columns: dict[str, list] = {
        name: []
        for name in ("position", "token", "attention", "effect", "norm_scale", "at_full_attention", "raised_tokens")
    }
    token = None
    for at in destinations:
        logits = frozen.read_at(layer.sources_at(x, at)[source, :, place[1]], at)[0] @ m.lm.weights.W_U.to(x.dtype)
        top = logits.masked_fill(m.lm.unlisted.to(logits.device), -torch.inf).topk(RAISED).indices
        token = int(top[0]) if token is None else token
        effects = effects_in_run(frozen, place, at, token)
        weight, effect = float(effects.attention[source]), float(effects.effect[source])
        scale = 1.0 if m.lm.structure.final_norm is None else float(frozen.final[0, at])
        columns["position"].append(at)
        columns["token"].append(names[at])
        columns["attention"].append(weight)
        columns["effect"].append(effect)
        columns["norm_scale"].append(scale)
        columns["at_full_attention"].append(effect * scale / weight)
        columns["raised_tokens"].append(m.lm.token_strings(top))
    return head_name(*place), visible(names[source]), columns


def section(m: Measurements) -> Section:
    """Show the errors of treating heads as independent terms, and the effects of one source at several destinations."""
    found = layers_of_heads(m)
    rows = found.layers
    cells = {
        "layer": [one.layer for one in rows],
        "sum_error": [one.sum_error for one in rows],
        "removed": [head_name(one.layer, one.removed) for one in rows],
        "removal_error": [one.removal_error for one in rows],
        "others_change": [one.others_change for one in rows],
        "source_error": [one.source_error for one in rows],
    }
    text = [
        "All errors and changes are relative. The sum error is the difference between what the attention adds and the "
        "sum of the outputs of all heads and the biases. For the removal error, the output of one head is set to 0: it "
        "is the difference between that output and the change of what the attention adds. The change of others is the "
        "largest change of another head of the layer when this head is removed. The source error is the difference "
        "between each head's output and its attention weights times one vector per source.",
    ]
    if any(one.normed for one in rows):
        text.append(
            "A norm follows the heads of this model. With the norm's scale from the run their outputs add up, but "
            "removing one head changes that scale, and so what the others add."
        )
    errors = exhibit("heads_add_up", "Heads as independent terms", cells, m.provenance, folded=len(rows) > 4)
    head, source, columns = effect_table(m)
    text.append(
        f"One source at several destinations: head {head} attends to `{source}` from the positions in the table. The "
        "effect is what this adds to the logit of the token that it raises most, above the mean of all tokens; the "
        "final norm divides it by the norm's scale at the destination. The effect at full attention is the effect "
        "times that scale, divided by the attention weight. It is the same at every destination, and so are the tokens "
        "that are raised."
    )
    table = exhibit(
        "source_at_destinations", f"What head {head} makes of `{source}`".replace("`", ""), columns, m.provenance,
        percent=("attention",),
    )  # fmt: skip
    figure = drawing(
        "bar", "source_at_destinations", "Effect at full attention, times the final norm's scale", "position",
        "at_full_attention", published=NOT_IN_PAPER,
    )  # fmt: skip
    return Section("Heads are independent", tuple(text), (errors, table), (figure,))


PARTS: tuple[Part[Measurements], ...] = (
    Part(
        section,
        (
            Quantity(
                "independence of heads",
                "Attention heads operate independently, and each adds its output to the residual stream.",
                where="Attention heads are independent and additive",
                what="Relative error, on one prompt, of the sum of all heads' outputs against what the attention adds, "
                "and of the change when one head is set to 0 against that head's output.",
                published="an identity",
                test="In every layer both errors and the change of the other heads are below the tolerance of the "
                "model's dtype. An identity of the architecture: random weights pass it too.",
                measure=independence,
                judge=judge_independence,
            ),
            Quantity(
                "same effect at all destinations",
                "If several destinations attend to the same source with the same weight, the source influences the "
                "logits in the same way at each.",
                where="One-layer models: the effect of source tokens on logits",
                what="Relative error of each head's output at all positions, written as attention weights times one "
                "vector per source.",
                published="an identity",
                test="The error is below the tolerance of the model's dtype in every layer. An identity of the "
                "architecture: random weights pass it too.",
                measure=one_effect,
                judge=judge_one_effect,
            ),
        ),
        name="heads one at a time",
        absent="Heads are independent",
    ),
)
