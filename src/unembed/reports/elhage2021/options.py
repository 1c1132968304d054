"""Settings of the study of Elhage et al. 2021."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unembed.errors import InvalidInput
from unembed.names import HeadBasis


@dataclass(frozen=True)
class Options:
    """Settings of the study.

    Attributes:
        basis: "raw" (the weights alone, as in the paper) or "folded" (through the norms); folded where the model has
            norms when None.
        sequences: the number of sequences of repeated random tokens.
        tokens: the number of text tokens, for losses by order of path.
        windows: the number of windows of text, for losses by position.
        include_unlearned: read tokens that the model never learned, too; left out by default.
        control: run the study on the same architecture with random weights, too.
    """

    basis: HeadBasis | None = None
    sequences: int = 50
    tokens: int = 10_000
    windows: int = 192
    include_unlearned: bool = False
    control: bool = True

    def __post_init__(self) -> None:
        for name, least in (("sequences", 2), ("tokens", 1), ("windows", 1)):
            if getattr(self, name) < least:
                raise InvalidInput(f"option {name}={getattr(self, name)}", why=f"it must be at least {least}")

    def of_control(self) -> Options:
        """Return settings with a small sample, for the model with random weights."""
        return replace(
            self, sequences=min(self.sequences, 10), tokens=min(self.tokens, 2000), windows=min(self.windows, 24),
            control=False,
        )  # fmt: skip
