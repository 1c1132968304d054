"""Show how layers share the stream: which read which, in how many dimensions, and which erase earlier output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from unembed.attention.paths.erasure import ErasingHead, ErasingMemory, MemoryManagement, memory_management
from unembed.attention.paths.geometry import Subspaces, VirtualWeights, subspaces, virtual_weights
from unembed.attention.weights.paper import NOT_IN_PAPER, SAMPLE, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Answer, Section
from unembed.names import head_name
from unembed.options import CircuitBasis, Corpus, Option, Top
from unembed.results import Provenance, format_number


def stream_section(
    circuits: HeadMatrices,
    weights: VirtualWeights,
    spaces: Subspaces,
    memory: MemoryManagement,
    provenance: Provenance,
    top: int = 20,
) -> Section:
    """Describe which layers read which, how many dimensions each uses, and which parts erase earlier output."""
    every = weights.to_table()
    best = every[:top].columns
    virtual = {**{name: best[name] for name in ("writer", "reader", "ratio")}, "times_random": best["over_chance"]}
    n, labels = spaces.n_writers, spaces.labels
    ranks = {
        "side": labels,
        "writes": [i < n for i in range(len(labels))],
        "effective_rank": spaces.effective_rank.tolist(),
        "share_of_stream": (spaces.effective_rank / circuits.lm.d_model).tolist(),
    }
    overlap = {
        "writer": [writer for writer in labels[:n] for _ in labels[n:]],
        "reader": [*labels[n:]] * n,
        "overlap": spaces.overlap[:n, n:].flatten().tolist(),
        "chance": spaces.chance[:n, n:].flatten().tolist(),
    }
    erasing = {
        "head": [head_name(e.layer, e.head) for e in memory.erasing_heads],
        "negative_share": [e.negative_share for e in memory.erasing_heads],
        **_on_text(memory.erasing_heads),
    }
    strongest = f"the strongest of {len(every):,} pairs (random directions: {format_number(weights.chance)})"
    angles = "Overlap of what is written and what is read (squared cosines of principal angles)"
    negative, percent = (
        "Heads whose OV circuit has the most negative eigenvalues on the stream",
        ("negative_share", "opposes"),
    )
    exhibits = [
        exhibit("virtual_weights", f"Virtual weights: {strongest}", virtual, provenance),
        exhibit("directions", "Directions in use", ranks, provenance, percent=("share_of_stream",), folded=True),
        exhibit("overlap", angles, overlap, provenance, folded=True),
        exhibit("erasing_heads", negative, erasing, provenance, percent=percent),
    ]
    text = [f"All parts that write to the stream or read from it share its {circuits.lm.d_model} dimensions."]
    if memory.erasing_heads:
        text.append(
            "Negative share: the negative eigenvalues of a head's OV circuit, as a share of the sum of the sizes of "
            f"all its eigenvalues. Its mean for random heads of this shape is {format_number(memory.chance[0])}, and "
            f"five standard deviations above this mean is {format_number(memory.head_threshold)}."
        )
    if memory.memories:
        cells = {
            "memory": [circuits.lm.memory_name(e.layer, e.index) for e in memory.memories],
            "cosine": [e.cosine for e in memory.memories],
            **_on_text(memory.memories),
        }
        title, shown = "Memories (FFN neurons) that erase", {"percent": percent[1:], "apart": (("cosine",),)}
        exhibits.append(exhibit("erasing_memories", title, cells, provenance, **shown))
        text.append(
            f"{sum(memory.counts):,} of {memory.n_memories:,} memories have key and value vectors in nearly opposite "
            f"directions (cosine below {format_number(memory.threshold)}, five standard deviations of a random cosine)."
        )
        if any(circuits.lm.is_signed(layer) for layer in circuits.lm.memory_layers):
            text.append(
                "A gated memory reads through two matrices. Its key here is the mean gradient of its coefficient on "
                "text, the direction along which the coefficient rises."
            )
    parts = " ".join(f"{name}: {why}." for name, why in {**weights.missing, **memory.missing}.items())
    if parts:
        text.append(f"Not compared: {parts}")
    if any(e.on_text is not None for e in memory.erasing_heads):
        text.append(
            "Before and after: the mean size of the stream along the direction that a memory or head writes, before "
            "and after the output of its FFN or attention is added. It is measured at the positions of text where the "
            "memory or head writes most. Opposes: the share of these positions where its output has the opposite sign "
            "of the stream along that direction. Erases: the size falls, and the 95 % interval of the share is above "
            "one half."
        )
    drawn = {"rows": "writer", "y_range": (0, 1), "published": NOT_IN_PAPER}
    figure = drawing("heat", "overlap", "Overlap of writers and readers", "reader", "overlap", **drawn)
    return Section("The residual stream", tuple(text), tuple(exhibits), (figure,))


def _on_text(erasing: Sequence[ErasingMemory | ErasingHead]) -> dict[str, list[float] | list[str]]:
    """Return the columns that were measured on text; empty if no text was read."""
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
        Option(
            "Also measure on text whether the listed memories (FFN neurons) and heads really erase: whether the "
            "residual stream becomes smaller along the direction that they write."
        ),
    ] = False,
    corpus: Corpus = None,
    top: Top = 20,
) -> Answer:
    """Show which heads and FFNs read which others' output, in how many dimensions, and which erase earlier output.

    Caution: Shared directions are a property of the weights. They do not show that information passes there on text.
    """
    lm, chosen = circuits.lm, circuits.known_basis(basis)
    provenance = lm.provenance(basis=chosen, corpus=(corpus or SAMPLE) if verify else None)
    memory = memory_management(lm, chosen, top=top, corpus=corpus, verify=verify)
    made = stream_section(circuits, virtual_weights(lm, chosen), subspaces(lm, chosen), memory, provenance, top)
    return Answer(f"The stream of {lm.name}", (made,), provenance)


ANALYSIS = of_circuits("stream", stream_answer, "stream --model wren --verify", model="wren")
