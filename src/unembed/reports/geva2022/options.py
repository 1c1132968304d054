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
        changes: of these, how many test Eq. 2, the change of a probability by each dominant sub-update; 0 leaves it
            out.
        per_layer: vectors of each layer searched for concepts (paper: 10).
        clusters: clusters of all values (paper: 10,000 of 65,536 or 98,304); when None, 10,000 where there are at least
            65,536 values, else a tenth of the values.
        frequency_text: text in which tokens are counted, to tell rare tokens from common ones; what `open_corpus`
            takes, as a path; the text of the examples when None.
        threshold: score beyond which a sub-update is extreme (paper: 10 for GPT2, 5 for WikiLM); the outermost 0.5 %
            when None, because units of scores differ between models.
        norm_values: values of each layer for App. A.1.
        basis: "raw" (the paper's e_w . m_i v_i) or "frozen" (through the final norm), of the scores. A model with an
            adaptive softmax (WikiLM) is read by it: values by its log-probabilities, scores in "adaptive", the change
            of log p.
        exit_examples: examples for section 6.2 (paper: 10,000); 0 leaves it out.
        exit_protocol: how the classifiers of section 6.2 are fitted: "paper" (l1 and l2, seven regularisations, eight
            folds) or "quick" (l2, three regularisations, three folds), a tenth of the time.
        prompts: file of prompts to continue, for section 6.1; without it that section is left out.
        scorer: what scores toxicity: "linear", which comes with the package, or what `unembed toxicity` takes.
        values: for section 6.1, names of values picked by hand, separated by commas, such as "L3M12,L5M278"; when None,
            the paper's ten on gpt2-medium.
        perplexity_text: for section 6.1, file of the text on which perplexity is measured, whole (the paper's numbers
            fit WikiText-2's test text); a part of the text that comes with the package when None.
        words: file of banned words, for the word filters.
        beams: the width of the beam search in addition to greedy decoding in section 6.1 (paper: 3); 0 leaves it out.
        pre_activation: turn values on before the activation function, not after it: a value is set to f(3), not to 3.
        judge: names concepts in the same values in addition to the program; see `unembed.annotation.judge`.
        include_unlearned: read tokens that the model never learned, too; left out by default.
        control: run the study on the same architecture with random weights, too.
    """

    examples: int = 2000
    changes: int = 100
    per_layer: int = 10
    clusters: int | None = None
    frequency_text: str | None = None
    threshold: float | None = None
    norm_values: int = 1000
    basis: ScoreBasis = "raw"
    exit_examples: int = 600
    exit_protocol: str = "paper"
    prompts: str | None = None
    scorer: str = "linear"
    values: str | None = None
    perplexity_text: str | None = None
    words: str | None = None
    beams: int = 3
    pre_activation: bool = False
    judge: Judge | None = None
    include_unlearned: bool = False
    control: bool = True

    def __post_init__(self) -> None:
        if self.basis not in SCORE_BASES:
            raise InvalidInput(f"basis {self.basis!r}", why=f"it must be one of {', '.join(SCORE_BASES)}")
        if self.exit_protocol not in ("paper", "quick"):
            raise InvalidInput(f"option exit_protocol={self.exit_protocol!r}", why="it must be paper or quick")
        if self.beams < 0 or self.beams == 1:
            raise InvalidInput(f"option beams={self.beams}", why="it must be 0, or at least 2")
        if self.changes < 0:
            raise InvalidInput(f"option changes={self.changes}", why="it must be at least 0")
        for name in ("examples", "per_layer", "norm_values"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"option {name}={getattr(self, name)}", why="it must be at least 1")

    def of_control(self) -> Options:
        """Return settings of the control: a small sample, no toxicity, no judge."""
        return replace(
            self,
            examples=min(self.examples, 400),
            changes=min(self.changes, 40),
            norm_values=min(self.norm_values, 100),
            exit_examples=min(self.exit_examples, 300),
            exit_protocol="quick",
            prompts=None,
            words=None,
            judge=None,
            control=False,
        )
