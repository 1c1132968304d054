"""List skip-trigrams: an earlier source token and a destination token after which a head raises an output token.

A head raises such a triple (source, destination, output) by attending from the destination to the source (QK circuit)
and then raising the output's logit (OV circuit). Since a softmax ignores constants, attention scores are taken minus
the destination's mean over all sources, and logits minus the source's mean over all outputs. Some triples are raised
only because the two circuits are separate (skip-trigram bugs).

Source: Elhage et al. 2021, "One-layer models: skip-trigrams" and "skip-trigram bugs".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.attention.text.bigrams import Bigrams
from unembed.attention.weights.by_layer import number_or_none
from unembed.attention.weights.copying import Carried
from unembed.attention.weights.folded_weights import at_least_float32, through_unembedding
from unembed.attention.weights.low_rank import LowRank
from unembed.attention.weights.paper import SAMPLE, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.corpus import CorpusSource
from unembed.corpus.windows import windows_of
from unembed.document.model import Answer, Exhibit, Section
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis, head_name
from unembed.options import CircuitBasis, Head, Option, Top
from unembed.options import Corpus as CorpusName
from unembed.results import Displayed, Provenance, Records, Table, quoted
from unembed.validation import positive_int, valid_seed

_BLOCK = 256


@dataclass(frozen=True)
class SkipTrigram:
    """One triple: `attention` is an attention score (log odds), `effect` is in logits, `score` is their product."""

    source: int
    destination: int
    output: int
    attention: float
    effect: float
    score: float


@dataclass(frozen=True, eq=False)
class CentredCircuits:
    """A head's full QK and OV circuits over some tokens, each row minus its mean."""

    ids: Int[Tensor, " token"]
    qk: LowRank
    """(destination, source): the attention score, scaled by 1 / sqrt(d_head), minus its mean over sources."""
    ov: LowRank
    """(source, output): what the head adds to the output's logit, minus its mean over outputs."""


@dataclass(frozen=True, eq=False)
class TokenReading:
    """The vectors that heads read at each token, and the maps from what heads write to the last layer's output."""

    vectors: Mapping[int, Float[Tensor, "token d_model"]]
    """For each layer, the vectors of the tokens in `among`; see `token_vectors`."""
    carried: Carried | None = None
    """A function from a layer to its map; None if what heads write is multiplied by W_U directly."""


def centred_circuits(
    circuits: HeadMatrices,
    layer: int,
    head: int,
    basis: HeadBasis,
    offset: int,
    hide_unlearned: bool,
    among: Int[Tensor, " token"] | None = None,
    reading: TokenReading | None = None,
) -> CentredCircuits:
    """Return a head's full circuits minus row means, which a softmax ignores. Memory: four times d_vocab * d_head."""
    lm = circuits.lm
    shown = (~lm.unlisted).nonzero()[:, 0] if hide_unlearned else torch.arange(lm.d_vocab)
    ids = (shown if len(shown) else torch.arange(lm.d_vocab)) if among is None else among
    if not len(ids):
        raise InvalidInput("skip-trigrams among no tokens", why="the list of tokens is empty")
    ids = ids.to(lm.weights.W_E.device)
    layer = lm.layer(layer)
    if reading is None:
        qk = circuits.qk_full(layer, head, offset, basis, destinations=ids, sources=ids)
        ov = circuits.ov_full(layer, head, basis, sources=ids, outputs=ids)
    else:
        qk, ov = circuits.qk(layer, head, offset, basis), circuits.ov(layer, head, basis)
        vectors, written = reading.vectors[layer], at_least_float32(ov.right)
        if reading.carried is not None:
            written = written @ reading.carried(layer).to(written)
        qk = LowRank(vectors @ at_least_float32(qk.left), at_least_float32(qk.right) @ vectors.T, qk.notes)
        ov = LowRank(
            vectors @ at_least_float32(ov.left), through_unembedding(lm, written, basis, ids, centre=False), ov.notes
        )
    scale = circuits.scales[layer]
    qk = LowRank(qk.left * scale, qk.right - qk.right.mean(dim=1, keepdim=True), qk.notes)
    return CentredCircuits(ids, qk, LowRank(ov.left, ov.right - ov.right.mean(dim=1, keepdim=True), ov.notes))


