"""Appendix A.1 and A.3: the effect of the final norm (Fig. 4), and the ten largest sub-updates' share (Fig. 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from unembed.document.exhibits import by_layer, exhibit, means
from unembed.document.intervals import Measured, mean_of
from unembed.document.model import Reference, Section
from unembed.document.numbers import percent
from unembed.memories.event_sample import DOMINANT
from unembed.memories.values import written_values
from unembed.reports.geva2022 import published
from unembed.reports.geva2022.measurements import Measurements
from unembed.reports.published import PRINTED, Origin
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, above, below, judged, most_of, once, within
from unembed.results import format_number, format_percent

_OVERLAPS = {
    "values": "value, both readings",
    "random": "random vector, both readings",
    "value_with_random": "value raw, random vector through the norm",
    "random_with_value": "random vector raw, value through the norm",
}


@once
def norm(m: Measurements) -> Numbers:
    """Measure the overlap of top tokens with and without the final norm, for value vectors and for random vectors."""
    overlaps = {name: mean_of(m.overlaps[name].ravel(), seed=m.seed, share=True) for name in _OVERLAPS}
    return Numbers(has_norm=m.lm.structure.final_norm is not None, **overlaps)


def judge_norm(n: Numbers) -> Judgement:
    """Judge whether value vectors mostly keep their top tokens without the norm, and share few with random vectors."""
    if not n.has_norm:
        return Judgement("The model has no final norm, so both readings are the same.", "not applicable")
    return judged(
        f"{percent(n.values)} of the top tokens of a value are the same with and without the norm. A value and a "
        f"random vector share {percent(n.value_with_random)} with the norm on the random vector and "
        f"{percent(n.random_with_value)} with it on the value; random vectors keep {percent(n.random)} of their own.",
        above(n.values, 0.5),
        max(n.value_with_random.high, n.random_with_value.high) < 0.05,
    )


def explain_norm(m: Measurements) -> str | None:
    """State how much the gain of the final norm differs between channels; None without a final norm."""
    norm = m.lm.structure.final_norm
    if norm is None:
        return None
    low, high = (float(q) for q in np.quantile(norm.gain.float().abs().cpu().numpy(), (0.05, 0.95)))
    gain = f"goes from {format_number(low)} to {format_number(high)} (5 and 95 % of the channels)"
    if norm.centred:
        return f"The norm subtracts the mean over channels, scales a vector and multiplies it by a gain that {gain}."
    return (
        f"Apart from its gain the norm only scales a vector, which keeps its top tokens; the gain {gain} and reorders "
        "the tokens of values as it does those of random vectors."
    )


NORM: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "norm keeps concepts",
        "LN does not change the projection substantially, in contrast to random values.",
        where="App. A.1, Fig. 4",
        what="intersection over union of the 30 top tokens with and without the final norm",
        published="a large overlap for values, hardly any with random values (the numbers are not in the text at hand)",
        test="Above 1/2 for a value and itself, below 5 % for a value and a random vector, both ways. Without a final "
        "norm there is nothing to compare.",
        measure=norm,
        judge=judge_norm,
        explain=explain_norm,
    ),
)


def norm_section(m: Measurements) -> Section:
    """Show the overlap of top tokens with and without the final norm (App. A.1)."""
    cells = {"layer": range(m.lm.n_layers), **{name: means(m.overlaps[name], m.seed) for name in _OVERLAPS}}
    y_label, no_values = "intersection over union", published.NO_VALUES
    title = "Overlap of the top 30 tokens with and without the final norm (Fig. 4)"
    return Section(
        "The norm before the readout (App. A.1)",
        (
            "The overlap is the intersection over union of the 30 top tokens of a vector that is read raw, `E v`, and "
            "of one that is read through the final norm, `E LN(v)`, with its gain and bias. The two are the same "
            "vector, or a value and a random vector. Random vectors have the mean and the standard deviation of the "
            "layer's values.",
        ),
        (exhibit("fig4", title, cells, m.provenance, percent=tuple(_OVERLAPS)),),
        (by_layer("fig4", "Overlap of top tokens", "fig4", _OVERLAPS, y_label, y_range=(0, 1), published=no_values),),
    )


@once
def contribution(m: Measurements) -> Numbers:
    """Measure what share of the sum of |m| |v| the ten largest (dominant) sub-updates make up.

    Also return the share that ten sub-updates would make up if all were equally large.
    """
    share = m.sample.contribution
    return Numbers(
        layers=means(share, m.seed),
        even=sum(DOMINANT / m.lm.n_memories_of(layer) for layer in range(m.lm.n_layers)) / m.lm.n_layers,
        n_memories=m.lm.memories_a_layer,
    )


@once
def coefficients(m: Measurements) -> Numbers:
    """Measure the share of negative coefficients among the ten dominant sub-updates."""
    negative = (m.sample.coefficients < 0).mean(axis=-1)  # (layer, example)
    return Numbers(layers=means(negative, m.seed), whole=mean_of(negative.mean(axis=0), seed=m.seed, share=True))


def _is_gated(m: Measurements) -> bool:
    return any(m.lm.is_signed(n) for n in range(m.lm.n_layers))


def _where_signed(m: Measurements) -> Numbers | None:
    if _is_gated(m):
        return None
    relu = m.sample.coefficients.min() >= 0 and m.lm.feed_forward(0).activation == "relu"
    return None if relu else coefficients(m)


def _middle(layers: Sequence[Measured]) -> Measured:
    """Return the median of the layers' values; for an even number, the larger of the two middle values."""
    return sorted(layers, key=lambda x: x.value)[len(layers) // 2]


def judge_large_contribution(n: Numbers) -> Judgement:
    """Judge whether the ten largest sub-updates make up more than a tenth of the sum in some layers but not in all."""
    layers: list[Measured] = n.layers
    over = [i for i, x in enumerate(layers) if x.low > 0.1]
    undecided = any(x.low <= 0.1 <= x.high for x in layers)
    which = f" ({', '.join(map(str, over))})" if over else ""
    return judged(
        f"The ten dominant sub-updates make up more than 10 % of the sum in {len(over)} of {len(layers)} "
        f"layers{which}; the most is {percent(most_of(layers))}.",
        True if 0 < len(over) < len(layers) else None if undecided and not over else False,
    )


def explain_contribution(m: Measurements) -> str:
    """State how much of the difference from the paper is due to the number of memories in a layer.

    Also state what share of the sum of |m| |v| the largest sub-update alone makes up.
    """
    found, in_paper = contribution(m), DOMINANT / 4096
    middle = _middle(found.layers).value
    shares = m.sample.contribution * _first_of_ten(m)
    return (
        f"A layer has {m.lm.memories_a_layer} memories, the paper's models 4,096: ten are {format_percent(found.even)} "
        f"of them instead of {format_percent(in_paper)}, a factor of {format_number(found.even / in_paper)} of the "
        f"{format_number(middle / published.CONTRIBUTION)} between {format_percent(middle)} and the published 5 %. The "
        f"largest alone makes up {format_percent(float(np.median(shares.mean(axis=1))))} of the sum in the median "
        "layer."
    )


def _first_of_ten(m: Measurements) -> Float[np.ndarray, "layer example"]:
    """Return the largest |m| |v| of the ten dominant sub-updates, as a share of the sum of |m| |v| over the ten."""
    lengths = [written_values(m.lm, n).float().norm(dim=-1).cpu().numpy() for n in range(m.sample.n_layers)]
    of_ten = np.stack(
        [np.abs(m.sample.coefficients[n]) * lengths[n][m.sample.dominant[n]] for n in range(m.sample.n_layers)]
    )
    return of_ten.max(axis=-1) / np.maximum(of_ten.sum(axis=-1), np.finfo(np.float32).tiny)


CONTRIBUTION: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "contribution",
        "The contribution of the ten dominant sub-updates is typically around 5 % of the total.",
        where="App. A.3, Fig. 6",
        what="share of the ten in the sum of |m| |v|, median layer",
        published="about 5 %, of 0.24 % of the value vectors",
        test="Between 2.5 and 10 %, a factor of two around the published share; bootstrap over examples.",
        measure=contribution,
        judge=lambda n: judged(
            f"Ten of {n.n_memories} sub-updates ({format_percent(n.even)}) make up {percent(_middle(n.layers))} of the "
            f"sum in the median layer, {format_number(_middle(n.layers).value / n.even)} times an even share.",
            within(_middle(n.layers), 0.025, 0.1),
        ),
        explain=explain_contribution,
        origins=(
            Origin("share of the ten dominant sub-updates", "about 5 %, over 10 % in some layers", PRINTED, "App. A.3"),
        ),
    ),
    Quantity(
        "large contribution",
        "In some layers the contribution of the ten dominant sub-updates reaches over 10 %.",
        where="App. A.3, Fig. 6",
        what="layers in which the share is above 10 %",
        published="layers 8 to 16 of WikiLM, layer 1 of GPT2",
        test="In at least one layer, but not in all, the interval lies above 10 %; bootstrap over examples.",
        measure=contribution,
        judge=judge_large_contribution,
        explain=explain_contribution,
        references={"fig6": (Reference("some layers reach (published)", (0.1,)),)},
    ),
    Quantity(
        "negative coefficients",
        "Sub-updates with negative coefficients do in some cases appear among the ten dominant ones (GPT2).",
        where="App. A.3",
        what="share of negative coefficients among the ten",
        published="some cases; no number",
        test="Above 0.1 % (some) and below half (cases, not the rule); bootstrap over examples. ReLU has none, and in "
        "gated layers the sign is a convention: neither is judged.",
        measure=_where_signed,
        judge=lambda n: judged(
            f"{percent(n.whole)} of the ten dominant coefficients are negative, at most "
            f"{percent(most_of(n.layers))} in a layer.",
            above(n.whole, 0.001),
            below(n.whole, 0.5),
        ),
    ),
)


