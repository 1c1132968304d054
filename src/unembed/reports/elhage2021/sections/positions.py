"""Sections about what weights alone show: scores by offset, and virtual weights of single heads and memories."""

from __future__ import annotations

import torch

from unembed.attention.circuits import Circuits
from unembed.document.model import Exhibit, Figure, Section
from unembed.errors import Unsupported
from unembed.names import HeadBasis
from unembed.reports.elhage2021.published import NOT_IN_PAPER
from unembed.results import Provenance, Table

FARTHEST = 16
"""Offsets of the report's picture."""
_MEANS = (
    "The score of a source so many tokens back, whichever token it is: with a table of positions the mean over "
    "destinations of the position terms, with rotary positions that of the mean embedding with itself, turned by the "
    "offset; "
    "ALiBi added. Norms divide by what depends on the run and are left out."
)


def offsets_section(
    circuits: Circuits, layer: int, head: int, to: int, basis: HeadBasis, provenance: Provenance
) -> Section:
    """One head's score by offset, and where it would attend if positions were all it saw.

    Raises:
        OutOfRange: there is no such head.
        Unsupported: positions have no part in its scores.
    """
    lm = circuits.lm
    layer, head = lm.layer_and_head(layer, head)
    offsets = list(range(to + 1 if lm.n_ctx is None else min(to + 1, lm.n_ctx)))
    scores = circuits.scores_by_offset(layer, head, offsets, basis)
    columns: dict[str, list] = {"offset": offsets, "score": scores.tolist()}
    text = [_MEANS]
    if (by_weights := circuits.previous_token_by_weights(basis)) is not None:
        share = float(by_weights[layer, head])
        text.append(f"By positions alone the head attends to the token before with {share:.0%} of its weight.")
    table = Table(f"Scores of head L{layer}H{head} by offset", columns, provenance)
    figure = Figure(
        "offsets",
        "Score by offset",
        "line",
        "offsets",
        "offset",
        ("score",),
        x_label="tokens back",
        y_label="score",
        published=NOT_IN_PAPER,
    )
    return Section("Offsets", tuple(text), (Exhibit("offsets", table),), (figure,))


def positions_section(circuits: Circuits, basis: HeadBasis, provenance: Provenance) -> Section | None:
    """Every head's score by offset as one picture; None where positions have no part in any head's scores."""
    lm = circuits.lm
    offsets = list(range(FARTHEST + 1 if lm.n_ctx is None else min(FARTHEST + 1, lm.n_ctx)))
    rows: list[tuple[str, torch.Tensor]] = []
    for layer in lm.attention_layers:
        for head in range(lm.structure.blocks[layer].attention.n_heads):
            try:
                rows.append((f"L{layer}H{head}", circuits.scores_by_offset(layer, head, offsets, basis)))
            except Unsupported:
                continue
    if not rows:
        return None
    columns = {
        "head": [name for name, _ in rows for _ in offsets],
        "offset": [offset for _ in rows for offset in offsets],
        "score": [float(value) for _, scores in rows for value in scores],
        # Heads differ in scale, so that the picture shows where each one's scores lie in its own range.
        "of_range": [
            float((value - scores.mean()) / (scores - scores.mean()).abs().max().clamp_min(1e-30))
            for _, scores in rows
            for value in scores
        ],
    }
    text = [_MEANS, "The picture shows scores less the head's mean, over the head's largest deviation."]
    exhibits = [Exhibit("scores_by_offset", Table("Scores by offset", columns, provenance), "", ("of_range",), True)]
    if (by_weights := circuits.previous_token_by_weights(basis)) is not None:
        best = by_weights.nan_to_num(-torch.inf).flatten().topk(min(5, int((~by_weights.isnan()).sum())))
        places = [divmod(int(i), lm.n_heads) for i in best.indices]
        table = Table(
            "Attention to the token before, by positions alone",
            {"head": [f"L{a}H{h}" for a, h in places], "previous_token": best.values.tolist()},
            provenance,
        )
        exhibits.insert(0, Exhibit("previous_token_by_weights", table, percent=("previous_token",)))
        a, h = places[0]
        text.append(f"By positions alone head L{a}H{h} puts {float(best.values[0]):.0%} on the token before.")
    figure = Figure(
        "scores_by_offset",
        "Scores by offset, head by head",
        "heat",
        "scores_by_offset",
        "offset",
        ("of_range",),
        x_label="tokens back",
        y_label="head",
        rows="head",
        published=NOT_IN_PAPER,
    )
    return Section("Positions", tuple(text), tuple(exhibits), (figure,))


def virtual_weights_section(
    circuits: Circuits, part: str, top: int, basis: HeadBasis, provenance: Provenance
) -> Section:
    """Which parts read the output of one head or memory, and whose output it reads.

    Raises:
        InvalidInput: the name is neither of a head nor of a memory.
        OutOfRange: the model has no such part.
        Unsupported: the part neither writes nor reads through a fixed matrix.
    """
    lm, exhibits = circuits.lm, []
    missing: dict[str, str] = {}
    refused: list[Unsupported] = []
    for name, side, weights_of in (
        ("readers", "reader", circuits.readers_of),
        ("writers", "writer", circuits.writers_of),
    ):
        try:
            found = weights_of(part, top, basis)
        except Unsupported as error:
            refused.append(error)
            missing[f"{name} of {part}"] = error.why
            continue
        missing |= found.provenance.notes.get("missing", {})
        columns = {
            side: [getattr(weight, side) for weight in found],
            "input": [weight.input for weight in found],
            "ratio": [weight.ratio for weight in found],
            "times_random": [weight.ratio * lm.d_model**0.5 for weight in found],
            "cosine": [weight.cosine for weight in found],
        }
        title = f"What reads {part} most" if side == "reader" else f"What {part} reads most"
        if found:
            exhibits.append(Exhibit(name, Table(title, columns, provenance)))
    text = (
        "Ratio: the norm of the product of what the one writes and the other reads, over the product of their norms; "
        f"random directions have {lm.d_model**-0.5:.4f}. Of two memories also the cosine of value and key.",
    )
    if len(refused) == 2:
        raise refused[0]
    if missing:
        text = (*text, "Not among them: " + " ".join(f"{name}: {why}." for name, why in missing.items()))
    return Section("Virtual weights", text, tuple(exhibits))
