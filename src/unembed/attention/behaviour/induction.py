"""Find induction heads from the weights alone, and compare them with what the heads do on text.

An induction head copies the token that it attends to (OV circuit). Its keys read what a previous-token head wrote
(K-composition), so that its QK circuit attends to a source if the token before the source equals the current token.

Source: Elhage et al. 2021, "Induction heads", "How induction heads work"; Olsson et al. 2022 for the in-context score.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.behaviour.head_scores import HeadScores, head_scores
from unembed.attention.behaviour.in_context import TextScores
from unembed.attention.behaviour.repeated_pattern import Length, Sequences
from unembed.attention.weights.by_layer import number_or_none
from unembed.attention.weights.composed_weights import require_ov, require_qk
from unembed.attention.weights.composition import composition as composition_of
from unembed.attention.weights.copying import Spectra, copying_scores
from unembed.attention.weights.folded_weights import check_basis, reading_weights, require_heads, writing_weights
from unembed.attention.weights.low_rank import by_modulus
from unembed.attention.weights.missing_circuits import missing_circuits, not_available
from unembed.attention.weights.paper import NOT_IN_PAPER, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices, queries_and_keys
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Answer, Section
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis, head_name
from unembed.options import CircuitBasis, Seed, Top
from unembed.results import Provenance, Records, format_percent


@torch.no_grad()
def matching_through(
    lm: Decoder,
    product: Float[Tensor, "d_model d_model"],
    writer: int,
    reader: int,
    basis: HeadBasis = "raw",
    offset: int | Sequence[int] = 0,
) -> Spectra:
    """Return eigenvalues of W_E W_QK_b W_OV_a' W_E' for heads a of one layer and b of a later one: (head_a, head_b, r).

    They are positive if b attends to positions whose previous token, copied there by head a, equals b's current token.

    Args:
        product: W_E' W_E, from `HeadMatrices.product`.
        writer: layer of a.
        reader: layer of b.
        offset: number of tokens from b's position back to the source, for rotary positions; for several numbers, the
            circuits are averaged.
    """
    check_basis(basis)
    require_ov(lm, writer, basis)
    require_qk(lm, reader)
    dtype = product.dtype
    W_Q, W_K = (w.to(dtype) for w in queries_and_keys(lm, reader, basis, offset))
    W_V, W_O = reading_weights(lm, writer, "v", basis).to(dtype), writing_weights(lm, writer, basis).to(dtype)
    read = torch.einsum("bmk,aom->abko", W_K, W_O)  # what b's keys read of a's output channels
    meet = torch.einsum("amo,bmk->abok", W_V, product @ W_Q)  # a's value times b's query, summed over tokens
    found = by_modulus(torch.linalg.eigvals((read @ meet).double()))
    return Spectra(found, lm.provenance(basis=basis), ("head_writing", "head_reading"))


@dataclass(frozen=True)
class InductionEvidence:
    """One head as a candidate for an induction head: evidence from its weights, and its attention on tokens."""

    layer: int
    head: int
    copying: float | None
    """Eigenvalue score of the head's full OV circuit. Every score is None where the model lacks its circuit."""
    partner: tuple[int, int] | None
    """The earlier head whose output this head's keys read most (the one with the highest K-composition)."""
    k_composition: float | None
    """K-composition with the partner, minus that of random circuits of the same shapes."""
    matching: float | None
    """Eigenvalue score of the head's QK circuit when its keys read the partner's output."""
    induction: float
    """The head's mean attention, on repeated random tokens, to the token after the earlier occurrence."""
    partner_previous_token: float | None
    """The partner's attention to the previous token."""

    @property
    def by_weights(self) -> float | None:
        """The product of copying, k_composition and matching if all are positive, else 0; None if any is None."""
        if self.copying is None or self.k_composition is None or self.matching is None:
            return None
        signs = (self.copying, self.k_composition, self.matching)
        return signs[0] * signs[1] * signs[2] if min(signs) > 0 else 0.0


