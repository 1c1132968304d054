"""Settings of the study of Geva et al. 2022."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unembed.annotation.judge import Judge
from unembed.errors import InvalidInput
from unembed.names import SCORE_BASES, ScoreBasis
from unembed.reports.options import require_at_least


@dataclass(frozen=True)
class Options:
    """Settings of the study; the defaults are the paper's except where noted.

    Attributes:
        examples: number of random prefixes for section 5 (paper: 2,000).
        changes: number of these prefixes on which Eq. 2 is tested: the change of a token's probability by each of the
            ten sub-updates (coefficient times value vector) that are largest in a layer; 0 leaves the test out.
        per_layer: number of vectors of each kind in each layer that are searched for concepts (paper: 10).
        clusters: number of clusters of all value vectors (paper: 10,000 of 65,536 or 98,304); when None, 10,000 if
            there are at least 65,536 value vectors, else a tenth of their number.
        frequency_text: path of a text (see `open_corpus`) in which tokens are counted, to distinguish rare from common
            tokens; the text of the examples when None.
        threshold: absolute score above which a sub-update is extreme (paper: 10 for GPT2, 5 for WikiLM); when None, the
            most extreme 0.5 % are, because the scale of scores differs between models.
        norm_values: number of value vectors of each layer for App. A.1.
        basis: how sub-updates are scored: "raw" (the paper's e_w . m_i v_i) or "frozen" (through the final norm, with
            its scale fixed). A model with an adaptive softmax (WikiLM) is always scored by the change of log p(w).
        exit_examples: number of examples for section 6.2 (paper: 10,000); 0 leaves the section out.
        exit_protocol: how the classifiers of section 6.2 are fitted: "paper" (l1 and l2, seven regularisations, eight
            folds) or "quick" (l2, three regularisations, three folds), a tenth of the time.
        prompts: file of prompts to continue, for section 6.1; without a file the section is left out.
        scorer: what scores toxicity: "linear" (comes with the package), or any scorer that `unembed toxicity` takes.
        values: for section 6.1, names of memories whose value vectors were picked by hand, separated by commas, such as
            "L3M12,L5M278"; when None, the ten of the paper if the model is gpt2-medium.
        perplexity_text: for section 6.1, file of the text on which perplexity is measured, all of it (the paper's
            numbers fit the test text of WikiText-2); when None, a part of the text that comes with the package.
        words: file of banned words, for the word filters.
        beams: number of beams of the beam search in section 6.1, in addition to greedy decoding (paper: 3); 0 for none.
        pre_activation: in section 6.1, set the input of the activation function f to 3, so that a coefficient becomes
            f(3), instead of setting the coefficient itself to 3.
        judge: finds concepts for the same value vectors in addition to the rules; see `unembed.annotation.judge`.
        include_unlearned: also include tokens that the model never learned.
        control: also run the study on the same architecture with random weights.
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
        require_at_least(self, 0, "changes")
        require_at_least(self, 1, "examples", "per_layer", "norm_values")

    def of_control(self) -> Options:
        """Return settings for the control with random weights: a small sample, no toxicity, no judge."""
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
