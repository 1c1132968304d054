"""Running sums over contexts from which a Jacobian lens is computed; a sweep updates, saves, resumes and merges them.

For each context, the last token is run in many copies, and copy k gives the gradient of channel k of the last residual
stream. One backward pass thus gives as many rows of every layer's Jacobian as there are copies.

Source: Gurnee et al. 2026, the Jacobian lens. Here both streams of a derivative are at the same position.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.jacobian.check import SKIPPED
from unembed.jacobian.passes import cache_of, gradient_rows, source_points
from unembed.lens import final_scale
from unembed.models.decoder import Decoder
from unembed.stream.capture_points import has_point
from unembed.stream.run import run
from unembed.sweeps.reducers.reducer import Need, Summed

COPIES = 96
"""Number of copies of the last token that are run at once."""


@dataclass(frozen=True, eq=False)
class LensMeans:
    """The means over contexts that make up a lens; `JacobianLens` explains the fields."""

    before: Float[Tensor, "layer d_model d_model"]
    middle: Float[Tensor, "layer d_model d_model"] | None
    mean_before: Float[Tensor, "layer d_model"]
    mean_middle: Float[Tensor, "layer d_model"] | None
    mean_final: Float[Tensor, " d_model"]
    scale: float
    halves: Float[Tensor, " layer"]
    contexts: int


class JacobianSums(Summed):
    """Sums of Jacobians (separately for even and odd contexts) and of residual streams; each batch is one context.

    Memory: float32 Jacobians of each layer's resid_pre and resid_mid for each half of the contexts, so
    16 * layers * d_model^2 bytes, and the activations of `COPIES` tokens.
    """

    def start(self, lm: Decoder) -> None:
        """Set all sums to zero."""
        self._lm, layers, width = lm, lm.n_layers, lm.d_model
        self._has_middle = torch.tensor([has_point(lm, "resid_mid", n) for n in range(layers)])
        self._sums = {
            "before": torch.zeros(2, layers, width, width),
            "mean before": torch.zeros(layers, width, dtype=torch.float64),
            "mean final": torch.zeros(width, dtype=torch.float64),
            "scale": torch.zeros((), dtype=torch.float64),
            "positions": torch.zeros((), dtype=torch.long),
            "contexts": torch.zeros(2, dtype=torch.long),
        }
        if bool(self._has_middle.any()):
            self._sums["middle"] = torch.zeros(2, layers, width, width)
            self._sums["mean middle"] = torch.zeros(layers, width, dtype=torch.float64)

    @property
    def needs(self) -> Collection[Need]:
        """Empty, because this reducer runs the model itself."""
        return ()

    def update(self, batch: Batch) -> None:
        """Add the Jacobians and streams of one context."""
        window, half = batch.tokens[0].to(self._lm.device), batch.number % 2
        self._add_means(window)
        self._add_jacobians(window, half)
        self._sums["contexts"][half] += 1

    @torch.no_grad()
    def _add_means(self, window: Int[Tensor, " pos"]) -> None:
        """Add the residual streams and the final norm's scales at all positions except the first few."""
        lm, sums = self._lm, self._sums
        found = run(lm, window, sorted({point for point, _ in source_points(lm)}), logits=False)
        for n in range(lm.n_layers):
            sums["mean before"][n] += _sum(found.at("resid_pre", n))
            if self._has_middle[n]:
                sums["mean middle"][n] += _sum(found.at("resid_mid", n))
        final = found.at("resid_post", lm.n_layers - 1)
        sums["mean final"] += _sum(final)
        sums["scale"] += final_scale(lm, final[0, SKIPPED:]).double().sum().cpu()
        sums["positions"] += len(window) - SKIPPED

    def _add_jacobians(self, window: Int[Tensor, " pos"], half: int) -> None:
        """Add the Jacobians at the last position of a context."""
        lm = self._lm
        cache = cache_of(lm, window[:-1])
        for start in range(0, lm.d_model, COPIES):
            end = min(start + COPIES, lm.d_model)
            for (point, layer), gradient in gradient_rows(lm, window, cache, torch.arange(start, end)).items():
                into = self._sums["before" if point == "resid_pre" else "middle"][half, layer]
                # Row k of `gradient` is the derivative of output channel k. The lens multiplies a row vector v as
                # v @ J, so this derivative must become a column of J.
                into[:, start:end] += gradient.to(into).T

    def result(self) -> LensMeans:
        """Return the means; `halves` is 0 if there is only one context."""
        sums, n = self._sums, int(self._sums["contexts"].sum())
        first, second = sums["before"].flatten(2)
        positions = sums["positions"]
        middle = mean_middle = None
        if "middle" in sums:
            middle = sums["middle"].sum(dim=0) / n
            middle[~self._has_middle] = torch.nan
            mean_middle = (sums["mean middle"] / positions).float()
        return LensMeans(
            sums["before"].sum(dim=0) / n,
            middle,
            (sums["mean before"] / positions).float(),
            mean_middle,
            (sums["mean final"] / positions).float(),
            float(sums["scale"] / positions),
            torch.nn.functional.cosine_similarity(first, second, dim=1),
            n,
        )


def _sum(stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, " d_model"]:
    return stream[0, SKIPPED:].double().sum(dim=0).cpu()
