"""A model's attention heads as circuits: one object with every analysis of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.behaviour.head_scores import HeadScores, head_scores
from unembed.attention.behaviour.in_context import InContext, in_context
from unembed.attention.behaviour.induction import InductionEvidence, SourceEffects, induction_evidence, source_effects
from unembed.attention.behaviour.score_terms import ScoreTerms, score_terms
from unembed.attention.paths.erasure import MemoryManagement, memory_management
from unembed.attention.paths.expansion import Expansion, expand
from unembed.attention.paths.term_importance import TermImportance, term_importance
from unembed.attention.paths.virtual_heads import Head, VirtualHead
from unembed.attention.paths.weights_between import Input, VirtualWeight, readers_of, virtual_weight, writers_of
from unembed.attention.text.direct_path import DirectPath, direct_path
from unembed.attention.text.skip_trigrams import SkipTrigram, SkipTrigramBugs, skip_trigram_bugs, skip_trigrams
from unembed.attention.weights.by_offset import position_scores, previous_token_by_weights, scores_by_offset
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.corpus import CorpusSource
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import HeadBasis
from unembed.results import Records
from unembed.stream.run import Tokens
from unembed.validation import as_pair


class Circuits(HeadMatrices):
    """The QK and OV circuits of every head of a model, and every analysis of them.

    `HeadMatrices` holds what follows from the weights alone; what is measured on tokens starts here.
    """

    def __repr__(self) -> str:
        return f"Circuits({self.lm.name}: {self.lm.n_layers} layers, {self.lm.heads_a_layer})"

    def head_scores(
        self, seed: int = 0, *, n_sequences: int = 50, length: int | None = None, tokens: Tensor | None = None
    ) -> HeadScores:
        """What each head does on random tokens repeated twice; see `head_scores.head_scores`."""
        return head_scores(self.lm, n_sequences, length, seed, tokens)

    def score_terms(self, tokens: Tokens, layer: int, head: int) -> ScoreTerms:
        """A head's attention scores on a prompt as a sum: content, positions, biases, ALiBi; see `scores`."""
        return score_terms(self.lm, tokens, layer, head)

    def head(self, layer: int, head: int) -> Head:
        """One head."""
        return Head(self, (self.resolve_head(layer, head, "raw"),))

    def virtual_head(self, first: tuple[int, int], second: tuple[int, int]) -> VirtualHead:
        """An earlier and a later head (layer, head) that act as one head, with the methods of a head.

        Raises:
            InvalidInput: the second head's layer is not after the first's.
        """
        a, b = (self.resolve_head(*as_pair("head", head), "raw") for head in (first, second))
        if a[0] >= b[0]:
            raise InvalidInput(
                f"virtual head of L{a[0]}H{a[1]} and L{b[0]}H{b[1]}",
                why="the second head must be in a later layer to read the first head's output",
            )
        return VirtualHead(self, (a, b))

    def position_scores(
        self, layer: int, head: int, basis: HeadBasis = "raw", *, positions: int | None = None
    ) -> Float[Tensor, "dst src"]:
        """Scores of all pairs of positions by the table of positions alone; see `by_offset.position_scores`."""
        return position_scores(self, layer, head, basis, positions=positions)

    def previous_token_by_weights(self, basis: HeadBasis = "raw") -> Float[Tensor, "layer head"] | None:
        """Attention to the position before by the table of positions alone; None where there is none."""
        return previous_token_by_weights(self, basis)

    def scores_by_offset(
        self, layer: int, head: int, offsets: Sequence[int], basis: HeadBasis = "raw"
    ) -> Float[Tensor, " offset"]:
        """The mean score of a source by its distance in tokens; see `by_offset.scores_by_offset`."""
        return scores_by_offset(self, layer, head, offsets, basis)

    def virtual_weight(
        self, writer: str, reader: str, basis: HeadBasis = "raw", *, centre: bool = True
    ) -> dict[Input, Float[Tensor, "row column"]]:
        """The weights between two heads or memories (L0H3, L5M278); see `weights_between.virtual_weight`."""
        return virtual_weight(self.lm, writer, reader, basis, centre=centre)

    def readers_of(
        self, writer: str, top: int = 20, basis: HeadBasis = "raw", *, centre: bool = True
    ) -> Records[VirtualWeight]:
        """The later heads and memories that read most of what one writes; see `weights_between.readers_of`."""
        return readers_of(self.lm, writer, top, basis, centre=centre)

    def writers_of(
        self, reader: str, top: int = 20, basis: HeadBasis = "raw", *, centre: bool = True
    ) -> Records[VirtualWeight]:
        """The earlier heads and memories whose output one reads most of; see `weights_between.writers_of`."""
        return writers_of(self.lm, reader, top, basis, centre=centre)

    def skip_trigrams(
        self,
        layer: int,
        head: int,
        top: int = 50,
        *,
        basis: HeadBasis = "raw",
        offset: int = 1,
        source: str | int | None = None,
        hide_unlearned: bool = True,
        among: Int[Tensor, " token"] | None = None,
    ) -> Records[SkipTrigram]:
        """The "source ... destination -> output" triples that a head raises most; see `skip_trigrams`."""
        token = None if source is None else self.lm.single_token(source)
        return skip_trigrams(
            self, layer, head, top, basis=basis, offset=offset, source=token, hide_unlearned=hide_unlearned, among=among
        )

    def skip_trigram_bugs(
        self, layer: int, head: int, source: str | int, corpus: CorpusSource = None, top: int = 20, **options: Any
    ) -> SkipTrigramBugs:
        """The pairs that a head raises by mistake after a source; see `skip_trigrams.skip_trigram_bugs`."""
        return skip_trigram_bugs(self, layer, head, self.lm.single_token(source), corpus, top=top, **options)

    def expand(self, tokens: Tokens, order: int = 2, position: int = -1) -> Expansion:
        """The logits of a prompt at one position as a sum over paths through heads; see `expansion.expand`."""
        return expand(self.lm, tokens, order, position)

    def term_importance(
        self, corpus: CorpusSource | Int[Tensor, "row pos"] = None, order: int | None = None, **options: Any
    ) -> TermImportance:
        """By how much each order of path lowers the loss on text; see `term_importance.term_importance`."""
        return term_importance(self.lm, corpus, order, **options)

    def source_effects(self, tokens: Tokens, layer: int, head: int, position: int, token: str | int) -> SourceEffects:
        """Where a head attends at one position, and what each source adds to a logit; see `induction.source_effects`.

        The two pictures of Elhage et al. 2021, "Two-layer models: induction heads".
        """
        return source_effects(self, tokens, layer, head, position, token)

    def direct_path(self, corpus: CorpusSource = None, **options: Any) -> DirectPath:
        """Token embedding times unembedding compared with the bigrams of a corpus; see `direct_path.direct_path`."""
        return direct_path(self.lm, corpus, **options)

    def in_context(
        self, corpus: CorpusSource = None, ablate: Sequence[tuple[int, int]] = (), **options: Any
    ) -> InContext:
        """Loss by position on text, with or without some heads; see `in_context.in_context`."""
        return in_context(self.lm, corpus, ablate, **options)

    def memory_management(self, basis: HeadBasis = "raw", **options: Any) -> MemoryManagement:
        """Memories (FFN neurons) and heads that erase what earlier layers wrote; see `erasure.memory_management`."""
        return memory_management(self.lm, basis, **options)

    def induction(self, basis: HeadBasis = "raw", seed: int = 0, **options: Any) -> Records[InductionEvidence]:
        """Every head as a candidate for induction: weights and behaviour; see `induction.induction_evidence`."""
        return induction_evidence(self, basis, seed, **options)


def circuits(lm: Decoder) -> Circuits:
    """The attention circuits of a model."""
    return Circuits(require_decoder(lm))
