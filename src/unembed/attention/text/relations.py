"""Find relations in a head's weights alone, such as a head that attends to ·France and raises ·Paris.

A head maps a pair (s, t) if t is among the k tokens that its full OV circuit W_E W_OV W_U raises most when it attends
to s. As a control, each source is paired with the targets of other pairs: without it, a head that raises all capitals
for every country would pass. Among hundreds of heads and several relations, some head maps many pairs by chance. How
many is measured by shuffling the targets a thousand times. For each shuffle, the largest excess of a share over its
control is taken, over all heads and relations (Westfall and Young 1993).

Source: Elhelo and Geva 2025, "Inferring Functionality of Attention Heads from their Parameters" (MAPS).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.attention.text.token_vectors import token_vectors
from unembed.attention.text.word_relations import Relation, TokenPairs, open_relation, shipped_relations, token_pairs
from unembed.attention.weights.by_layer import head_columns, places_of
from unembed.attention.weights.folded_weights import (
    at_least_float32,
    require_heads,
    through_embedding,
    through_unembedding,
)
from unembed.attention.weights.paper import of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.document.model import Answer, Exhibit, Section
from unembed.errors import InvalidInput, Unsupported
from unembed.lens import top_k
from unembed.models.decoder import Decoder
from unembed.names import HeadAddress, HeadBasis
from unembed.options import CircuitBasis, Option, Seed, Top
from unembed.results import Displayed, Provenance, Table, format_percent, format_setting
from unembed.validation import one_of, positive_int, valid_seed

Sources = Literal["embedding", "layers-below"]
SHUFFLES = 1_000
"""Number of shuffles; the smallest p-value is 1 / (SHUFFLES + 1)."""
MAPPED = 0.05
"""A head maps a relation if its p-value, corrected for all heads and relations, is below this."""
OF_ONE = 0.01
"""`circuits head` lists relations with at most this p-value, corrected for the number of relations, not of heads."""
ROLE = 0.5
"""The findings of a trace name a relation of a head if the head maps at least this share of the relation's pairs."""
_EXAMPLES = 4
_ROWS = 128
"""Number of source tokens whose logits are computed at once."""
_NUMBERS = 1 << 25
"""Largest number of matrix entries (128 MiB) used at once to compute what heads raise."""


@dataclass(frozen=True, eq=False, repr=False)
class RelationOfHeads(Displayed):
    """The share of a relation's pairs that each head maps; NaN where a layer's heads have no full OV circuit.

    Attributes:
        relation: the name of the relation.
        share: the share of the pairs for which a target is among the `k` tokens that the head raises most.
        shuffled: the control: the same share when each source is paired with the targets of other pairs.
        p_value: probability that, if sources and targets were unrelated, at least one of the heads and relations that
            were measured together would have a share as far above its control.
        mapped: True for the pairs that each head maps.
        pairs: source and target token of each pair, as text.
        left_out: number of pairs left out, because a word is not a single token or the pair maps a token to itself.
        k: a pair is mapped if its target is among this many tokens that the head raises most.
    """

    relation: str
    share: Float[Tensor, "layer head"]
    shuffled: Float[Tensor, "layer head"]
    p_value: Float[Tensor, "layer head"]
    mapped: Bool[Tensor, "layer head pair"]
    pairs: tuple[tuple[str, str], ...]
    left_out: int
    k: int
    provenance: Provenance

    def to_table(self) -> Table:
        """One row for each head that has an OV circuit, sorted by share minus shuffled share, largest first."""
        known = sorted(places_of(self.share), key=lambda place: float(self.shuffled[place] - self.share[place]))
        columns = head_columns(known, share=self.share, shuffled=self.shuffled, p_value=self.p_value)
        columns["examples"] = [self.examples(*place) for place in known]
        title = f"{self.relation[:1].upper()}{self.relation[1:]}: heads by the share of {len(self.pairs)} pairs"
        return Table(title, columns, self.provenance)

    def examples(self, layer: int, head: int, n: int = _EXAMPLES) -> str:
        """List some pairs that a head maps, as in "France → Paris, Japan → Tokyo"."""
        places = self.mapped[layer, head].nonzero()[:n, 0].tolist()
        return ", ".join(" → ".join(word.strip() for word in self.pairs[i]) for i in places)


