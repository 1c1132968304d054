"""Describe one head by its weights: eigenvalues, copying, the largest entries of its circuits, its partners."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unembed.attention.weights.composition import MODES, partners
from unembed.attention.weights.copying import copying, eigenvalue_section, matching, own_token
from unembed.attention.weights.low_rank import LowRank
from unembed.attention.weights.low_rank_topk import Entries
from unembed.attention.weights.missing_circuits import missing_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.document.model import Exhibit, Section
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis, head_name
from unembed.results import Provenance, Table, format_percent, format_signed


def head_sections(
    circuits: HeadMatrices,
    layer: int,
    head: int,
    top: int,
    basis: HeadBasis,
    seed: int,
    provenance: Provenance,
    offset: int = 0,
) -> list[Section]:
    """Show all that the weights tell about one head; if it lacks a circuit, the text says why.

    Raises:
        OutOfRange: there is no such head.
        Unsupported: the head has neither an OV nor a QK circuit.
    """
    lm = circuits.lm
    layer, head = lm.layer_and_head(layer, head)
    scores, own_logit, refused = [], "", []
    notes: dict[str, None] = {}
    try:
        notes |= dict.fromkeys(circuits.ov(layer, head, basis).notes)
        own = own_token(circuits, layer, head, basis, seed=seed)
        spectra = copying(circuits, basis)
        share = format_percent(float(spectra.positive_fraction[layer, head]), 0)
        scores.append(
            f"copying score {format_signed(float(spectra.score[layer, head]))}, {share} of eigenvalues positive"
        )
        own_logit = (
            f" A token's own logit lies {format_signed(own.mean_z)} standard deviations from its row's mean, and in "
            f"the row's top {own.k} for {format_percent(own.top_share, 1)} of {own.n_tokens:,} tokens."
        )
    except Unsupported as error:
        refused.append(error)
    has_ov = not refused
    try:
        notes |= dict.fromkeys(circuits.qk(layer, head, offset, basis).notes)
        score = float(matching(circuits, basis, offset=offset).score[layer, head])
        scores.append(f"matching score of its QK circuit {format_signed(score)}")
    except Unsupported as error:
        refused.append(error)
    if not scores:
        raise refused[0]
    line = "; ".join(scores)
    text = (
        f"{line[0].upper()}{line[1:]}.{own_logit}",
        *(f"Not available: {error}" for error in refused),
        *((f"Note: {'; '.join(notes)}.",) if notes else ()),
    )
    exhibits = full_circuit_exhibits(circuits, layer, head, top, basis, provenance, offset)
    made = [Section("Scores", text), Section("Circuits", (), tuple(exhibits))]
    if has_ov:
        made.append(eigenvalue_section(circuits, [(layer, head)], basis, provenance))
    if len(lm.attention_layers) < 2:
        return made
    try:
        missing = missing_circuits(lm, basis)
        absent = tuple(
            f"{mode.upper()}-composition with other heads: not available, because {missing.of(mode)[layer]}."
            for mode in MODES
            if layer in missing.of(mode)
        )
        return [*made, Section("Partners", absent, (_partners(circuits, layer, head, basis, seed, top, provenance),))]
    except Unsupported as error:
        return [*made, Section("Partners", (f"Not available: {error}",))]


def _partners(
    circuits: HeadMatrices, layer: int, head: int, basis: HeadBasis, seed: int, top: int, provenance: Provenance
) -> Exhibit:
    """List the heads that compose most with this one: those whose output it reads, and those that read its output."""
    best = partners(circuits, layer, head, basis, baseline=True, seed=seed)[:top]
    columns: dict[str, list[Any]] = {
        "relation": [p.relation for p in best],
        "head": [head_name(p.layer, p.head) for p in best],
        "composition": [p.mode.upper() for p in best],
        "above_random": [p.composition for p in best],
    }
    return Exhibit("partners", Table(f"Heads that compose most with {head_name(layer, head)}", columns, provenance))


def full_circuit_exhibits(
    circuits: HeadMatrices, layer: int, head: int, top: int, basis: HeadBasis, provenance: Provenance, offset: int = 0
) -> list[Exhibit]:
    """List the largest entries of a head's full OV and QK circuits, if it has them, without unlearned tokens."""
    lm, exhibits = circuits.lm, []

    def listed(name: str, title: str, first: str, second: str, rows: Tensor, columns: Tensor, values: Tensor) -> None:
        table = Table(
            title,
            {
                f"{first}_token": lm.token_strings(rows),
                f"{second}_token": lm.token_strings(columns),
                "entry": [float(v) for v in values],
            },
            provenance,
        )
        exhibits.append(Exhibit(name, table))

    with suppress(Unsupported):
        ov = shown_entries(lm, circuits.ov_full(layer, head, basis), top, between_words=True)
        listed("ov_entries", "Largest entries of W_E W_OV W_U between different words", "source", "output", *ov)
    with suppress(Unsupported):
        qk = shown_entries(lm, circuits.qk_full(layer, head, offset, basis), top)
        listed("qk_entries", "Largest entries of W_E W_QK W_E'", "destination", "source", *qk)
    return exhibits


def shown_entries(lm: Decoder, full: LowRank, top: int, *, between_words: bool = False) -> Entries:
    """Return the largest entries of a matrix over the vocabulary, without unlearned tokens and parts of characters.

    Args:
        between_words: leave out entries whose two tokens are the same word apart from spaces and capitals. Most heads
            raise the word that they read (see `own_token`), and these entries would hide what else they do.
    """
    shown = (~lm.unlisted).nonzero()[:, 0].to(full.left.device)
    every = len(shown) in (0, lm.d_vocab)
    among = full if every else LowRank(full.left[shown], full.right[:, shown])
    words = numbered_words(lm, torch.arange(lm.d_vocab) if every else shown) if between_words else None
    found = among.top(top, kinds=None if words is None else (words, words))
    return found if every else Entries(shown[found.rows], shown[found.columns], found.values)


def numbered_words(lm: Decoder, ids: Int[Tensor, " token"]) -> Int[Tensor, " token"]:
    """Number the tokens by word, so that tokens that differ only in spaces and capitals get the same number."""
    numbers: dict[str, int] = {}
    words = (text.strip().casefold() or text for text in lm.token_strings(ids))
    return torch.tensor([numbers.setdefault(word, len(numbers)) for word in words])