def contribution_section(m: Measurements) -> Section:
    """Show the share of the ten largest sub-updates in all contributions (App. A.3)."""
    cells = {
        "layer": range(m.sample.n_layers),
        "dominant": [replace(x, published=published.CONTRIBUTION) for x in contribution(m).layers],
        "random": means(m.sample.random_contribution, m.seed),
    }
    shown, text = (
        ["dominant", "random"],
        "A sub-update's contribution is |m| times the length of its value, before any norm that follows the FFN.",
    )
    if _is_gated(m):
        text += (
            " Layers are gated, so the sign of a coefficient is only a convention, and negative ones are not counted."
        )
    else:
        cells["negative"] = coefficients(m).layers
        shown.append("negative")
        text += " `negative` is the share of negative coefficients among the ten dominant ones."
    series = {"dominant": "10 dominant", "random": "10 random"}
    title = "Share of the 10 dominant sub-updates in the sum of |m| |v| (Fig. 6)"
    return Section(
        "Contribution of the dominant sub-updates (App. A.3)",
        (text,),
        (exhibit("fig6", title, cells, m.provenance, percent=tuple(shown)),),
        (
            by_layer(
                "fig6", "Share of ten sub-updates in each FFN update", "fig6", series, "share of the sum of |m| |v|"
            ),
        ),
    )


PARTS = (Part(norm_section, NORM), Part(contribution_section, CONTRIBUTION))
