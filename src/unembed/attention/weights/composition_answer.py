"""The pairs of heads that compose most, as sections of text, tables and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import torch

from unembed.analyses import Analysis, CircuitBasis, Cost, Needs, Option, Seed, Top
from unembed.attention.weights.composition import MODES
from unembed.attention.weights.missing_circuits import layers_by_reason, layers_in_words
from unembed.attention.weights.qk_ov import SOURCE
from unembed.document.model import Answer, Exhibit, Figure, Section
from unembed.errors import Unsupported
from unembed.names import HeadBasis, Mode
from unembed.results import Provenance, Table

if TYPE_CHECKING:
    from unembed.attention.circuits import Circuits

_NO_NUMBERS = "The paper's picture is of its own model; no numbers of it are at hand."


def composition_section(
    circuits: Circuits, modes: Sequence[Mode], top: int, basis: HeadBasis, seed: int, provenance: Provenance
) -> Section:
    """The pairs of heads that compose most, above random circuits, and all pairs as one table."""
    chance, deviation = circuits.random_composition(seed), circuits.random_composition_deviation(seed)
    exhibits, figures = [], []
    heads = circuits.lm.n_heads
    names = {"q": "Q-composition", "k": "K-composition", "v": "V-composition"}
    missing = circuits.missing(basis)
    absent: list[str] = []
    refused: list[Unsupported] = []
    for mode in modes:
        absent += [
            f"{names[mode]}: not available in {layers_in_words(of, circuits.lm)}, because {why}."
            for why, of in layers_by_reason({**missing.ov, **missing.of(mode)}).items()
        ]
        try:
            found = circuits.composition(mode, basis=basis).nan_to_num(0.0)  # only pairs above 0 are listed
        except Unsupported as error:
            refused.append(error)
            continue
        best = found.flatten().topk(min(top, int((found > 0).sum())))
        places = [_unravel(int(i), found.shape) for i in best.indices]
        columns = {
            "writer": [f"L{a}H{h}" for a, h, _, _ in places],
            "reader": [f"L{b}H{k}" for _, _, b, k in places],
            "ratio": best.values.tolist(),
            "above_random": (best.values - chance).tolist(),
            "z": circuits.composition_z(best.values, seed).tolist(),
        }
        beside = f"random circuits: {chance:.4f} ± {deviation:.4f}"
        title = f"{names[mode]}: the strongest of {int((found > 0).sum()):,} pairs ({beside})"
        exhibits.append(Exhibit(f"{mode}_composition", Table(title, columns, provenance), apart=(("z",),)))
        if circuits.lm.n_layers == len(circuits.lm.attention_layers) == 2:
            pairs = Table(
                f"{names[mode]} of every pair",
                {
                    "writer": [h for h in range(heads) for _ in range(heads)],
                    "reader": [k for _ in range(heads) for k in range(heads)],
                    "above_random": (found[0, :, 1] - chance).flatten().tolist(),
                },
                provenance,
            )
            exhibits.append(Exhibit(f"{mode}_composition_pairs", pairs, folded=True))
            figures.append(
                Figure(
                    f"{mode}_composition", f"{names[mode]} above random", "heat", f"{mode}_composition_pairs",
                    "reader", ("above_random",), x_label="head of layer 1", y_label="head of layer 0", rows="writer",
                    published=_NO_NUMBERS,
                )
            )  # fmt: skip
    if len(refused) == len(modes):
        raise refused[0]
    if others := [str(n) for n in range(circuits.lm.n_layers) if n not in circuits.lm.attention_layers]:
        absent.append(f"Layers without attention have no heads that compose: {', '.join(others)}.")
    # One scale for the three pictures, so that their colours compare.
    most = max((abs(v) for e in exhibits if e.folded for v in e.table.columns["above_random"]), default=0.0)
    figures = [replace(figure, y_range=(-most, most)) for figure in figures] if most else figures
    text = (
        "How much of what the writer's OV circuit puts into the stream the reader's queries (Q), keys (K) or values "
        "(V) take up: the Frobenius norm of the product over the product of the norms, with the mean for random "
        "Gaussian circuits of the same shapes, measured; z: in their standard deviations.",
        *dict.fromkeys(absent),
    )
    return Section("Composition", text, tuple(exhibits), tuple(figures))


def composition_answer(
    circuits: Circuits,
    *,
    kind: Annotated[
        Literal["q", "k", "v", "all"], Option("Which input of the reader: queries, keys or values.")
    ] = "all",
    basis: CircuitBasis = None,
    top: Top = 15,
    seed: Seed = 0,
) -> Answer:
    """List the pairs of heads in which the later one reads most of what the earlier one writes."""
    chosen = circuits.known_basis(basis)
    provenance = circuits.lm.provenance(basis=chosen, seed=seed)
    modes: tuple[Mode, ...] = MODES if kind == "all" else (kind,)
    made = composition_section(circuits, modes, top, chosen, seed, provenance)
    return Answer(f"Composition in {circuits.lm.name}", (made,), provenance)


def _unravel(index: int, shape: torch.Size) -> tuple[int, ...]:
    place = []
    for size in reversed(shape):
        index, at = divmod(index, size)
        place.append(at)
    return tuple(reversed(place))


ANALYSIS = Analysis(
    "circuits composition",
    composition_answer,
    Needs.CIRCUITS,
    Cost.SECONDS,
    example="unembed circuits composition --kind k",
    model="attn-2l",
    source=SOURCE,
)
