"""Collect what pages and commands show of attention heads, as numbers, strings and lists of these."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unembed.attention.behaviour.head_scores import ROLE, HeadScores, main_kind
from unembed.attention.circuits import Circuits
from unembed.attention.text.output_words import raised_tokens
from unembed.attention.text.relations import head_role
from unembed.attention.weights.composition import MODES
from unembed.errors import Unsupported
from unembed.models.named_tokens import Scored, scored
from unembed.names import HeadAddress
from unembed.results.lists import numbers_or_none

SCHEMA_HEADS = "unembed.heads/2"
SCHEMA_HEAD = "unembed.head/2"
SCHEMA_PARTNERS = "unembed.partners/1"
SCHEMA_RAISED = "unembed.raised/1"
"""Names and versions of the JSON formats; the version rises when a field changes its meaning or is removed."""

_NO_WORDS = "The model has no tokenizer, or fewer than two of its tokens are common in the shipped text."

HEAD_SCORES = {
    "previous_token": "mean attention to the position before, on random tokens repeated twice",
    "duplicate_token": "in the repetition: mean attention to the earlier occurrence of the same token",
    "induction": "in the repetition: mean attention to the token after the earlier occurrence (prefix matching)",
    "copying": "direct effect on the logit of the token attended to most, above the mean of all tokens",
    "resting": "mean attention to the first position",
}


@dataclass(frozen=True)
class HeadsView:
    """The scores of every head."""

    schema: str
    model: str
    n_sequences: int
    length: int
    seed: int
    definitions: dict[str, str]
    scores: dict[str, list[list[float | None]]]
    """By kind: [layer][head]; None where a layer has no attention, or its heads have no such score."""
    intervals: dict[str, list[list[float | None]]]
    """Half the width of the 95 % confidence interval."""
    eigenvalues: list[list[float | None]] | None
    """sum(lambda).real / sum(|lambda|) of the full OV circuit, by layer and head; it is +1 for a head that copies. An
    entry is None for the same heads as in `scores`; the whole field is None if no head has such a circuit."""
    roles: list[list[str | None]]
    """The attention score that names a head, by layer and head; None where no score is large enough."""
    role_threshold: float
    """A score names a head if it is the largest, and at least this."""


@dataclass(frozen=True)
class Partner:
    """An earlier head whose output a head reads, with the strength of their composition."""

    mode: str
    layer: int
    head: int
    composition: float


@dataclass(frozen=True)
class HeadView:
    """One head: the logits that it changes for a source token, and the sources that a destination token attends to."""

    schema: str
    model: str
    layer: int
    head: int
    source: str
    destination: str
    raises: list[Scored]
    lowers: list[Scored]
    """`raises` and `lowers`: tokens whose logits the source token changes most, by the head's full OV circuit."""
    looks_for: list[Scored]
    ignores: list[Scored]
    """`looks_for` and `ignores`: source tokens to which the destination token attends most and least, by the full QK
    circuit."""
    notes: list[str]
    maps: str | None
    """The word relation that the head maps most clearly, with its shares; None if there is none of which the head maps
    half of the pairs or more."""


@dataclass(frozen=True)
class PartnersView:
    """The earlier heads whose output one head reads most.

    They are not in `HeadView`, because they are computed from the weights of all heads.
    """

    schema: str
    model: str
    layer: int
    head: int
    partners: list[Partner]
    """The strongest earlier heads by Q-, K- and V-composition."""


@dataclass(frozen=True)
class RaisedView:
    """What one head does beyond copying: the words, other than the source itself, that it raises for common tokens."""

    schema: str
    model: str
    layer: int
    head: int
    text: str
    """How the entries are computed; or the reason why there are none. The other fields are those of `RaisedTokens`."""
    sources: list[str]
    raises: list[str]
    entries: list[float]