@torch.no_grad()
def skip_trigrams(
    circuits: HeadMatrices,
    layer: int,
    head: int,
    top: int = 50,
    *,
    basis: HeadBasis = "raw",
    offset: int = 1,
    source: str | int | None = None,
    hide_unlearned: bool = True,
    among: Int[Tensor, " token"] | None = None,
    reading: TokenReading | None = None,
) -> Records[SkipTrigram]:
    """Return the triples with the largest product of attention and effect, exactly, over all tokens.

    Args:
        offset: number of tokens from source to destination, for rotary positions.
        source: list only triples with this source token.
        hide_unlearned: leave out tokens that the model never learned, and tokens that are a part of a character.
        among: use only these tokens, and take means over them. Without it, all tokens are used, and rare ones often
            come first.
        reading: with `among`: vectors that the heads read instead of the embeddings of these tokens.

    Time: every block of the two circuits is computed once. The best triples come from the `top` sources whose best
    product is largest, and from the `top` best destinations and outputs of these, so no other entry is read.
    """
    top = positive_int("top", top, most=10_000)
    lm = circuits.lm
    both = centred_circuits(circuits, layer, head, basis, offset, hide_unlearned, among, reading)
    n = len(both.ids)
    if source is None:
        attention = torch.empty(n, dtype=both.qk.left.dtype, device=both.ids.device)
        effect = torch.empty_like(attention)
        for start in range(0, n, _BLOCK):
            some = slice(start, min(start + _BLOCK, n))
            attention[some] = both.qk.columns(some).amax(dim=0)
            effect[some] = both.ov.rows(some).amax(dim=1)
        best = (attention.clamp_min(0) * effect.clamp_min(0)).topk(min(top, n)).indices
    else:
        best = _row_of(both, lm, lm.single_token(source))
    k = min(top, n)
    attentions, destinations = both.qk.columns(best).topk(k, dim=0)  # (k, source)
    effects, outputs = both.ov.rows(best).topk(k, dim=1)  # (source, k)
    scores = attentions.clamp_min(0).T[:, :, None] * effects.clamp_min(0)[:, None, :]
    values, places = scores.flatten().topk(min(top, scores.numel()))
    found = []
    for value, place in zip(values.tolist(), places.tolist(), strict=True):
        s, rest = divmod(place, k * k)
        d, o = divmod(rest, k)
        if value > 0:
            source_id, destination, output = (int(both.ids[i]) for i in (best[s], destinations[d, s], outputs[s, o]))
            attended, moved = float(attentions[d, s]), float(effects[s, o])
            found.append(SkipTrigram(source_id, destination, output, attended, moved, value))
    columns: dict[str, list] = {
        f"{name}_token": lm.token_strings([getattr(t, name) for t in found])
        for name in ("source", "destination", "output")
    }
    columns |= {name: [getattr(t, name) for t in found] for name in ("attention", "effect", "score")}
    return Records.of(f"Skip-trigrams of {head_name(layer, head)}", found, columns, lm.provenance(basis=basis))


def _row_of(both: CentredCircuits, lm: Decoder, source: int) -> Int[Tensor, " one"]:
    """Return the index of a source token in `both.ids`."""
    found = (both.ids == source).nonzero()[:, 0]
    if not len(found):
        raise InvalidInput(
            f"source {quoted(lm.token_strings([source])[0])}",
            why="it is left out, because the model never learned it or it is too rare",
            instead="Choose another, or pass hide_unlearned=False",
        )
    return found


def frequent_tokens(lm: Decoder, corpus: CorpusSource = None, min_count: int = 30) -> Int[Tensor, " token"]:
    """Return the tokens that occur at least `min_count` times in a corpus."""
    counts = torch.zeros(lm.d_vocab, dtype=torch.long)
    for segment in windows_of(corpus, overlap=0).segments(lm):
        counts += torch.bincount(segment.tokens.long(), minlength=lm.d_vocab)
    return (counts >= min_count).nonzero()[:, 0]


