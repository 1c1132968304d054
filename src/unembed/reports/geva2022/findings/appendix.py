"""The claims of appendix A: the norm before the readout, and the share of dominant sub-updates."""

from __future__ import annotations

from typing import Any

from unembed.document.intervals import Measured, mean_of
from unembed.document.numbers import format_number, format_percent, percent
from unembed.memories.event_sample import DOMINANT
from unembed.reports.claims import Claim, Judgement, Numbers, above, below, verdict_of, within
from unembed.reports.geva2022.measurements import Measurements
from unembed.reports.geva2022.published import CONTRIBUTION


def _norm(m: Measurements) -> Numbers:
    names = ("values", "random", "value_with_random", "random_with_value")
    return {
        "has_norm": m.lm.structure.final_norm is not None,
        **{name: mean_of(m.overlaps[name].ravel(), seed=m.seed, share=True) for name in names},
    }


def judge_norm(
    has_norm: bool, values: Measured, random: Measured, value_with_random: Measured, random_with_value: Measured
) -> Judgement:
    """Overlap with and without the norm, compared with the overlap with random vectors."""
    if not has_norm:
        return Judgement("The model has no final norm, so both readings are the same.", "inconclusive")
    here = (
        f"{percent(values)} of the top tokens of a value are the same with and without the norm. A value and a random "
        f"vector share {percent(value_with_random)} with the norm on the random vector and "
        f"{percent(random_with_value)} with it on the value; random vectors keep {percent(random)} of their own."
    )
    contrast = max(value_with_random.high, random_with_value.high)
    return Judgement(here, verdict_of(above(values, 0.5), contrast < 0.05))


def _contribution(m: Measurements) -> Numbers:
    sample = m.sample
    return {
        "layers": [mean_of(row, seed=m.seed, share=True) for row in sample.contribution],
        "whole": mean_of(sample.contribution.mean(axis=0), seed=m.seed, share=True),
        "even": _even_share(m),
        "n_memories": m.lm.memories_a_layer,
    }


def _even_share(m: Measurements) -> float:
    """What ten memories would make up if all contributed the same, on average over layers."""
    lm = m.lm
    return sum(DOMINANT / lm.n_memories_of(layer) for layer in range(lm.n_layers)) / lm.n_layers


def _middle(layers: list[Measured]) -> Measured:
    """The median layer; of an even number of layers the upper of the two in the middle."""
    return sorted(layers, key=lambda x: x.value)[len(layers) // 2]


def judge_contribution(layers: list[Measured], even: float, n_memories: str, **_: Any) -> Judgement:
    """The contribution of the ten dominant sub-updates."""
    middle = _middle(layers)
    here = (
        f"Ten of {n_memories} sub-updates ({format_percent(even)}) make up {percent(middle)} of the sum in the "
        f"median layer, {format_number(middle.value / even)} times an even share."
    )
    return Judgement(here, verdict_of(within(middle, 0.025, 0.1)))


def judge_large_contribution(layers: list[Measured], **_: Any) -> Judgement:
    """Layers in which the ten make up more than a tenth."""
    over = [n for n, x in enumerate(layers) if x.low > 0.1]
    open_ = [n for n, x in enumerate(layers) if x.low <= 0.1 <= x.high]
    which = f" ({', '.join(map(str, over))})" if over else ""
    here = (
        f"The ten dominant sub-updates make up more than 10 % of the sum in {len(over)} of {len(layers)} "
        f"layers{which}; the most is {percent(max(layers, key=lambda x: x.value))}."
    )
    some = 0 < len(over) < len(layers)
    return Judgement(here, verdict_of(True if some else None if open_ and not over else False))


def _negative(m: Measurements) -> Numbers | None:
    if m.sample.coefficients.min() >= 0 and m.lm.feed_forward(0).activation == "relu":
        return None
    negative = (m.sample.coefficients < 0).mean(axis=-1)  # layer example
    return {
        "layers": [mean_of(row, seed=m.seed, share=True) for row in negative],
        "whole": mean_of(negative.mean(axis=0), seed=m.seed, share=True),
    }


def judge_negative(whole: Measured, layers: list[Measured]) -> Judgement:
    """Negative coefficients among the ten dominant sub-updates."""
    most = max(layers, key=lambda x: x.value)
    here = f"{percent(whole)} of the ten dominant coefficients are negative, at most {percent(most)} in a layer."
    return Judgement(here, verdict_of(above(whole, 0.001), below(whole, 0.5)))


def explain_contribution(m: Measurements) -> str:
    """How much of the difference the number of memories can account for."""
    even, in_paper = _even_share(m), DOMINANT / 4096
    middle = _middle(_contribution(m)["layers"]).value
    return (
        f"A layer has {m.lm.memories_a_layer} memories, the paper's models 4,096: ten are {format_percent(even)} of "
        f"them instead of {format_percent(in_paper)}, a factor of {format_number(even / in_paper)} of the "
        f"{format_number(middle / CONTRIBUTION)} between {format_percent(middle)} and the published 5 %. The rest is "
        "unexplained."
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "norm keeps concepts",
        "norm",
        "LN does not change the projection substantially, in contrast to random values.",
        "App. A.1, Fig. 4",
        "intersection over union of the 30 top tokens with and without the final norm",
        "a large overlap for values, hardly any with random values (the numbers are not in the text at hand)",
        "Above 1/2 for a value and itself, below 5 % for a value and a random vector, both ways. Without a final norm "
        "the test is inconclusive.",
        _norm,
        judge_norm,
    ),
    Claim(
        "contribution",
        "contribution",
        "The contribution of the ten dominant sub-updates is typically around 5 % of the total.",
        "App. A.3, Fig. 6",
        "share of the ten in the sum of |m| |v|, median layer",
        "about 5 %, of 0.24 % of the value vectors",
        "Between 2.5 and 10 %, a factor of two around the published share; bootstrap over examples.",
        _contribution,
        judge_contribution,
        explain_contribution,
    ),
    Claim(
        "large contribution",
        "contribution",
        "In some layers the contribution of the ten dominant sub-updates reaches over 10 %.",
        "App. A.3, Fig. 6",
        "layers in which the share is above 10 %",
        "layers 8 to 16 of WikiLM, layer 1 of GPT2",
        "In at least one layer, but not in all, the interval lies above 10 %; bootstrap over examples.",
        _contribution,
        judge_large_contribution,
        explain_contribution,
    ),
    Claim(
        "negative coefficients",
        "contribution",
        "Sub-updates with negative coefficients do in some cases appear among the ten dominant ones (GPT2).",
        "App. A.3",
        "share of negative coefficients among the ten",
        "some cases; no number",
        "Above 0.1 % (some) and below half (cases, not the rule); bootstrap over examples. ReLU has none and is not "
        "judged.",
        _negative,
        judge_negative,
    ),
)
