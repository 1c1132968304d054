"""The claims about heads that read heads: Q-, K- and V-composition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unembed.attention.behaviour.head_scores import ROLE
from unembed.attention.weights.composition import MODES, random_baseline
from unembed.document.intervals import Measured
from unembed.document.numbers import percent
from unembed.errors import Unsupported
from unembed.reports.claims import Claim, Judgement, Numbers, above, at_depth, verdict_of
from unembed.reports.elhage2021.measurements import Measurements

ONE_DIRECTION = 0.5
"""Share of a product's squared size from which on one direction makes it."""
STANDS_OUT = 5.0
"""Standard deviations above random circuits at which a composition is counted as strong."""


_COMPOSITION = "Two-layer models: three kinds of composition"


def _composition(m: Measurements) -> Numbers | None:
    if m.lm.n_layers < 2:
        return None
    m.require_earlier_heads("composition")
    for mode in MODES:
        if bool(m.compositions[mode].isnan().all()):
            why = next(iter(m.circuits.missing(m.basis).of(mode).values()))
            raise Unsupported(f"{mode.upper()}-composition of {m.lm.name} in the {m.basis} basis", why=why)
    peaks = {mode: _strongest(ratios) for mode, ratios in m.compositions.items()}
    _, writer, _ = peaks["k"]
    chance, deviation = random_baseline(m.lm, m.seed)
    most = peaks["k"][0] - chance
    return {
        "n_layers": m.lm.n_layers,
        "peaks": {mode: (value - chance, a, b) for mode, (value, a, b) in peaks.items()},
        "z": float((peaks["k"][0] - chance) / deviation),
        "previous": m.score_of("previous_token", writer),
        "n_reaching_half": {mode: int(((ratios - chance) > most / 2).sum()) for mode, ratios in m.compositions.items()},
    }


def _strongest(ratios: Tensor) -> tuple[float, tuple[int, int], tuple[int, int]]:
    """The largest entry of (layer, head, later layer, later head), with writer and reader."""
    value, at = ratios.nan_to_num(-torch.inf).flatten().max(dim=0)
    n_heads, n_layers = ratios.shape[1], ratios.shape[2]
    writer, reader = divmod(int(at), n_layers * n_heads)
    return float(value), divmod(writer, n_heads), divmod(reader, n_heads)


def judge_k_composition(z: float, previous: Measured, peaks: Mapping[str, Any], **_: Any) -> Judgement:
    """The strongest K-composition, and what its earlier head attends to."""
    value, writer, reader = peaks["k"]
    return Judgement(
        f"The strongest K-composition, L{writer[0]}H{writer[1]} read by L{reader[0]}H{reader[1]}, is {value:+.3f} "
        f"above random circuits, {z:.0f} standard deviations; L{writer[0]}H{writer[1]} attends to the previous "
        f"token with {percent(previous)}.",
        verdict_of(z >= STANDS_OUT, above(previous, ROLE)),
    )


def _judge_small(mode: str, n_layers: int, z: float, peaks: Mapping[str, Any], n: int) -> Judgement:
    value, writer, reader = peaks[mode]
    beside = f"{value / peaks['k'][0]:.0%} of" if 0 <= value < peaks["k"][0] else "not below"
    return Judgement(
        f"The strongest {mode.upper()}-composition, L{writer[0]}H{writer[1]} with L{reader[0]}H{reader[1]}, is "
        f"{value:+.3f} above random circuits, {beside} the strongest K-composition; "
        f"{n} {'pair reaches' if n == 1 else 'pairs reach'} half of that.",
        verdict_of(*at_depth(n_layers, 2, n == 0 if z >= STANDS_OUT else None)),
    )


def judge_q_composition(
    n_layers: int, z: float, peaks: Mapping[str, Any], n_reaching_half: Mapping[str, int], **_: Any
) -> Judgement:
    """Q-composition compared with the strongest K-composition."""
    return _judge_small("q", n_layers, z, peaks, n_reaching_half["q"])


def judge_v_composition(
    n_layers: int, z: float, peaks: Mapping[str, Any], n_reaching_half: Mapping[str, int], **_: Any
) -> Judgement:
    """V-composition compared with the strongest K-composition."""
    return _judge_small("v", n_layers, z, peaks, n_reaching_half["v"])


def _explain(m: Measurements, mode: str) -> str:
    """How many directions the strongest pair's product has."""
    _, (a, h), (b, k) = _strongest(m.compositions[mode])
    reads = m.circuits.ov(b, k, m.basis) if mode == "v" else m.circuits.qk(b, k, basis=m.basis)
    sizes = (m.circuits.ov(a, h, m.basis) @ (reads.T if mode == "k" else reads)).double().singular_values() ** 2
    share = float(sizes.max() / sizes.sum())
    pattern = float(m.scores.previous_token[a, h])
    return (
        f"One direction of {len(sizes)} holds {share:.0%} of the squared size of what L{b}H{k} reads of L{a}H{h}'s "
        f"output; L{a}H{h} attends to the previous token with {pattern:.0%}: "
        + ("one signal makes it large, not a rule for many tokens." if share > ONE_DIRECTION else "why is unexplained.")
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "K-composition", "composition",
        "The K-composition that stands out is with a previous-token head.",
        _COMPOSITION,
        "Frobenius ratio of every pair above random circuits, and the earlier head's attention to the previous token.",
        "in words",
        f"The strongest pair is at least {STANDS_OUT:g} standard deviations of random circuits above their mean, and "
        f"its earlier head attends to the previous token with at least {ROLE:.0%}, with its interval over sequences; "
        "uniform attention gives less than 5 %.",
        _composition, judge_k_composition,
    ),
    Claim(
        "Q-composition", "composition",
        "Q-composition is small in the two-layer model.",
        _COMPOSITION,
        "Frobenius ratio of writer and queries above random circuits, every pair.",
        "in words",
        "In a two-layer model whose strongest K-composition stands out, no pair reaches half of it.",
        _composition, judge_q_composition, lambda m: _explain(m, "q"),
    ),
    Claim(
        "V-composition", "composition",
        "V-composition is small in the two-layer model.",
        _COMPOSITION,
        "Frobenius ratio of writer and values above random circuits, every pair.",
        "in words",
        "In a two-layer model whose strongest K-composition stands out, no pair reaches half of it.",
        _composition, judge_v_composition, lambda m: _explain(m, "v"),
    ),
)  # fmt: skip