def heads_view(circuits: Circuits, n_sequences: int = 16, length: int = 40, seed: int = 0) -> HeadsView:
    """Return the scores of all heads."""
    lm = circuits.lm
    if lm.n_ctx is not None:
        length = max(2, min(length, lm.n_ctx // 2 - 2))
    found = circuits.head_scores(seed, n_sequences=n_sequences, length=length)
    try:
        eigenvalues = numbers_or_none(circuits.copying_scores())
    except Unsupported:
        eigenvalues = None
    return HeadsView(
        SCHEMA_HEADS,
        lm.name,
        n_sequences,
        length,
        seed,
        HEAD_SCORES,
        {kind: numbers_or_none(found[kind]) for kind in HEAD_SCORES},
        {kind: numbers_or_none(found.interval(kind)) for kind in HEAD_SCORES},
        eigenvalues,
        _roles(found),
        ROLE,
    )


def _roles(found: HeadScores) -> list[list[str | None]]:
    """Name each head after its main kind of attention."""
    layers, heads = found.induction.shape
    return [[main_kind(found, layer, head) for head in range(heads)] for layer in range(layers)]


def head_view(
    circuits: Circuits, layer: int, head: int, source: str | int, destination: str | int, top: int
) -> HeadView:
    """Describe one head for a source and a destination token.

    Lists leave out tokens that the model never learned and tokens that are a part of a character.

    Raises:
        OutOfRange: there is no such head.
        NotOneToken: a text is not a single token.
    """
    lm = circuits.lm
    layer, head = lm.layer_and_head(layer, head)
    src, dst = lm.single_token(source), lm.single_token(destination)
    lists: list[list[Scored]] = []
    refused: list[str] = []
    of_circuits: list[tuple[str, ...]] = []
    from_source, to_destination = (torch.tensor([token], device=lm.device) for token in (src, dst))
    for row in (
        lambda: circuits.ov_full(layer, head, sources=from_source),
        lambda: circuits.qk_full(layer, head, destinations=to_destination),
    ):
        try:
            full = row()
        except Unsupported as error:
            refused.append(str(error))
            lists += [[], []]
            continue
        ends = (full.top_of_row(0, top, largest=largest, hidden=lm.unlisted) for largest in (True, False))
        lists += [scored(lm, entries.columns, entries.values) for entries in ends]
        of_circuits.insert(0, full.notes)
    notes = list(dict.fromkeys((*refused, *(note for of_one in of_circuits for note in of_one))))
    source, destination = lm.token_strings([src, dst])
    raises, lowers, looks_for, ignores = lists
    role = None if lm.tokenizer is None else head_role(circuits, layer, head)
    maps = None if role is None else role.in_words()
    return HeadView(
        SCHEMA_HEAD, lm.name, layer, head, source, destination, raises, lowers, looks_for, ignores, notes, maps
    )


def partners_view(circuits: Circuits, layer: int, head: int, each: int = 4) -> PartnersView:
    """Return the earlier heads whose output a head reads most: `each` of them for its queries, its keys and its values.

    Raises:
        OutOfRange: there is no such head.
    """
    layer, head = circuits.lm.layer_and_head(layer, head)
    try:
        read = [p for p in circuits.partners(layer, head) if p.relation == "reads"]
    except Unsupported:  # a layer has no such circuit, as the notes of its heads state
        read = []
    strongest = [
        Partner(mode, p.layer, p.head, p.composition)
        for mode in MODES
        for p in [p for p in read if p.mode == mode][:each]
    ]
    return PartnersView(SCHEMA_PARTNERS, circuits.lm.name, layer, head, strongest)


def raised_view(circuits: Circuits, layer: int, head: int, top: int) -> RaisedView:
    """Return the source tokens for which a head most raises a word other than the source itself, and the raised words.

    Raises:
        OutOfRange: there is no such head.
    """
    lm = circuits.lm
    layer, head = lm.layer_and_head(layer, head)
    try:
        found = raised_tokens(circuits, HeadAddress(layer, head), circuits.known_basis(None), top)
    except Unsupported as error:
        return RaisedView(SCHEMA_RAISED, lm.name, layer, head, str(error), [], [], [])
    if found is None:
        return RaisedView(SCHEMA_RAISED, lm.name, layer, head, _NO_WORDS, [], [], [])
    return RaisedView(SCHEMA_RAISED, lm.name, layer, head, found.text, found.sources, found.raises, found.entries)