@dataclass(frozen=True)
class CorpusCounts:
    """How often a skip-trigram occurs in a corpus, with and without the source earlier in the window."""

    with_source: int
    """Number of destination tokens with the source anywhere earlier in the window."""
    output_with_source: int
    """Number of these destination tokens that are directly followed by the output."""
    without_source: int
    output_without_source: int

    @property
    def rate_with(self) -> float:
        """P(output | destination, source earlier); NaN where the destination never occurs after the source."""
        return self.output_with_source / self.with_source if self.with_source else float("nan")

    @property
    def rate_without(self) -> float:
        """P(output | destination, no source earlier)."""
        return self.output_without_source / self.without_source if self.without_source else float("nan")


def count_in_corpus(
    lm: Decoder, triples: Sequence[tuple[int, int, int]], corpus: CorpusSource = None, window: int | None = None
) -> list[CorpusCounts]:
    """Count how often each output follows its destination, with and without the source earlier in the window.

    Args:
        lm: the model whose tokens and context are used.
        triples: (source, destination, output).
        corpus: anything `unembed.open_corpus` takes.
        window: length of a window in tokens; the model's context when None.
    """
    wanted = torch.tensor(list(triples), dtype=torch.long).reshape(-1, 3)
    counts = torch.zeros(4 * len(wanted), dtype=torch.long)
    # `by_destination` lists the triples sorted by destination token. For each token, `begin` is the index in this list
    # of the first triple with this destination, and `number` is the number of such triples.
    by_destination = wanted[:, 1].argsort(stable=True)
    number = torch.bincount(wanted[:, 1], minlength=lm.d_vocab)
    begin = number.cumsum(0) - number
    first = torch.full((lm.d_vocab,), torch.iinfo(torch.long).max)
    for segment in windows_of(corpus, window).segments(lm):
        tokens = segment.tokens.long()
        where = torch.arange(len(tokens))
        places = where[(number[tokens] > 0) & (where >= segment.skip)]
        if not len(places):
            continue
        repeats = number[tokens[places]]
        at = places.repeat_interleave(repeats)  # (pair,): every triple at every position of its destination
        within = torch.arange(len(at)) - (repeats.cumsum(0) - repeats).repeat_interleave(repeats)
        triple = by_destination[begin[tokens[at]] + within]
        first.scatter_reduce_(0, tokens, where, "amin")
        column = 4 * triple + torch.where(first[wanted[triple, 0]] < at, 0, 2)
        first[tokens] = torch.iinfo(torch.long).max
        following = torch.cat([tokens[1:], torch.tensor([segment.next_token], dtype=torch.long)])
        follows = following[at] == wanted[triple, 2]
        counts += torch.bincount(column, minlength=len(counts))
        counts += torch.bincount(column[follows] + 1, minlength=len(counts))
    return [CorpusCounts(*row) for row in counts.view(-1, 4).tolist()]


@dataclass(frozen=True, eq=False, repr=False)
class SkipTrigramBugs(Displayed):
    """Pairs (destination, output) that a head raises for one source only because its two circuits are separate.

    After the source, the head raises every listed output after every listed destination. If the corpus has (d1, o1) and
    (d2, o2) but never (d1, o2), then (d1, o2) is a crossed pair: the architecture forces the head to raise it.

    Attributes:
        source: the source token.
        destinations: the tokens that attend to the source most.
        outputs: the tokens whose logits the head raises most when it attends to the source.
        score: attention times effect of each pair (destination, output).
        counts: how often the output follows the destination in the corpus, whether or not the source came before.
        crossed: True if the pair never occurs in the corpus, although another listed output follows its destination
            there, and its output follows another listed destination.
    """

    source: int
    destinations: Int[Tensor, " destination"]
    outputs: Int[Tensor, " output"]
    score: Float[Tensor, "destination output"]
    counts: Int[Tensor, "destination output"]
    crossed: Bool[Tensor, "destination output"]
    texts: dict[int, str]
    provenance: Provenance

    def to_table(self) -> Table:
        """One row for each crossed pair, highest score first."""
        rows = [(self.texts[self.source], self.texts[d], self.texts[o], score) for d, o, score in self.pairs]
        names = ("source_token", "destination_token", "output_token", "score")
        return Table.of_rows("Pairs that a head raises together", names, rows, self.provenance)

    @property
    def pairs(self) -> list[tuple[int, int, float]]:
        """The crossed pairs, highest score first: (destination, output, score)."""
        pairs = [
            (int(self.destinations[d]), int(self.outputs[o]), float(self.score[d, o]))
            for d, o in self.crossed.nonzero().tolist()
        ]
        return sorted(pairs, key=lambda pair: -pair[2])

    @property
    def occurring(self) -> int:
        """The number of pairs that the head raises and that occur in the corpus."""
        return int(((self.counts > 0) & (self.score > 0)).sum())


