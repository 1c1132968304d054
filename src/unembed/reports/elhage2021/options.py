"""Settings of the study of Elhage et al. 2021."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unembed.names import HeadBasis
from unembed.reports.options import require_at_least


@dataclass(frozen=True)
class Options:
    """Settings of the study.

    Attributes:
        basis: "raw" (the weights as they are, as in the paper) or "folded" (with the norms folded into the weights);
            when None, "folded" if the model has norms.
        sequences: the number of sequences of repeated random tokens.
        tokens: the number of text tokens on which the loss is split by the number of heads on a path.
        windows: the number of windows of text on which the loss at each position is measured.
        token: the token whose recurrences in the text show what the strongest induction head does; when None, the word
            whose recurrences are followed most often by the same token as an earlier occurrence.
        include_unlearned: also include tokens that the model never learned.
        control: also run the study on the same architecture with random weights.
    """

    basis: HeadBasis | None = None
    sequences: int = 50
    tokens: int = 10_000
    windows: int = 192
    token: str | None = None
    include_unlearned: bool = False
    control: bool = True

    def __post_init__(self) -> None:
        require_at_least(self, 2, "sequences")
        require_at_least(self, 1, "tokens", "windows")

    def of_control(self) -> Options:
        """Return settings with a small sample, for the model with random weights."""
        return replace(
            self, sequences=min(self.sequences, 10), tokens=min(self.tokens, 2000), windows=min(self.windows, 24),
            control=False,
        )  # fmt: skip
