"""Claims on the residual stream: some memories (FFN neurons) and heads erase; no basis is privileged."""

from __future__ import annotations

import torch

from unembed.attention.paths.geometry import subspaces, virtual_weights
from unembed.attention.paths.stream import stream_section
from unembed.attention.weights.rotation import rotated
from unembed.document.model import Section
from unembed.errors import InvalidInput
from unembed.names import head_name
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, judged, judged_if
from unembed.results import format_error, format_number, format_setting
from unembed.stream.run import run

ROTATION = 1e-3
"""Largest relative change of a logit for which the rotated model counts as computing the same function."""


def judge_memory_management(n: Numbers) -> Judgement:
    """Judge whether some memories (FFN neurons) or heads erase on text: they shrink what the stream contains."""
    found = n.found
    memories = [e for e in found.memories if e.cosine < found.threshold and e.on_text is not None]
    heads = [e for e in found.erasing_heads if e.negative_share > found.head_threshold and e.on_text is not None]
    outcomes = [e.on_text.erases for e in (*memories, *heads)]
    erasing = [sum(e.on_text.erases is True for e in some) for some in (memories, heads)]
    here = (
        f"In {sum(found.counts):,} of {found.n_memories:,} memories (FFN neurons) the value and {n.reads} are more "
        f"than five standard deviations of random directions opposed; of the {len(memories)} most opposed, "
        f"{erasing[0]} oppose what is there on text and leave less of it. "
        if found.n_memories
        else ""
    )
    here += (
        f"{len(heads)} heads have a share of negative OV eigenvalues above {format_number(found.head_threshold)} "
        f"(random heads: {format_number(found.chance[0])}); {erasing[1]} of them erase on text."
    )
    return judged(here, True if True in outcomes else None if None in outcomes else False)


def memory_management(m: Measurements) -> Numbers:
    """Return the memories and heads that erase, and a name for the direction along which a memory reads the stream."""
    gated = any(m.lm.is_signed(n) for n in m.lm.memory_layers)
    return Numbers(found=m.memory_management, reads="the coefficient's mean gradient" if gated else "the key")


def explain_memory_management(m: Measurements) -> str:
    """Explain, for the heads whose weights say that they erase what others wrote, what they do on text."""
    found = m.memory_management
    ffn = "" if found.n_memories else "The model has no FFN. "
    heads = [(e, e.on_text) for e in found.erasing_heads if e.negative_share > found.head_threshold]
    known = [(e, on_text) for e, on_text in heads if on_text is not None]
    if not known:
        return f"{ffn}No head stands out by its weights."
    opposing = sum(on_text.opposes > 0.5 for _, on_text in known)
    head, strongest = max(known, key=lambda pair: pair[0].negative_share)
    return (
        f"{ffn}Of the {len(known)} heads that stand out by weights {opposing} write against what is there more often "
        f"than not. A head that erases leaves less than was there; along what {head_name(head.layer, head.head)} "
        f"writes, the stream's mean size goes from {format_number(strongest.before)} to "
        f"{format_number(strongest.after)}."
    )


def rotation(m: Measurements) -> Numbers:
    """Rotate the residual stream in all weights, and measure the largest change of a logit.

    The change is given as a share of the largest logit. If the model cannot be rotated, `error` is None and `why` gives
    the reason.
    """
    exact = m.lm.dtype in (torch.float32, torch.float64)
    try:
        turned = rotated(m.lm, m.seed)
    except InvalidInput as refused:
        return Numbers(error=None, why=str(refused), exact=exact)
    before, after = (run(lm, m.example).logits.double() for lm in (m.lm, turned))
    return Numbers(error=float((after - before).abs().max() / before.abs().max()), why="", exact=exact)


def judge_rotation(n: Numbers) -> Judgement:
    """Judge whether a random rotation of the residual stream leaves all logits unchanged."""
    if n.error is None:
        return Judgement(f"{n.why[:1].upper()}{n.why[1:].rstrip('.')}.", "not applicable")
    return judged_if(
        n.exact,
        f"After a random rotation of every matrix that touches the stream, no logit of a prompt has moved by more "
        f"than {format_error(n.error)} of the largest.",
        n.error < ROTATION,
    )


def section(m: Measurements) -> Section:
    """Show which memories (FFN neurons) and heads erase, and whether a rotation of the stream changes the logits."""
    weights, spaces = virtual_weights(m.lm, m.basis), subspaces(m.lm, m.basis)
    return stream_section(m.circuits, weights, spaces, m.memory_management, m.provenance)


PARTS: tuple[Part[Measurements], ...] = (
    Part(
        section,
        (
            Quantity(
                "memory management",
                "Some MLP neurons and attention heads perform memory management: they read a direction and write its "
                "negative.",
                where="The residual stream as a communication channel",
                what="Cosine of key and value (for a gated memory, of the value and the coefficient's mean gradient), "
                "negative OV eigenvalues, and on text the stream along the written direction before and after.",
                published="in words",
                test="A memory or head five standard deviations beyond random weights opposes what is there more often "
                "than a coin does, with its interval, and less of it is there afterwards.",
                measure=memory_management,
                judge=judge_memory_management,
                explain=explain_memory_management,
            ),
            Quantity(
                "no privileged basis",
                "The residual stream has no privileged basis: turning every matrix that touches it leaves the model as "
                "it is.",
                where="The residual stream as a communication channel",
                what="Largest change of a logit of one prompt, over the largest logit, after a random rotation.",
                published="an identity",
                test=f"The change is below {format_setting(ROTATION)} in float32. An identity of the architecture: "
                "random weights pass it too.",
                measure=rotation,
                judge=judge_rotation,
            ),
        ),
        name="stream",
        absent="The residual stream",
    ),
)