def crossed_pairs(counts: Int[Tensor, "destination output"]) -> Bool[Tensor, "destination output"]:
    """Mark the pairs that never occur although destination and output each occur in another pair of the table."""
    occurs = counts > 0
    return ~occurs & occurs.any(dim=1, keepdim=True) & occurs.any(dim=0, keepdim=True)


@torch.no_grad()
def skip_trigram_bugs(
    circuits: HeadMatrices,
    layer: int,
    head: int,
    source: str | int,
    corpus: CorpusSource = None,
    top: int = 20,
    *,
    basis: HeadBasis = "raw",
    offset: int = 1,
    among: Int[Tensor, " token"] | None = None,
    bigrams: Bigrams | None = None,
    reading: TokenReading | None = None,
) -> SkipTrigramBugs:
    """Find the crossed pairs of one source token, which a head raises although the corpus lacks them.

    Args:
        source: the source token.
        corpus: anything `unembed.open_corpus` takes.
        top: number of destinations and of outputs listed.
        offset: number of tokens from source to destination, for rotary positions.
        among: use only these tokens.
        bigrams: the bigrams of the corpus, if they have been counted already.
        reading: as in `skip_trigrams`.
    """
    both = centred_circuits(circuits, layer, head, basis, offset, hide_unlearned=True, among=among, reading=reading)
    lm = circuits.lm
    token = lm.single_token(source)
    row = int(_row_of(both, lm, token)[0])
    k = min(positive_int("top", top), len(both.ids))
    attention, d = both.qk.columns(row)[:, 0].topk(k)
    effect, o = both.ov.rows(row)[0].topk(k)
    destinations, outputs = both.ids[d].cpu(), both.ids[o].cpu()
    score = (attention.clamp_min(0)[:, None] * effect.clamp_min(0)).cpu()  # (destination, output)
    counts = (bigrams or Bigrams.of_corpus(lm, corpus)).table(destinations, outputs)
    ids = [token, *destinations.tolist(), *outputs.tolist()]
    texts = dict(zip(ids, lm.token_strings(ids), strict=True))
    crossed = crossed_pairs(counts) & (score > 0)
    provenance = lm.provenance(basis=basis, notes={"layer": layer, "head": head})
    return SkipTrigramBugs(token, destinations, outputs, score, counts, crossed, texts, provenance)


def random_tables(
    bigrams: Bigrams,
    destinations: Int[Tensor, " destination"],
    outputs: Int[Tensor, " output"],
    among: Int[Tensor, " token"],
    draws: int = 10,
    seed: int = 0,
) -> list[Int[Tensor, "destination output"]]:
    """Return tables of bigram counts for random tokens of similar frequency, as a control for a table of bigrams.

    Each token is replaced by one of the 40 tokens closest to it in frequency.

    Args:
        destinations: tokens of the table's rows.
        outputs: tokens of the table's columns.
        among: the tokens to draw from.
    """
    by_frequency = among[bigrams.occurrences[among].argsort()]
    places = torch.full((bigrams.d_vocab,), -1)
    places[by_frequency] = torch.arange(len(by_frequency))
    g = torch.Generator().manual_seed(valid_seed(seed))

    def replaced(tokens: Tensor) -> Tensor:
        shift = torch.randint(1, 21, tokens.shape, generator=g) * (2 * torch.randint(2, tokens.shape, generator=g) - 1)
        return by_frequency[(places[tokens] + shift) % len(by_frequency)]

    return [bigrams.table(replaced(destinations), replaced(outputs)) for _ in range(draws)]