@torch.no_grad()
def induction(
    circuits: HeadMatrices,
    basis: HeadBasis = "raw",
    seed: int = 0,
    *,
    n_sequences: int = 50,
    length: int | None = None,
    scores: HeadScores | None = None,
    offset: int | Sequence[int] | None = None,
) -> Records[InductionEvidence]:
    """Collect the evidence that each attention head above the first layer is an induction head.

    The heads are sorted by their score from the weights, largest first.

    A field is None where the head, or every earlier head, lacks the circuit that it needs; `induction_missing` gives
    the reasons.

    Args:
        seed: the seed of the repeated tokens and the random circuits.
        length: number of tokens before the repetition; 64, or less in a shorter context, when None.
        scores: head scores already measured.
        offset: number of tokens from the destination back to the source in the QK circuits of `matching`, for rotary
            positions. When None, the circuits of all offsets from 1 to the length of the repetition are averaged,
            because an induction head looks back any distance.

    Raises:
        InvalidInput: the model has only one layer, so there is no earlier head to compose with.
        Unsupported: no layer has attention, or none above the first.
    """
    lm = circuits.lm
    if lm.n_layers < 2:
        raise InvalidInput(
            f"induction in {lm.name}",
            why=f"it has {'one layer' if lm.n_layers else 'no layers'}, and an induction head reads what an earlier "
            "head wrote",
        )
    require_heads(lm, "induction")
    scores = scores or head_scores(lm, seed, n_sequences=n_sequences, length=length)
    places = [place for place in scores.places() if place[0] > 0]
    if not places:
        raise Unsupported(
            f"induction in {lm.name}", why="no layer above the first has attention", instead="Use head_scores"
        )
    copying = reads = None  # stays None where no layer has the circuit
    with suppress(Unsupported):
        copying = copying_scores(circuits, basis)
    with suppress(Unsupported):
        reads = composition_of(circuits, "k", True, basis, seed=seed)
    product = circuits.product("qk", basis)
    back = range(1, scores.length + 1) if offset is None else offset
    matching: dict[tuple[int, int], Tensor] = {}
    found = []
    for layer, head in places:
        partner, composition, matched, previous = None, None, None, None
        of_earlier = None if reads is None else reads[:layer, :, layer, head]
        if of_earlier is not None and not of_earlier.isnan().all():
            a, h = divmod(int(of_earlier.nan_to_num(-torch.inf).argmax()), of_earlier.shape[1])
            partner, composition, previous = (a, h), float(of_earlier[a, h]), float(scores.previous_token[a, h])
            if (a, layer) not in matching and lm.structure.blocks[layer].attention.scores.understood:
                matching[a, layer] = matching_through(lm, product, a, layer, basis, back).score
            if (a, layer) in matching:
                matched = float(matching[a, layer][h, head])
        copied = None if copying is None else number_or_none(copying[layer, head])
        behaviour = float(scores.induction[layer, head])
        found.append(InductionEvidence(layer, head, copied, partner, composition, matched, behaviour, previous))
    found.sort(key=lambda e: (e.by_weights is None, -(e.by_weights or 0.0)))
    return Records.of_fields("Induction", InductionEvidence, found, lm.provenance(basis=basis, seed=seed))


def induction_missing(lm: Decoder, basis: HeadBasis) -> list[str]:
    """Say what `induction` cannot measure in this model, with one sentence for each reason."""
    missing, sentences = missing_circuits(lm, basis), list[str]()
    first = lm.attention_layers[0] if lm.attention_layers else None
    scores = {
        n: site.scores.missing
        for n in lm.attention_layers
        if not (site := lm.structure.blocks[n].attention).scores.understood
    }
    for what, by_layer in (
        ("Copying, and being a partner", missing.ov),
        ("K-composition and matching", missing.qk),
        ("Matching", {n: why for n, why in scores.items() if n not in missing.qk}),
    ):
        sentences += not_available(what, by_layer, lm)
    if first:
        sentences.append(f"Heads of layer {first} have no partner, because no earlier layer has attention.")
    return sentences


def induction_section(
    circuits: HeadMatrices,
    found: Sequence[InductionEvidence],
    basis: HeadBasis,
    provenance: Provenance,
    top: int | None = None,
    on_text: TextScores | None = None,
) -> Section:
    """Show, for every head above the first layer, evidence for induction in its weights, and its attention on tokens.

    A cell is empty where the model lacks the circuit that the number needs; the section's text says why.
    """
    shown = found if top is None else found[:top]
    columns: dict[str, list[Any]] = {
        "head": [head_name(e.layer, e.head) for e in shown],
        "partner": [e.partner and head_name(e.partner[0], e.partner[1]) for e in shown],
        "copying_score": [e.copying for e in shown],
        "k_composition": [e.k_composition for e in shown],
        "matching_through_partner": [e.matching for e in shown],
        "by_weights": [e.by_weights for e in shown],
        "induction": [e.induction for e in shown],
        "partner_previous_token": [e.partner_previous_token for e in shown],
    }
    text = (
        "From the weights alone: whether the head copies, which earlier head its keys read most (its partner), and "
        "whether its QK circuit through the partner matches a token with the token before the source. Beside it: what "
        "the head and its partner attend to on repeated random tokens.",
        *induction_missing(circuits.lm, basis),
    )
    if on_text is not None:
        columns["in_corpus"] = [float(on_text.induction[e.layer, e.head]) for e in shown]
        text += (
            "In the corpus: the attention to the tokens that followed earlier occurrences of the current token, over "
            f"the {on_text.n_positions:,} positions that have an earlier occurrence. Attention that is spread evenly "
            f"would give {format_percent(on_text.by_chance, 1)}.",
        )
    title, shares = f"Induction heads of {circuits.lm.name}", ("induction", "partner_previous_token", "in_corpus")
    table = exhibit("induction", title, columns, provenance, percent=tuple(name for name in shares if name in columns))
    if all(e.by_weights is None for e in shown):
        return Section("Induction", text, (table,))
    drawn, axis = "Weights against behaviour", "attention to what followed"
    figure = drawing("scatter", "induction", drawn, "by_weights", "induction", y_label=axis, published=NOT_IN_PAPER)
    return Section("Induction", text, (table,), (figure,))


def induction_answer(
    circuits: HeadMatrices,
    *,
    basis: CircuitBasis = None,
    sequences: Sequences = 50,
    length: Length = None,
    top: Top = 20,
    seed: Seed = 0,
) -> Answer:
    """Find induction heads from the weights alone, and by where they attend on repeated tokens.

    Caution: A head can look like an induction head by its weights and not be one. Trust the weights where the head's
    attention on repeated tokens agrees.
    """
    chosen = circuits.known_basis(basis)
    found = induction(circuits, chosen, seed, n_sequences=sequences, length=length)
    provenance = circuits.lm.provenance(basis=chosen, seed=seed)
    made = induction_section(circuits, found, chosen, provenance, top)
    return Answer(f"Induction heads of {circuits.lm.name}", (made,), provenance)


ANALYSIS = of_circuits("induction", induction_answer, "induction --model attn-2l")
