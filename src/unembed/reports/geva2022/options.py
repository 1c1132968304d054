"""Settings of the study of Geva et al. 2022."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unembed.annotation.judge import Judge
from unembed.errors import InvalidInput
from unembed.names import SCORE_BASES, ScoreBasis


@dataclass(frozen=True)
class Options:
    """Settings of the study; the defaults are the paper's except where noted.

    Attributes:
        examples: random prefixes for section 5 (paper: 2,000).
        per_layer: vectors of each layer searched for concepts (paper: 10).
        clusters: clusters of all values (paper: 10,000 of 98,304); a tenth of the values when None.
        threshold: score beyond which a sub-update is extreme (paper: 10 for GPT2, 5 for WikiLM); the outermost 0.5 %
            when None, because units of scores differ between models.
        norm_values: values of each layer for App. A.1.
        basis: "raw" (the paper's e_w . m_i v_i) or "frozen" (through the final norm), of the scores. A model with an
            adaptive softmax (WikiLM) is read by it: values by its log-probabilities, scores in "adaptive", the change
            of log p.
        exit_examples: examples for section 6.2 (paper: 10,000); 0 leaves it out.
        prompts: file of prompts to continue, for section 6.1; without it that section is left out.
        words: file of banned words, for the word filters.
        beams: the width of the beam search in addition to greedy decoding in section 6.1 (paper: 3); 0 leaves it out.
        pre_activation: turn values on before the activation function, not after it: a value is set to f(3), not to 3.
        judge: names concepts in the same values in addition to the program; see `unembed.annotation.judge`.
        include_unlearned: read tokens that the model never learned, too; left out by default.
        control: run the study on the same architecture with random weights, too.
    """

    examples: int = 2000
    per_layer: int = 10
    clusters: int | None = None
    threshold: float | None = None
    norm_values: int = 1000
    basis: ScoreBasis = "raw"
    exit_examples: int = 600
    prompts: str | None = None
    words: str | None = None
    beams: int = 3
    pre_activation: bool = False
    judge: Judge | None = None
    include_unlearned: bool = False
    control: bool = True

    def __post_init__(self) -> None:
        if self.basis not in SCORE_BASES:
            raise InvalidInput(f"basis {self.basis!r}", why=f"it must be one of {', '.join(SCORE_BASES)}")
        if self.beams < 0 or self.beams == 1:
            raise InvalidInput(f"option beams={self.beams}", why="it must be 0, or at least 2")
        for name in ("examples", "per_layer", "norm_values"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"option {name}={getattr(self, name)}", why="it must be at least 1")

    def of_control(self) -> Options:
        """Return settings of the control: a small sample, no toxicity, no judge."""
        return replace(
            self,
            examples=min(self.examples, 400),
            norm_values=min(self.norm_values, 100),
            exit_examples=min(self.exit_examples, 300),
            prompts=None,
            words=None,
            judge=None,
            control=False,
        )