def shuffled_sources(
    triples: Sequence[tuple[int, int, int]], draws: int = 5, seed: int = 0
) -> list[tuple[int, int, int]]:
    """Exchange the sources among the triples at random, `draws` times, as a control for `count_in_corpus`."""
    g = torch.Generator().manual_seed(valid_seed(seed))
    return [
        (triples[int(other)][0], d, o)
        for _ in range(draws)
        for (_, d, o), other in zip(triples, torch.randperm(len(triples), generator=g), strict=True)
    ]


def skip_trigram_section(
    circuits: HeadMatrices,
    layer: int,
    head: int,
    found: Sequence[SkipTrigram],
    provenance: Provenance,
    counts: Sequence[CorpusCounts] | None = None,
) -> Section:
    """Show the triples that a head raises most and, with `counts`, how often they occur in a corpus."""
    lm = circuits.lm
    columns: dict[str, list[Any]] = {
        f"{part}_token": lm.token_strings(torch.tensor([getattr(t, part) for t in found], dtype=torch.long))
        for part in ("source", "destination", "output")
    }
    if counts is not None:
        columns["times"] = [c.output_with_source for c in counts]
    for part in ("attention", "effect", "score"):
        columns[part] = [float(getattr(t, part)) for t in found]
    note = (
        "Attention: score of the destination for the source, above its mean over sources. Effect: logit of the output "
        "where the source is attended to, above the mean over outputs. Score: their product."
    )
    if counts is not None:
        columns["rate_with_source"] = [number_or_none(c.rate_with) for c in counts]
        columns["rate_without"] = [number_or_none(c.rate_without) for c in counts]
        copies = [i for i, t in enumerate(found) if t.source == t.output]
        if copies:
            plausible = sum(counts[i].output_with_source + counts[i].output_without_source > 0 for i in copies)
            note += (
                f" {len(copies)} of the {len(found)} triples copy the source; {plausible} of them to a place where the "
                "corpus has it follow the destination, which is primitive in-context learning."
            )
    title = f"Skip-trigrams of head {head_name(layer, head)}: source ... destination, then output"
    percent = ("rate_with_source", "rate_without") if counts is not None else ()
    return Section(
        f"Skip-trigrams of head {head_name(layer, head)}",
        (note,),
        (Exhibit(f"skip_trigrams_{layer}_{head}", Table(title, columns, provenance), percent=percent),),
    )


def skip_trigrams_answer(
    circuits: HeadMatrices,
    head: Head,
    *,
    source: Annotated[str | None, Option("List only skip-trigrams with this source token.")] = None,
    check: Annotated[bool, Option("Count how often each listed skip-trigram occurs in the corpus.")] = False,
    min_count: Annotated[
        int, Option("Use only tokens that occur at least this often in the corpus; 0 uses all.", low=0)
    ] = 0,
    corpus: CorpusName = None,
    basis: CircuitBasis = None,
    top: Top = 20,
) -> Answer:
    """List the "source ... destination, then output" triples that a head raises most.

    Caution: The scores are exact for heads of the first layer without a norm. Otherwise they ignore what earlier layers
    and the norm change in a token's vector.
    """
    lm, chosen = circuits.lm, circuits.known_basis(basis)
    among = frequent_tokens(lm, corpus, min_count) if min_count > 0 else None
    found = skip_trigrams(circuits, *head, top, basis=chosen, source=source, among=among)
    counts = count_in_corpus(lm, [(t.source, t.destination, t.output) for t in found], corpus) if check else None
    provenance = lm.provenance(basis=chosen, corpus=(corpus or SAMPLE) if check else None)
    made = skip_trigram_section(circuits, *head, found, provenance, counts)
    return Answer(f"Skip-trigrams of head {head} of {lm.name}", (made,), provenance)


ANALYSIS = of_circuits("skip-trigrams", skip_trigrams_answer, "skip-trigrams L0H3 --check", model="attn-1l")
