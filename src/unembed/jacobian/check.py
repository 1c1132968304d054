"""Compare a fitted lens's predictions, and the logit lens's, with the model's, by layer on held-out text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus import CorpusSource
from unembed.corpus.whole_windows import WholeWindows
from unembed.lens import logits_of
from unembed.stream.run import run

if TYPE_CHECKING:
    from unembed.jacobian.lens import JacobianLens

SKIPPED = 4
"""Number of first positions of each context that are left out: their residual streams are outliers in many models."""
HELD_OUT = 4
"""Number of text windows, after those that a lens is fitted on, on which it is checked."""
_LENGTH = 64
"""Window length in tokens, for a lens whose file does not contain the length of its contexts."""
_ROWS = 128
"""Number of positions whose scores over the vocabulary are in memory at once."""


@dataclass(frozen=True, eq=False)
class LensCheck:
    """How well a lens and the logit lens predict the model's output from each layer's resid_post, on held-out text."""

    kl: Float[Tensor, " layer"]
    """Median over positions of the KL divergence KL(model || lens), in nats."""
    agreement: Float[Tensor, " layer"]
    """Share of positions at which the lens and the model have the same most likely token."""
    logit_lens_kl: Float[Tensor, " layer"]
    logit_lens_agreement: Float[Tensor, " layer"]
    positions: int


def checked_on(lens: JacobianLens, corpus: CorpusSource = None) -> LensCheck | None:
    """Check a lens on the text windows after those that it was fitted on; None if the text ends there.

    Args:
        lens: a lens that is bound to a model.
        corpus: the text that it was fitted on; the shipped text when None.
    """
    assert lens.lm is not None
    length = lens.length or _LENGTH
    end = max((end for _, end in lens.spans), default=lens.contexts if lens.length else 0)
    windows = WholeWindows.of(lens.lm, corpus, length, end, HELD_OUT)
    tokens = [segment.tokens.to(lens.lm.device) for segment in windows.segments]
    return check_lens(lens, tokens, SKIPPED) if tokens else None


@torch.no_grad()
def check_lens(lens: JacobianLens, windows: Sequence[Int[Tensor, " pos"]], skipped: int) -> LensCheck:
    """Compare the lens, and the logit lens, with the model's prediction at every position of some text windows.

    Args:
        lens: a lens that is bound to a model.
        windows: text that the lens was not fitted on.
        skipped: number of first positions of each window that are left out.

    Memory: four tensors of shape (`_ROWS`, d_vocab).
    """
    lm = lens.lm
    assert lm is not None
    runs = [run(lm, window, "resid_post") for window in windows]
    logits = torch.cat([found.logits[0, skipped:] for found in runs])
    by_layer: list[tuple[float, float, float, float]] = []
    for layer in range(lm.n_layers):
        stream = torch.cat([found.at("resid_post", layer)[0, skipped:] for found in runs])
        kept: list[list[Tensor]] = [[], [], [], []]
        for rows in torch.arange(len(stream)).split(_ROWS):
            own = logits[rows].float().log_softmax(dim=-1)
            for n, read in enumerate((lens.read(stream[rows], layer), logits_of(lm, stream[rows]).float())):
                scores = read.log_softmax(dim=-1)
                kept[2 * n].append((own.exp() * (own - scores)).sum(dim=-1))
                kept[2 * n + 1].append((own.argmax(dim=-1) == scores.argmax(dim=-1)).float())
        kl, agreement, plain_kl, plain_agreement = (torch.cat(part) for part in kept)
        by_layer.append((
            float(kl.median()), float(agreement.mean()), float(plain_kl.median()), float(plain_agreement.mean()),
        ))  # fmt: skip
    columns = torch.tensor(by_layer).T
    return LensCheck(columns[0], columns[1], columns[2], columns[3], len(logits))