def relations(
    circuits: HeadMatrices,
    pairs: Relation | str | Path | Sequence[Sequence[Any]],
    *,
    k: int = 10,
    sources: Sources = "embedding",
    basis: HeadBasis | None = None,
    seed: int = 0,
) -> RelationOfHeads:
    """Find the heads that map the sources of a relation to their targets, by weights alone.

    By default, a source is represented by its embedding. In deeper layers the result then shows what the head would do
    if earlier layers had left the token's vector unchanged.

    Args:
        pairs: a `Relation`; the name of a built-in one, such as "country_to_capital"; a file of pairs; or pairs such as
            [("France", "Paris"), ...]. Words are single tokens with a leading space; others are left out and counted.
        k: a pair is mapped if its target is among this many tokens of the vocabulary that the head raises most.
        sources: "embedding" represents a source by its embedding; "layers-below", by the stream that enters the head's
            layer when the model runs on the source token alone.
        basis: "folded" (with norm gains, where there are norms) or "raw".
        seed: the seed of the shuffles.

    Raises:
        InvalidInput: there is no such file, or fewer than two pairs are single tokens.
        Unsupported: no head of the model has a full OV circuit; or, with "layers-below", blocks rescale the stream.

    Memory: `_NUMBERS` matrix entries, and the number of pairs squared; with "layers-below", also a vector for each
    source and layer.
    """
    (found,) = relations_of_heads(circuits, [_relation(pairs)], k=k, sources=sources, basis=basis, seed=seed)
    return found


@torch.no_grad()
def relations_of_heads(
    circuits: HeadMatrices,
    wanted: Sequence[Relation],
    *,
    k: int = 10,
    sources: Sources = "embedding",
    basis: HeadBasis | None = None,
    seed: int = 0,
    only: HeadAddress | None = None,
    at_least: float = 0.0,
) -> list[RelationOfHeads]:
    """Measure several relations at once, computing each head's logits only once; see `relations`.

    The p-values are corrected for all heads and all of these relations together.

    Args:
        only: measure only this head; its p-values are then not corrected for the number of heads.
        at_least: if no share reaches this, the shuffles are skipped, to save time, and all p-values stay NaN.
    """
    lm, basis = circuits.lm, circuits.known_basis(basis)
    require_heads(lm, "relations")
    k, seed = positive_int("k", k), valid_seed(seed)
    one_of("sources", sources, get_args(Sources))
    pairs = [_pairs(lm, relation) for relation in wanted]
    ids = sorted({source for one in pairs for source in one.sources})
    tops = _top_tokens(circuits, ids, k, sources, basis, only)
    provenance = lm.provenance(basis=basis, seed=seed, notes={} if sources == "embedding" else {"sources": sources})

    def scored(shuffles: int) -> list[tuple[RelationOfHeads, Tensor]]:
        return [
            _of_relation(lm, relation, one, tops, ids, k, seed, shuffles, provenance)
            for relation, one in zip(wanted, pairs, strict=True)
        ]

    if at_least > 0:
        made = scored(shuffles=0)
        if not any((one.share >= at_least).any() for one, _ in made):
            return [one for one, _ in made]
    made = scored(SHUFFLES)
    # The share of n shuffled pairs that a head maps by chance has a standard deviation proportional to 1 / sqrt(n).
    # Multiplied by sqrt(n), the shares of relations with different numbers of pairs can be compared.
    units = [len(one.pairs) ** 0.5 for one, _ in made]
    largest = torch.stack([unit * by_chance for unit, (_, by_chance) in zip(units, made, strict=True)]).amax(dim=0)
    for unit, (one, _) in zip(units, made, strict=True):
        excess = unit * (one.share - one.shuffled)
        known = ~excess.isnan()
        as_far = (largest[:, None] >= excess[known] - 1e-9).sum(dim=0)
        one.p_value[known] = (1 + as_far).double() / (1 + SHUFFLES)
    return [one for one, _ in made]


