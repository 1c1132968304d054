"""The measurements of the study on one model, each made when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.behaviour.head_scores import HeadScores
from unembed.attention.behaviour.in_context import InContext, head_output_lengths, in_context
from unembed.attention.behaviour.induction import InductionEvidence
from unembed.attention.circuits import circuits
from unembed.attention.paths.erasure import MemoryManagement, memory_management
from unembed.attention.paths.expansion import Expansion
from unembed.attention.paths.term_importance import TermImportance
from unembed.attention.text.bigrams import Bigrams
from unembed.attention.text.direct_path import DirectPath, direct_path_against, halves_of
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
from unembed.corpus import CorpusSource, open_corpus
from unembed.corpus.windows import windows_of
from unembed.document.intervals import Measured
from unembed.errors import InvalidInput, Unsupported
from unembed.jacobian.basis import lens_of
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis
from unembed.reports.elhage2021.options import Options
from unembed.reports.quantities import Numbers
from unembed.reports.stages import Work
from unembed.results import Provenance
from unembed.stream.capture_points import has_point

HALF = 24
"""Largest number of tokens in one copy of the repeated text `Measurements.example`."""
TRIPLES = 25
"""Number of skip-trigrams measured for each head: those with the highest scores."""
DRAWS = 5
"""Number of times that sources are shuffled among a head's triples, for comparison with the triples themselves."""


