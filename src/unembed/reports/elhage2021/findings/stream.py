"""The claims about the residual stream: memories and heads that erase."""

from __future__ import annotations

import torch

from unembed.attention.paths.erasure import MemoryManagement
from unembed.reports.claims import Claim, Judgement, Numbers, verdict_of
from unembed.reports.elhage2021.measurements import Measurements

ROTATION = 1e-3
"""Relative change of a logit below which a rotated model is the same function."""


def _memory_management(m: Measurements) -> Numbers:
    return {"found": m.memory_management}


def judge_memory_management(found: MemoryManagement) -> Judgement:
    """Memories and heads that oppose what is there and leave less of it."""
    memories = [e for e in found.memories if e.cosine < found.threshold and e.on_text is not None]
    heads = [e for e in found.erasing_heads if e.negative_share > found.head_threshold and e.on_text is not None]
    outcomes = [e.on_text.erases for e in (*memories, *heads) if e.on_text is not None]
    erasing = [sum(e.on_text is not None and e.on_text.erases is True for e in some) for some in (memories, heads)]
    here = (
        f"{sum(found.counts):,} of {found.n_memories:,} memories (FFN neurons) have key and value more than five "
        f"standard deviations of random directions opposed; of the {len(memories)} most opposed, {erasing[0]} oppose "
        f"what is there on text and leave less of it. "
        if found.n_memories
        else ""
    )
    here += (
        f"{len(heads)} heads have a share of negative OV eigenvalues above {found.head_threshold:.2f} (random heads: "
        f"{found.chance[0]:.2f}); {erasing[1]} of them erase on text."
    )
    condition = True if True in outcomes else None if None in outcomes else False
    return Judgement(here, verdict_of(condition))


def explain_memory_management(m: Measurements) -> str:
    """What the heads and memories that stand out by weights do on text instead."""
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
        f"than not. A head that erases leaves less than was there; along what L{head.layer}H{head.head} writes, the "
        f"stream's mean size goes from {strongest.before:.2f} to {strongest.after:.2f}."
    )


def _basis(m: Measurements) -> Numbers:
    error, why = m.rotation
    return {"error": error, "why": why, "exact": m.lm.dtype in (torch.float32, torch.float64)}


def judge_basis(error: float | None, why: str, exact: bool) -> Judgement:
    """The logits of a model whose stream was rotated, compared with its own."""
    if error is None:
        return Judgement(f"{why[:1].upper()}{why[1:].rstrip('.')}.", "inconclusive")
    return Judgement(
        f"After a random rotation of every matrix that touches the stream, no logit of a prompt has moved by more "
        f"than {error:.0e} of the largest.",
        verdict_of(error < ROTATION if exact else None),
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "memory management", "stream",
        "Some MLP neurons and attention heads perform memory management: they read a direction and write its negative.",
        "The residual stream as a communication channel",
        "Cosine of key and value, negative OV eigenvalues, and on text the stream along the written direction before "
        "and after.",
        "in words",
        "A memory or head five standard deviations beyond random weights opposes what is there more often than a coin "
        "does, with its interval, and less of it is there afterwards.",
        _memory_management, judge_memory_management, explain_memory_management,
    ),
    Claim(
        "no privileged basis", "stream",
        "The residual stream has no privileged basis: turning every matrix that touches it leaves the model as it is.",
        "The residual stream as a communication channel",
        "Largest change of a logit of one prompt, over the largest logit, after a random rotation.",
        "an identity",
        f"The change is below {ROTATION:g} in float32. An identity of the architecture: random weights pass it too.",
        _basis, judge_basis,
    ),
)  # fmt: skip
