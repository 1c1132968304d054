"""Measure everything that the study needs on one model; each measurement is made when it is first read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.behaviour.head_scores import HeadScores
from unembed.attention.behaviour.induction import InductionEvidence
from unembed.attention.circuits import Circuits, circuits
from unembed.attention.paths.erasure import MemoryManagement, memory_management
from unembed.attention.paths.expansion import Expansion
from unembed.attention.paths.term_importance import TermImportance
from unembed.attention.text.bigrams import Bigrams
from unembed.attention.text.direct_path import DirectPath, direct_path
from unembed.attention.text.skip_trigrams import (
    CorpusCounts,
    SkipTrigram,
    TokenReading,
    count_in_corpus,
    frequent_tokens,
    shuffled_sources,
)
from unembed.attention.text.token_vectors import token_vectors
from unembed.attention.weights.by_layer import number_or_none
from unembed.attention.weights.copying import Carried, Spectra
from unembed.attention.weights.folded_weights import default_basis, require_heads
from unembed.corpus import Corpus, CorpusSource, open_corpus
from unembed.corpus.windows import windows_of
from unembed.document.intervals import Measured
from unembed.errors import InvalidInput, Unsupported
from unembed.jacobian.basis import lens_of
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis
from unembed.reports.elhage2021.options import Options
from unembed.reports.stages import Arrays, Work
from unembed.results import Provenance
from unembed.stream.capture_points import has_point

HALF = 24
"""Tokens of text that the example of one position repeats."""
DRAWS = 5
"""Shuffles of the sources, for comparison with the triples of a head."""


@dataclass(frozen=True)
class HeadSkipTrigrams:
    """The triples that one head raises most, and how often each occurs in a corpus.

    Attributes:
        layer, head: the head.
        triples: highest score first.
        counts: the counts of each triple in the corpus.
        shuffled: the same with the sources of the head's other triples, `DRAWS` shuffles after one another.
    """

    layer: int
    head: int
    triples: tuple[SkipTrigram, ...]
    counts: tuple[CorpusCounts, ...]
    shuffled: tuple[CorpusCounts, ...] = ()

    @property
    def occurring(self) -> int:
        """The number of triples that occur in the corpus."""
        return sum(c.output_with_source > 0 for c in self.counts)

    @property
    def copies(self) -> list[CorpusCounts]:
        """The counts of the triples whose output is also their source."""
        return [c for t, c in zip(self.triples, self.counts, strict=True) if t.source == t.output]

    @property
    def likelier(self) -> int:
        """The number of copying triples whose output is likelier after the destination with the source."""
        return sum(c.output_with_source > 0 and not c.rate_with <= c.rate_without for c in self.counts)


def skip_trigrams_by_head(
    heads: Circuits,
    layers: Sequence[int],
    top: int,
    basis: HeadBasis,
    corpus: Corpus,
    among: Int[Tensor, " token"],
    seed: int = 0,
    reading: TokenReading | None = None,
) -> list[HeadSkipTrigrams]:
    """Find the top triples of every head of some layers, and count them and their shuffles in one pass over a corpus.

    Args:
        among: only these tokens.
        reading: what the layers below make of them; their embeddings when None.
    """
    places = [(n, h) for n in layers for h in range(heads.lm.structure.blocks[n].attention.n_heads)]
    by_head = [heads.skip_trigrams(*place, top, basis=basis, among=among, reading=reading) for place in places]
    own = [[(t.source, t.destination, t.output) for t in triples] for triples in by_head]
    shuffled = [shuffled_sources(triples, DRAWS, seed + i) for i, triples in enumerate(own)]
    every = [*(t for triples in own for t in triples), *(t for triples in shuffled for t in triples)]
    counts = iter(count_in_corpus(heads.lm, every, corpus))
    firsts = [tuple(next(counts) for _ in triples) for triples in own]
    seconds = [tuple(next(counts) for _ in triples) for triples in shuffled]
    return [
        HeadSkipTrigrams(*place, tuple(triples), *found)
        for place, triples, *found in zip(places, by_head, firsts, seconds, strict=True)
    ]


class Measurements:
    """One model's measurements, each made when it is first read; scores and evidence are saved as stages."""

    def __init__(self, lm: Decoder, corpus: CorpusSource, work: Work, options: Options) -> None:
        self.lm, self.corpus, self.work, self.options = lm, open_corpus(corpus), work, options
        self.circuits = circuits(lm)
        self.basis: HeadBasis = options.basis or default_basis(lm)
        self.seed = work.seed
        self.carried: Carried | None = None

    @property
    def provenance(self) -> Provenance:
        """The provenance of every table."""
        notes = {"unlearned tokens left out": 0 if self.options.include_unlearned else int(self.lm.unlearned.sum())}
        return self.lm.provenance(basis=self.basis, corpus=self.corpus.fingerprint, seed=self.seed, notes=notes)

    @cached_property
    def direct_path(self) -> DirectPath:
        """Token embedding times unembedding, compared with bigrams."""
        return direct_path(self.lm, self.corpus, hide_unlearned=not self.options.include_unlearned)

    @cached_property
    def scores(self) -> HeadScores:
        """The scores of every head on repeated random tokens."""

        def compute() -> Arrays:
            length = min(64, (self.lm.n_ctx or 256) // 2 - 2)
            found = self.circuits.head_scores(self.seed, n_sequences=self.options.sequences, length=length)
            return {"by_sequence": found.by_sequence.numpy(), "length": np.array(found.length)}

        stored = self.work.stage("head scores", compute)
        return HeadScores.of(
            torch.from_numpy(stored["by_sequence"]), int(stored["length"]), self.lm.provenance(seed=self.seed)
        )

    def score_of(self, kind: str, place: tuple[int, int]) -> Measured:
        """Return one score of one head, with its interval over sequences."""
        value, half = float(self.scores[kind][place]), float(self.scores.interval(kind)[place])
        return Measured(value, value - half, value + half, self.scores.by_sequence.shape[1])

    @cached_property
    def copying(self) -> Spectra:
        """The eigenvalues of every head's full OV circuit."""
        return self.circuits.copying(self.basis)

    @cached_property
    def frequent(self) -> Int[Tensor, " token"]:
        """The tokens that occur often enough in the corpus to be counted.

        The largest entries of a circuit are often those of rare tokens.
        """
        often = frequent_tokens(self.lm, self.corpus)
        often = often if len(often) >= 50 else frequent_tokens(self.lm, self.corpus, 1)
        return often if self.options.include_unlearned else often[~self.lm.unlearned.cpu()[often]]

    @cached_property
    def predicted(self) -> int:
        """The most probable token after the prompt whose logits are split by path."""
        logits = self.expansion.logits
        hidden = torch.zeros_like(self.lm.unlearned) if self.options.include_unlearned else self.lm.unlearned
        return int(logits.masked_fill(hidden.to(logits.device), -torch.inf).argmax())

    def require_earlier_heads(self, what: str) -> None:
        """Refuse measurements of heads that read other heads, in a model that has none.

        Raises:
            Unsupported: fewer than two layers have attention.
        """
        if len(self.lm.attention_layers) < 2:
            require_heads(self.lm, what)
            why = f"layer {self.first_layer} alone has attention, so no head reads another"
            raise Unsupported(f"{what} of {self.lm.name}", why=why)

    @property
    def first_layer(self) -> int:
        """The first layer with attention.

        Raises:
            Unsupported: no layer has any.
        """
        require_heads(self.lm, "heads")
        return self.lm.attention_layers[0]

    @cached_property
    def bigrams(self) -> Bigrams:
        """The bigrams of the corpus."""
        return Bigrams.of_corpus(self.lm, self.corpus)

    @cached_property
    def token_reading(self) -> TokenReading | None:
        """What each layer reads of the frequent tokens; None where only the first layer's embeddings can be read."""
        try:
            vectors = token_vectors(self.lm, self.frequent, self.lm.attention_layers, self.basis)
        except Unsupported:
            return None
        return TokenReading(vectors)

    @cached_property
    def skip_trigrams(self) -> list[HeadSkipTrigrams]:
        """The skip-trigrams of every head of every layer, or of the first where layers change the stream itself."""
        reading = self.token_reading
        layers = [self.first_layer] if reading is None else list(self.lm.attention_layers)
        return skip_trigrams_by_head(
            self.circuits, layers, 25, self.basis, self.corpus, self.frequent, self.seed, reading
        )

    @cached_property
    def expansion(self) -> Expansion:
        """The logits of one prompt, split by path."""
        return self.circuits.expand(self.example, 2 if self.lm.n_layers > 1 else 1)

    @cached_property
    def term_importance(self) -> TermImportance:
        """How much paths of each order lower the loss."""
        return self.circuits.term_importance(self.corpus, max_tokens=self.options.tokens)

    @cached_property
    def compositions(self) -> dict[str, Float[Tensor, "layer head layer_reading head_reading"]]:
        """The Q-, K- and V-composition of all pairs, without subtracting the baseline."""
        return self.circuits.compositions(self.basis)

    @cached_property
    def evidence(self) -> list[InductionEvidence]:
        """The evidence of induction for every head above the first attention layer.

        Empty for a model with one layer.
        """
        if self.lm.n_layers < 2:
            return []
        names = [f.name for f in fields(InductionEvidence)]

        def compute() -> Arrays:
            found = self.circuits.induction(self.basis, self.seed, scores=self.scores)
            missing = {name: (-1, -1) if name == "partner" else np.nan for name in names}
            values = {name: [getattr(e, name) for e in found] for name in names}
            return {n: np.array([missing[n] if v is None else v for v in values[n]]) for n in names}

        stored: dict[str, list[Any]] = {
            name: [None if value != value else value for value in array.tolist()]
            for name, array in self.work.stage("evidence of induction", compute).items()
        }
        stored["partner"] = [None if p[0] < 0 else tuple(p) for p in stored["partner"]]
        rows = zip(*(stored[n] for n in names), strict=True)
        return [InductionEvidence(**dict(zip(names, row, strict=True))) for row in rows]

    @cached_property
    def memory_management(self) -> MemoryManagement:
        """The memories and heads that erase, found by weights and measured on text."""
        return memory_management(self.lm, self.basis, corpus=self.corpus, verify=True)

    @cached_property
    def example(self) -> Int[Tensor, "1 pos"]:
        """The start of the text, repeated twice, without the last token."""
        half = min(HALF, ((self.lm.n_ctx or 64) - 2) // 2)
        for segment in windows_of(self.corpus, 2 * half).segments(self.lm):
            tokens = segment.tokens[segment.lead :]
            if len(tokens) >= half:
                once = tokens[:half].long()
                return torch.cat([once, once])[None, :-1].to(self.lm.device)
        raise InvalidInput("the corpus", why=f"no document of it has {half} tokens")


class ByLens(Measurements):
    """The measurements of what heads write, carried to the end of the model by a fitted lens; the others are shared."""

    def __init__(self, own: Measurements, carried: Carried) -> None:
        super().__init__(own.lm, own.corpus, own.work, own.options)
        self.own, self.carried = own, carried
        vars(self)["scores"], vars(self)["frequent"], vars(self)["bigrams"] = own.scores, own.frequent, own.bigrams

    @cached_property
    def copying(self) -> Spectra:
        """The eigenvalues of every head's OV circuit to the carried output."""
        return self.circuits.copying(self.basis, carried=self.carried)

    @cached_property
    def token_reading(self) -> TokenReading | None:
        """What each layer reads of the frequent tokens, and the carried output."""
        own = self.own.token_reading
        return None if own is None else replace(own, carried=self.carried)

    @cached_property
    def evidence(self) -> list[InductionEvidence]:
        """The evidence of induction, with the copying scores of the carried output."""
        scores = self.copying.score
        return [
            e if e.copying is None else replace(e, copying=number_or_none(scores[e.layer, e.head]))
            for e in self.own.evidence
        ]


def by_lens(m: Measurements) -> Measurements | None:
    """Return the measurements by the lens that the model has now; None where blocks change the stream itself."""
    lens = lens_of(m.lm)
    if lens is None or m.token_reading is None:
        return None

    def carried(layer: int) -> Float[Tensor, "d_model d_model"]:
        return lens.jacobian(layer, "resid_mid" if has_point(m.lm, "resid_mid", layer) else "resid_post")

    return ByLens(m, carried)