@dataclass(frozen=True)
class HeadSkipTrigrams:
    """The skip-trigrams that one head raises most, and how often each occurs in a corpus.

    A skip-trigram (a triple below) consists of a source token, a destination token and an output token.

    Attributes:
        layer, head: the index of the layer, and of the head in it.
        triples: the triples, highest score first.
        counts: the counts of each triple in the corpus.
        shuffled: the counts after the sources have been shuffled among the head's triples, `DRAWS` times; the counts of
            the first shuffle come first.
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
        """The counts of the triples whose output token equals their source token."""
        return [c for t, c in zip(self.triples, self.counts, strict=True) if t.source == t.output]

    @property
    def likelier(self) -> int:
        """The number of triples whose output follows the destination more often if the source occurred before it."""
        return sum(c.output_with_source > 0 and not c.rate_with <= c.rate_without for c in self.counts)


class Measurements:
    """The measurements on one model, each made when it is first used; the slowest ones are also stored on disk."""

    def __init__(self, lm: Decoder, corpus: CorpusSource, work: Work, options: Options) -> None:
        self.lm, self.corpus, self.work, self.options = lm, open_corpus(corpus), work, options
        self.circuits = circuits(lm)
        self.basis: HeadBasis = options.basis or default_basis(lm)
        self.seed = work.seed
        self.carried: Carried | None = None

    @property
    def provenance(self) -> Provenance:
        """The provenance of every table of the report."""
        notes = {"unlearned tokens left out": 0 if self.options.include_unlearned else int(self.lm.unlearned.sum())}
        return self.lm.provenance(basis=self.basis, corpus=self.corpus.fingerprint, seed=self.seed, notes=notes)

    @cached_property
    def direct_path(self) -> DirectPath:
        """The direct path (token embedding times unembedding), compared with the bigrams of the corpus."""
        halves = self.work.once_for_text("bigrams of halves", lambda: halves_of(self.lm, self.corpus))
        return direct_path_against(self.lm, halves, hide_unlearned=not self.options.include_unlearned)

    @cached_property
    def scores(self) -> HeadScores:
        """The scores of every head on repeated random tokens."""
        n, length = self.options.sequences, min(64, (self.lm.n_ctx or 256) // 2 - 2)
        return self.work.stage(
            "head scores", lambda: self.circuits.head_scores(self.seed, n_sequences=n, length=length)
        )

    def score_of(self, kind: str, place: tuple[int, int]) -> Measured:
        """Return one score of the head at `place` (layer, head), with its confidence interval over sequences."""
        value, half = float(self.scores[kind][place]), float(self.scores.interval(kind)[place])
        return Measured(value, value - half, value + half, self.scores.by_sequence.shape[1])

    @cached_property
    def copying(self) -> Spectra:
        """The eigenvalues of every head's full OV circuit (embedding, OV matrix, unembedding)."""
        return self.circuits.copying(self.basis)

    @cached_property
    def frequent(self) -> Int[Tensor, " token"]:
        """The ids of the tokens that occur often enough in the corpus to count skip-trigrams (triples) of them.

        The largest entries of a circuit often belong to rare tokens, which occur too seldom in the corpus to confirm a
        triple.
        """
        often = self.work.once_for_text("frequent tokens", self._often)
        return often if self.options.include_unlearned else often[~self.lm.unlearned.cpu()[often]]

    def _often(self) -> Int[Tensor, " token"]:
        often = frequent_tokens(self.lm, self.corpus)
        return often if len(often) >= 50 else frequent_tokens(self.lm, self.corpus, 1)

    @cached_property
    def predicted(self) -> int:
        """The most probable token after the prompt whose logits are split by path."""
        logits = self.expansion.logits
        hidden = torch.zeros_like(self.lm.unlearned) if self.options.include_unlearned else self.lm.unlearned
        return int(logits.masked_fill(hidden.to(logits.device), -torch.inf).argmax())

    def require_earlier_heads(self, what: str) -> None:
        """Raise an error if no head can read the output of an earlier head; `what` names the measurement that needs it.

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
            Unsupported: no layer has attention heads.
        """
        require_heads(self.lm, "heads")
        return self.lm.attention_layers[0]

    @cached_property
    def bigrams(self) -> Bigrams:
        """The bigrams of the corpus."""
        return self.work.once_for_text("bigrams", lambda: Bigrams.of_corpus(self.lm, self.corpus))

    @cached_property
    def token_reading(self) -> TokenReading | None:
        """The vector that each layer reads for each frequent token; None if only the first layer's are known."""
        try:
            vectors = token_vectors(self.lm, self.frequent, self.lm.attention_layers, self.basis)
        except Unsupported:
            return None
        return TokenReading(vectors)

    @cached_property
    def skip_trigrams(self) -> list[HeadSkipTrigrams]:
        """The skip-trigrams of every head; only those of the first attention layer if `token_reading` is None."""
        reading, blocks = self.token_reading, self.lm.structure.blocks
        layers = [self.first_layer] if reading is None else self.lm.attention_layers
        places = [(n, h) for n in layers for h in range(blocks[n].attention.n_heads)]
        by_head = [
            self.circuits.skip_trigrams(*place, TRIPLES, basis=self.basis, among=self.frequent, reading=reading)
            for place in places
        ]
        own = [[(t.source, t.destination, t.output) for t in triples] for triples in by_head]
        shuffled = [shuffled_sources(triples, DRAWS, self.seed + i) for i, triples in enumerate(own)]
        every = [*(t for triples in own for t in triples), *(t for triples in shuffled for t in triples)]
        counts = iter(count_in_corpus(self.lm, every, self.corpus))
        firsts = [tuple(next(counts) for _ in triples) for triples in own]
        seconds = [tuple(next(counts) for _ in triples) for triples in shuffled]
        return [
            HeadSkipTrigrams(*place, tuple(triples), *found)
            for place, triples, *found in zip(places, by_head, firsts, seconds, strict=True)
        ]

    @cached_property
    def expansion(self) -> Expansion:
        """The logits of one prompt, split by path."""
        return self.circuits.expand(self.example, 2 if self.lm.n_layers > 1 else 1)

    @cached_property
    def term_importance(self) -> TermImportance:
        """How much the paths of each order (the number of heads on a path) lower the loss."""
        return self.circuits.term_importance(self.corpus, max_tokens=self.options.tokens)

    @cached_property
    def compositions(self) -> dict[str, Float[Tensor, "layer head layer_reading head_reading"]]:
        """The Q-, K- and V-composition of all pairs of heads; the composition of random matrices is not subtracted."""
        return self.circuits.compositions(self.basis)

    @cached_property
    def evidence(self) -> list[InductionEvidence]:
        """The evidence of induction, in behaviour and weights, for every head above the first attention layer.

        Empty for a model with one layer.
        """
        if self.lm.n_layers < 2:
            return []
        return self.work.stage(
            "evidence of induction",
            lambda: list(self.circuits.induction(self.basis, self.seed, scores=self.scores)),
        )

    @cached_property
    def loss_in_context(self) -> InContext | None:
        """The loss at each position of windows of text; None if no document has 32 tokens."""
        window = min(self.lm.n_ctx or 512, 512)
        while window >= 32:
            try:
                return in_context(self.lm, self.corpus, window=window, max_windows=self.options.windows)
            except InvalidInput:
                window //= 2  # the documents may be shorter than the window
        return None

    @cached_property
    def output_lengths(self) -> Float[Tensor, "layer head"]:
        """The mean norm of what each head writes on text."""
        window = None if self.loss_in_context is None else self.loss_in_context.window
        return head_output_lengths(self.lm, self.corpus, window=window)

    @cached_property
    def memory_management(self) -> MemoryManagement:
        """The memories (FFN neurons) and heads that erase what the stream contains, by weights and on text."""
        return memory_management(self.lm, self.basis, corpus=self.corpus, verify=True)

    @cached_property
    def example(self) -> Int[Tensor, "1 pos"]:
        """The start of the text, repeated once, without the last token of the repetition."""
        half = min(HALF, ((self.lm.n_ctx or 64) - 2) // 2)
        for segment in windows_of(self.corpus, 2 * half).segments(self.lm):
            tokens = segment.tokens[segment.lead :]
            if len(tokens) >= half:
                once = tokens[:half].long()
                return torch.cat([once, once])[None, :-1].to(self.lm.device)
        raise InvalidInput("the corpus", why=f"no document in it has {half} tokens")


class ByLens(Measurements):
    """The same measurements, but a fitted lens maps the outputs of heads to the final residual stream."""

    def __init__(self, own: Measurements, carried: Carried) -> None:
        super().__init__(own.lm, own.corpus, own.work, own.options)
        self.own, self.carried = own, carried
        vars(self)["scores"], vars(self)["frequent"], vars(self)["bigrams"] = own.scores, own.frequent, own.bigrams

    @cached_property
    def copying(self) -> Spectra:
        """The eigenvalues of every head's full OV circuit, with the lens between the OV matrix and the unembedding."""
        return self.circuits.copying(self.basis, carried=self.carried)

    @cached_property
    def token_reading(self) -> TokenReading | None:
        """The vector that each layer reads for each frequent token, with the lens for the outputs of heads."""
        own = self.own.token_reading
        return None if own is None else replace(own, carried=self.carried)

    @cached_property
    def loss_in_context(self) -> InContext | None:
        """The loss at each position of windows of text; the lens does not change it."""
        return self.own.loss_in_context

    @cached_property
    def output_lengths(self) -> Float[Tensor, "layer head"]:
        """The mean norm of what each head writes on text; the lens does not change it."""
        return self.own.output_lengths

    @cached_property
    def evidence(self) -> list[InductionEvidence]:
        """The evidence of induction for every head, with copying scores computed from this class's `copying`."""
        scores = self.copying.score
        return [
            e if e.copying is None else replace(e, copying=number_or_none(scores[e.layer, e.head]))
            for e in self.own.evidence
        ]


def by_lens(m: Measurements, _: Work) -> Measurements | None:
    """Return the same measurements with the model's fitted lens; None without a lens, or if `token_reading` is None."""
    lens = lens_of(m.lm)
    if lens is None or m.token_reading is None:
        return None

    def carried(layer: int) -> Float[Tensor, "d_model d_model"]:
        return lens.jacobian(layer, "resid_mid" if has_point(m.lm, "resid_mid", layer) else "resid_post")

    return ByLens(m, carried)


Measure = Callable[[Measurements], Numbers | None]


def only(measure: Measure, layers: int) -> Measure:
    """Return a measuring function that gives None for models whose number of layers is not `layers`."""
    return lambda m: measure(m) if m.lm.n_layers == layers else None


def beyond(measure: Measure, layers: int) -> Measure:
    """Return a measuring function that gives None for models with `layers` layers or fewer."""
    return lambda m: measure(m) if m.lm.n_layers > layers else None