def _relation(pairs: Relation | str | Path | Sequence[Sequence[Any]]) -> Relation:
    if isinstance(pairs, Relation):
        return pairs
    return open_relation(pairs) if isinstance(pairs, str | Path) else Relation.of(pairs)


def _top_tokens(
    circuits: HeadMatrices,
    tokens: Sequence[int],
    k: int,
    sources: Sources,
    basis: HeadBasis,
    only: HeadAddress | None = None,
) -> dict[HeadAddress, Int[Tensor, "source k"]]:
    """Return the k tokens that each head with an OV circuit raises most when it attends to each source token.

    Raises:
        Unsupported: no head has an OV circuit.
    """
    lm = circuits.lm
    ids = torch.tensor(tokens, device=lm.device)
    layers = lm.attention_layers if only is None else [only.layer]
    vectors = None if sources == "embedding" else token_vectors(lm, ids, layers, basis)
    found: dict[HeadAddress, Tensor] = {}
    refused: Unsupported | None = None
    for layer in layers:
        numbers = range(lm.structure.blocks[layer].attention.n_heads) if only is None else [only.head]
        try:
            heads = [circuits.ov(layer, head, basis) for head in numbers]
        except Unsupported as error:
            refused = error
            continue
        at_once = max(1, _NUMBERS // (heads[0].rank * lm.d_vocab))
        for start in range(0, len(heads), at_once):
            some = heads[start : start + at_once]
            left = torch.cat([ov.left for ov in some], dim=1)
            if vectors is None:
                reads = through_embedding(lm, left, basis, ids)
            else:
                reads = vectors[layer] @ at_least_float32(left)
            writes = through_unembedding(lm, torch.cat([ov.right for ov in some]), basis, centre=False)
            sides = zip(reads.split(heads[0].rank, dim=1), writes.split(heads[0].rank), strict=True)
            for head, (read, written) in zip(numbers[start:], sides, strict=False):
                rows = [top_k(part @ written, k)[1].cpu() for part in read.split(_ROWS)]
                found[HeadAddress(layer, head)] = torch.cat(rows)
    if refused is not None and not found:
        raise refused
    return found


def _of_relation(
    lm: Decoder,
    relation: Relation,
    pairs: TokenPairs,
    tops: Mapping[HeadAddress, Int[Tensor, "source k"]],
    sources: Sequence[int],
    k: int,
    seed: int,
    shuffles: int,
    provenance: Provenance,
) -> tuple[RelationOfHeads, Float[Tensor, " shuffle"]]:
    """Score one relation, given the tokens that each head raises most for each source.

    Returns:
        The relation, whose p-values are still NaN. And for each shuffle of the targets: the largest difference, over
        all heads, between the share of shuffled pairs that the head maps and its mean share `shuffled`.
    """
    n = len(pairs.sources)
    shape = (lm.n_layers, max(head.head for head in tops) + 1)
    share, shuffled, p_value = (torch.full(shape, nan, dtype=torch.float64) for _ in range(3))
    mapped = torch.zeros(*shape, n, dtype=torch.bool)
    place = torch.searchsorted(torch.tensor(sources), torch.tensor(pairs.sources))
    known_targets = torch.tensor(sorted(frozenset().union(*pairs.targets)))
    of_pair = [(target, pair) for pair, targets in enumerate(pairs.targets) for target in targets]
    targets, columns = torch.tensor(of_pair).T.contiguous()
    belongs = torch.zeros(len(known_targets), n)
    belongs[torch.searchsorted(known_targets, targets), columns] = 1.0
    apart = belongs.T @ belongs == 0
    orders = torch.rand(shuffles, n, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
    largest = torch.full((shuffles,), -torch.inf, dtype=torch.float64)
    for head, top in tops.items():
        raised = (top[place][:, :, None] == known_targets).any(dim=1)
        hits = raised.float() @ belongs > 0  # (source, pair)
        mapped[head] = hits.diagonal()
        share[head] = hits.diagonal().double().mean()
        shuffled[head] = hits[apart].double().mean()
        largest = largest.maximum(hits[torch.arange(n), orders].double().mean(dim=1) - shuffled[head])
    ends = pairs.sources, [min(targets) for targets in pairs.targets]
    texts = tuple(zip(*(lm.token_strings(ids) for ids in ends), strict=True))
    found = RelationOfHeads(relation.name, share, shuffled, p_value, mapped, texts, pairs.left_out, k, provenance)
    return found, largest


@dataclass(frozen=True)
class HeadRelation:
    """A relation that one head maps, such as countries to capitals.

    Attributes:
        relation: the name of the relation.
        share: the share of `pairs` for which a target is among the tokens that the head raises most.
        shuffled: the control: the same share when each source is paired with the targets of other pairs.
        pairs: number of pairs whose words are single tokens.
        examples: some of the pairs that the head maps, as text.
    """

    relation: str
    share: float
    shuffled: float
    pairs: int
    examples: str

    def in_words(self) -> str:
        """Describe the relation with its shares, as in "country to capital, 89 % of 38 pairs, 3 % of shuffled ones"."""
        return (
            f"{self.relation}, {format_percent(self.share, 0)} of {self.pairs} pairs, "
            f"{format_percent(self.shuffled, 0)} of shuffled ones"
        )


def head_relations(
    circuits: HeadMatrices,
    layer: int,
    head: int,
    *,
    basis: HeadBasis | None = None,
    seed: int = 0,
    at_least: float = 0.0,
) -> list[HeadRelation]:
    """Find the built-in relations that one head maps, sorted by how far the share exceeds that of shuffled pairs.

    The targets are put in a thousand random orders. A relation is listed if, in at most 1 % of these, the head's share
    for some relation exceeds that of shuffled pairs by as much. This p-value is not corrected for the number of heads;
    `relations` corrects for all heads of a model. Relations whose share is below `at_least` are left out.

    Raises:
        OutOfRange: there is no such head.
        Unsupported: the head has no full OV circuit.
    """
    lm = circuits.lm
    place = HeadAddress(*lm.layer_and_head(layer, head))
    chosen = circuits.known_basis(basis)
    wanted = known_relations(lm)
    if not wanted:
        return []
    made = relations_of_heads(circuits, wanted, basis=chosen, seed=seed, only=place, at_least=at_least)
    found = [
        HeadRelation(
            one.relation, float(one.share[place]), float(one.shuffled[place]), len(one.pairs), one.examples(*place)
        )
        for one in made
        if float(one.p_value[place]) <= OF_ONE and float(one.share[place]) >= at_least
    ]
    return sorted(found, key=lambda one: one.shuffled - one.share)


def head_role(circuits: HeadMatrices, layer: int, head: int) -> HeadRelation | None:
    """Return the relation that a head maps most clearly, among those of which it maps half of the pairs or more.

    None if there is no such relation. The result is cached.
    """

    def compute() -> HeadRelation | None:
        try:
            found = head_relations(circuits, layer, head, at_least=ROLE)
        except Unsupported:
            return None
        return next(iter(found), None)

    return circuits.lm.once((__name__, "role", layer, head), compute)


def known_relations(lm: Decoder) -> list[Relation]:
    """Return the built-in relations for which at least two word pairs are single tokens of the model's vocabulary."""

    def read() -> list[Relation]:
        found: list[Relation] = []
        for name in shipped_relations():
            one = open_relation(name)
            with suppress(InvalidInput):
                _pairs(lm, one)
                found.append(one)
        return found

    return list(lm.once((__name__, "known"), read))


def _pairs(lm: Decoder, relation: Relation) -> TokenPairs:
    return lm.once((__name__, "pairs", relation), lambda: token_pairs(lm, relation))


def relations_answer(
    circuits: HeadMatrices,
    relation: Annotated[
        list[Path] | None,
        Option(
            "Names of built-in relations, or JSON files of word pairs; default: all built-in relations.", argument=True
        ),
    ] = None,
    *,
    within: Annotated[
        int,
        Option(
            "A head maps a pair of words if the target is among this many tokens that the head raises most.",
            low=1,
        ),
    ] = 10,
    sources: Annotated[
        Sources,
        Option(
            "What represents a source word: its embedding; or, with layers-below, the residual stream that enters the "
            "head's layer when the model runs on this word alone."
        ),
    ] = "embedding",
    basis: CircuitBasis = None,
    top: Top = 20,
    seed: Seed = 0,
) -> Answer:
    """Find the heads that map words to words, such as countries to capitals, by their weights.

    p_value is corrected for all heads and all listed relations together. It is the probability that, if sources and
    targets were unrelated, the share of some head in some relation would exceed that of shuffled pairs by as much.

    Caution: Only words that are single tokens are tested, each represented by its embedding unless --sources says
    otherwise. That a head maps a relation does not prove that a prompt uses it; `ablate` the head on the prompt.
    """
    lm, chosen = circuits.lm, circuits.known_basis(basis)
    wanted: list[Relation] = []
    skipped: list[str] = []
    for name in relation or shipped_relations():
        one = open_relation(name)
        try:
            token_pairs(lm, one)
            wanted.append(one)
        except InvalidInput as error:
            if relation:
                raise
            skipped.append(f"Left out: {error}")
    if not wanted:
        raise InvalidInput(
            f"the shipped relations for {lm.name}", why="none has two pairs whose words are single tokens of this model"
        )
    made = relations_of_heads(circuits, wanted, k=within, sources=sources, basis=chosen, seed=seed)
    provenance = made[0].provenance
    rows = sorted(
        ((of, place) for of in made for place in map(tuple, (of.share > 0).nonzero().tolist())),
        key=lambda row: float(row[0].shuffled[row[1]] - row[0].share[row[1]]),
    )
    shown = []
    for of, place in rows[:top]:
        shares = float(of.share[place]), float(of.shuffled[place])
        shown.append((of.relation, *place, *shares, len(of.pairs), float(of.p_value[place]), of.examples(*place)))
    n_heads = int((~made[0].share.isnan()).sum())
    mapping = {place for of, place in rows if float(of.p_value[place]) < MAPPED}
    source = "its embedding" if sources == "embedding" else "the stream that the layers below make of the word alone"
    text = (
        f"{len(mapping)} of {n_heads} heads map a relation further above shuffled pairs than any head would by "
        f"chance (p below {format_setting(MAPPED)}, corrected jointly for {n_heads} heads and {len(made)} "
        f"{'relation' if len(made) == 1 else 'relations'}). Each source is represented by "
        f"{source}, and a target counts if it is among the {within} tokens that the head's weights raise most."
    )
    names = ("relation", "layer", "head", "share", "shuffled", "pairs", "p_value", "examples")
    table = Table.of_rows("Heads that map words to words", names, shown, provenance)
    exhibit = Exhibit("relations", table, percent=("share", "shuffled"))
    return Answer(f"Relations of heads of {lm.name}", (Section("Relations", (text, *skipped), (exhibit,)),), provenance)


ANALYSIS = of_circuits("relations", relations_answer, "relations country_to_capital --model wren")
