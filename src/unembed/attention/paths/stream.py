"""Show the residual stream as a channel: who reads whom, how many dimensions each part uses, which parts erase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from unembed.attention.paths.erasure import ErasingHead, ErasingMemory, MemoryManagement, memory_management
from unembed.attention.paths.geometry import Subspaces, VirtualWeights, subspaces, virtual_weights
from unembed.attention.weights.paper import NOT_IN_PAPER, SAMPLE, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.document.model import Answer, Exhibit, Figure, Section
from unembed.names import head_name
from unembed.options import CircuitBasis, Corpus, Option, Top
from unembed.results import Provenance, Table


def stream_section(
    circuits: HeadMatrices,
    weights: VirtualWeights,
    spaces: Subspaces,
    memory: MemoryManagement,
    provenance: Provenance,
    top: int = 20,
) -> Section:
    """Describe which parts read which through the stream, how many dimensions each uses, and which erase."""
    ratio = weights.ratio.cpu()
    pairs = [
        (weights.writers[i], weights.readers[j], float(ratio[i, j]))
        for i in range(len(weights.writers))
        for j in range(len(weights.readers))
        if not math.isnan(float(ratio[i, j]))
    ]
    best = sorted(pairs, key=lambda p: -p[2])[:top]
    virtual = Table(
        f"Virtual weights: the strongest of {len(pairs):,} pairs (random directions: {weights.chance:.4f})",
        {
            "writer": [p[0] for p in best],
            "reader": [p[1] for p in best],
            "ratio": [p[2] for p in best],
            "times_random": [p[2] / weights.chance for p in best],
        },
        provenance,
    )
    n = spaces.n_writers
    ranks = Table(
        "Directions in use",
        {
            "side": list(spaces.labels),
            "writes": [i < n for i in range(len(spaces.labels))],
            "effective_rank": spaces.effective_rank.tolist(),
            "share_of_stream": (spaces.effective_rank / circuits.lm.d_model).tolist(),
        },
        provenance,
    )
    width = range(len(spaces.labels) - n)
    overlap = Table(
        "Overlap of what is written and what is read (squared cosines of principal angles)",
        {
            "writer": [spaces.labels[i] for i in range(n) for _ in width],
            "reader": [spaces.labels[n + j] for _ in range(n) for j in width],
            "overlap": [float(spaces.overlap[i, n + j]) for i in range(n) for j in width],
            "chance": [float(spaces.chance[i, n + j]) for i in range(n) for j in width],
        },
        provenance,
    )
    exhibits = [
        Exhibit("virtual_weights", virtual),
        Exhibit("directions", ranks, percent=("share_of_stream",), folded=True),
        Exhibit("overlap", overlap, folded=True),
    ]
    erasing = Table(
        "Heads whose OV circuit has the most negative eigenvalues on the stream",
        {
            "head": [head_name(e.layer, e.head) for e in memory.erasing_heads],
            "negative_share": [e.negative_share for e in memory.erasing_heads],
            **_on_text(memory.erasing_heads),
        },
        provenance,
    )
    percent = ("negative_share", "opposes")
    exhibits.append(Exhibit("erasing_heads", erasing, percent=percent))
    text = [
        f"The stream is {circuits.lm.d_model} wide; what writes to it and reads from it shares these directions.",
    ]
    if memory.erasing_heads:
        text.append(
            f"Negative share: of the eigenvalues of a head's OV circuit; random heads of this shape have "
            f"{memory.chance[0]:.2f}, five standard deviations above are {memory.head_threshold:.2f}."
        )
    if memory.memories:
        table = Table(
            "Memories (FFN neurons) that erase",
            {
                "memory": [circuits.lm.memory_name(e.layer, e.index) for e in memory.memories],
                "cosine": [e.cosine for e in memory.memories],
                **_on_text(memory.memories),
            },
            provenance,
        )
        exhibits.append(Exhibit("erasing_memories", table, percent=percent[1:], apart=(("cosine",),)))
        text.append(
            f"{sum(memory.counts):,} of {memory.n_memories:,} memories have a key and a value that point against each "
            f"other (cosine below {memory.threshold:.2f}, five standard deviations of random directions)."
        )
    parts = " ".join(f"{name}: {why}." for name, why in {**weights.missing, **memory.missing}.items())
    if parts:
        text.append(f"Not among them: {parts}")
    if any(e.on_text is not None for e in memory.erasing_heads):
        text.append(
            "Before and after: mean size of the stream along what is written, before and after the FFN or the "
            "attention, at the positions of text where a memory or head writes most. Opposes: how often what it writes "
            "there has the opposite sign of what is there. Erases: less is there afterwards, and it opposes more often "
            "than a coin, with its interval."
        )
    figure = Figure(
        "overlap",
        "Overlap of writers and readers",
        "heat",
        "overlap",
        "reader",
        ("overlap",),
        rows="writer",
        x_label="reader",
        y_label="writer",
        y_range=(0, 1),
        published=NOT_IN_PAPER,
    )
    return Section("The residual stream", tuple(text), tuple(exhibits), (figure,))


def _on_text(erasing: Sequence[ErasingMemory | ErasingHead]) -> dict[str, list[float] | list[str]]:
    """Return the columns that were measured on text; empty where no text was read."""
    measured = [e.on_text for e in erasing if e.on_text is not None]
    if len(measured) < len(erasing):
        return {}
    return {
        "before": [e.before for e in measured],
        "after": [e.after for e in measured],
        "opposes": [e.opposes for e in measured],
        "erases": [{True: "yes", False: "no", None: "unknown"}[e.erases] for e in measured],
    }


def stream_answer(
    circuits: HeadMatrices,
    *,
    basis: CircuitBasis = None,
    verify: Annotated[
        bool,
        Option("Measure on text whether the memories (FFN neurons) that were found remove directions from the stream."),
    ] = False,
    corpus: Corpus = None,
    top: Top = 20,
) -> Answer:
    """Show which parts read which through the residual stream, how many directions each uses, and which erase."""
    lm, chosen = circuits.lm, circuits.known_basis(basis)
    provenance = lm.provenance(basis=chosen, corpus=(corpus or SAMPLE) if verify else None)
    memory = memory_management(lm, chosen, top=top, corpus=corpus, verify=verify)
    made = stream_section(circuits, virtual_weights(lm, chosen), subspaces(lm, chosen), memory, provenance, top)
    return Answer(f"The stream of {lm.name}", (made,), provenance)


ANALYSIS = of_circuits("stream", stream_answer, "stream --model wren --verify", model="wren")
