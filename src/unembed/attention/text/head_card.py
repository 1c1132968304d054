"""The analysis `circuits head`: what one head's weights do, and the word relations that it maps."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from unembed.attention.text.output_words import raised_tokens
from unembed.attention.text.relations import head_relations
from unembed.attention.weights.one_head import head_sections
from unembed.attention.weights.paper import of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.document.model import Answer, Exhibit, Screen, Section
from unembed.errors import Unsupported
from unembed.names import HeadAddress, HeadBasis
from unembed.options import CircuitBasis, Head, Option, Seed, Top
from unembed.results import Provenance, Table


def _relations_section(
    circuits: HeadMatrices, place: HeadAddress, basis: HeadBasis, seed: int, provenance: Provenance
) -> Section:
    """Show the built-in word relations that a head maps, with the shares of true and of shuffled pairs that it maps."""
    try:
        found = head_relations(circuits, *place, basis=basis, seed=seed)
    except Unsupported as error:
        return Section("Relations", (f"Not available: {error}",))
    if not found:
        text = "It maps none of the shipped relations (such as countries to capitals) more than shuffled pairs."
        return Section("Relations", (text,))
    text = (
        "The share of pairs whose target is among the ten tokens that the head raises most for the source's embedding. "
        "A relation is listed if chance rarely explains it: of a thousand random orders of the targets, at most 1 % "
        "give any shipped relation a share as far above that of shuffled pairs. `unembed circuits relations` also "
        "corrects for the number of heads."
    )
    columns = {
        "relation": [one.relation for one in found],
        "share": [one.share for one in found],
        "shuffled": [one.shuffled for one in found],
        "pairs": [one.pairs for one in found],
        "examples": [one.examples for one in found],
    }
    table = Table("Relations that the head maps", columns, provenance)
    return Section("Relations", (text,), (Exhibit("relations", table, percent=("share", "shuffled")),))


def _raised_section(
    circuits: HeadMatrices, place: HeadAddress, basis: HeadBasis, top: int, provenance: Provenance
) -> Section | None:
    """List the words that a head raises for common source tokens; None if no such tokens are known."""
    try:
        found = raised_tokens(circuits, place, basis, top)
    except Unsupported as error:
        return Section("What it raises", (f"Not available: {error}",))
    if found is None:
        return None
    columns = {"source_token": found.sources, "raises": found.raises, "entry": found.entries}
    table = Table("Other words that it raises, by source token", columns, provenance)
    return Section("What it raises", (found.text,), (Exhibit("raised", table),))


def _with_circuits(raised: Section, circuits: Section) -> Section:
    """Append the tables of the full circuits to the section on raised words, and collapse them.

    In layers after an FFN, their largest entries are those of rare tokens, so few readers need them.
    """
    folded = tuple(replace(one, folded=True) for one in circuits.exhibits)
    more = (
        "The largest entries of the full circuits are folded, and left out in the terminal, because most of them are "
        "those of rare tokens."
    )
    return replace(raised, text=(*raised.text, more), exhibits=(*raised.exhibits, *folded))


def head_answer(
    circuits: HeadMatrices,
    head: Head,
    *,
    offset: Annotated[
        int,
        Option(
            "Distance from source to destination, in tokens; it matters only for QK circuits with rotary positions.",
            low=0,
        ),
    ] = 0,
    basis: CircuitBasis = None,
    top: Top = 20,
    seed: Seed = 0,
) -> Answer:
    """Show one head: scores, relations, the words that it raises, its full OV and QK circuits, its partners.

    The words that it raises are listed for common source tokens, each represented by its vector after the layers below.
    Partners are the heads whose output it reads, or that read its output.

    Caution: The full circuits assume that the head reads a token's own embedding. In a deep layer the stream contains
    more; `circuits look` shows the head on a prompt.
    """
    chosen = circuits.known_basis(basis)
    provenance = circuits.lm.provenance(basis=chosen, seed=seed)
    made = head_sections(circuits, *head, top, chosen, seed, provenance, offset)
    made.insert(1, _relations_section(circuits, head, chosen, seed, provenance))
    raised = _raised_section(circuits, head, chosen, top, provenance)
    if raised is not None and raised.exhibits and any(n < head.layer for n in circuits.lm.memory_layers):
        raised = _with_circuits(raised, made.pop(2))
    if raised is not None:
        made.insert(2, raised)
    screen = Screen("heads", {"head": str(head)})
    return Answer(f"Head {head} of {circuits.lm.name}", tuple(made), provenance, screen=screen)


ANALYSIS = of_circuits("head", head_answer, "head L1H0 --html head.html")
