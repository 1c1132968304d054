"""A fitted Jacobian lens: it reads streams by an affine map, and parts of them by a linear map.

Source: Gurnee et al. 2026, the Jacobian lens. The affine reading adds the means of the fitting text, so that a stream
is read as its deviation from the average stream.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput, PointMissing
from unembed.jacobian.check import LensCheck
from unembed.lens import logits_of
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import sampled_fingerprint
from unembed.names import StreamPoint
from unembed.results import Displayed, Provenance, Table
from unembed.results.result_files import open_result
from unembed.validation import one_of

POINTS: tuple[StreamPoint, ...] = get_args(StreamPoint)


@dataclass(eq=False, repr=False)
class JacobianLens(Displayed):
    """The mean Jacobian of the last stream with respect to the stream at each layer, and the mean streams.

    Rows are vectors: a vector v of resid_pre of layer l becomes `v @ before[l]` at the end of the model.
    """

    before: Float[Tensor, "layer d_model d_model"]
    """Of resid_pre of each layer."""
    middle: Float[Tensor, "layer d_model d_model"] | None
    """Of resid_mid of each layer; NaN in layers without one, None where no layer has one."""
    mean_before: Float[Tensor, "layer d_model"]
    mean_middle: Float[Tensor, "layer d_model"] | None
    mean_final: Float[Tensor, " d_model"]
    """The mean of the last stream, before the final norm."""
    scale: float
    """The mean scale of the final norm, by which parts are read."""
    halves: Float[Tensor, " layer"]
    """By layer, the cosine of the Jacobians (resid_pre) of two halves of the contexts: how well the fit repeats."""
    contexts: int
    length: int
    fingerprint: str
    """Of the model's weights."""
    provenance: Provenance
    check: LensCheck | None = None
    """How well it predicts the model's prediction on held-out text; None where the text had no more windows."""
    lm: Decoder | None = field(default=None, metadata={"saved": False})
    """The model that it reads for; `lm.use_lens` sets it. Not saved."""

    def __getstate__(self) -> dict[str, object]:
        """Return what is pickled: everything except the live model."""
        return {**vars(self), "lm": None}

    def __repr__(self) -> str:
        return (
            f"JacobianLens({self.provenance.model}: {len(self.before)} layers, "
            f"{self.contexts} contexts of {self.length} tokens)"
        )

    def bound_to(self, lm: Decoder) -> "JacobianLens":
        """Return this lens, reading for a model.

        Raises:
            InvalidInput: it was fitted on other weights.
        """
        if self.fingerprint != sampled_fingerprint(lm):
            raise InvalidInput(
                f"the lens of {self.provenance.model}",
                why=f"it was fitted on other weights than those of {lm.name}",
                instead="Fit one for this model: lm.fit_lens, or `unembed fit-lens`",
            )
        self.lm = lm
        return self

    def jacobian(self, layer: int, point: StreamPoint = "resid_post") -> Float[Tensor, "d_model d_model"]:
        """Return the mean Jacobian of the last stream with respect to a point of a layer, to multiply row vectors by.

        Raises:
            OutOfRange: there is no such layer.
            PointMissing: the layer has no such point.
        """
        place, layer = self._place(layer, point)
        if place is None:
            return torch.eye(self.before.shape[1], dtype=self.before.dtype, device=self.before.device)
        return place[layer]

    def mean(self, layer: int, point: StreamPoint = "resid_post") -> Float[Tensor, " d_model"]:
        """Return the mean stream at a point of a layer."""
        place, layer = self._place(layer, point)
        if place is None:
            return self.mean_final
        means = self.mean_before if place is self.before else self.mean_middle
        assert means is not None
        return means[layer]

    def _place(self, layer: int, point: StreamPoint) -> tuple[Tensor | None, int]:
        """Return the Jacobians of a point and the row in them.

        None for the last stream, whose Jacobian is the identity.
        """
        one_of("point", point, POINTS)
        layer = self._model().layer(layer)
        if point == "resid_mid":
            if self.middle is None or bool(self.middle[layer, 0, 0].isnan()):
                why = "attention and FFN of this layer are not in sequence"
                raise PointMissing(f"resid_mid of layer {layer}", why=why, instead="Use resid_pre or resid_post")
            return self.middle, layer
        layer += point == "resid_post"  # resid_post of a layer is resid_pre of the next
        return (None, layer) if layer == len(self.before) else (self.before, layer)

    def _model(self) -> Decoder:
        if self.lm is None:
            raise InvalidInput(
                "a lens without a model",
                why="a lens reads through the unembedding of a model",
                instead="Use lm.use_lens(lens)",
            )
        return self.lm

    def carried(
        self, stream: Float[Tensor, "*pos d_model"], layer: int, point: StreamPoint = "resid_post"
    ) -> Float[Tensor, "*pos d_model"]:
        """Return the last stream that a stream leads to on average: the mean plus the transported deviation."""
        deviation = stream.to(self.before) - self.mean(layer, point)
        return self.mean_final + deviation @ self.jacobian(layer, point)

    @torch.no_grad()
    def read(
        self, stream: Float[Tensor, "*pos d_model"], layer: int, point: StreamPoint = "resid_post"
    ) -> Float[Tensor, "*pos d_vocab"]:
        """Return the logits that a stream leads to on average, through the final norm and the unembedding (affine).

        Args:
            stream: vectors of the stream at the point.
            layer: counted from 0; negative from the last.
            point: which stream of the layer.

        Raises:
            InvalidInput: the lens reads for no model yet.
        """
        lm = self._model()
        return logits_of(lm, self.carried(stream, layer, point).to(lm.dtype), "final").float()

    @torch.no_grad()
    def direction(
        self, vector: Float[Tensor, "*any d_model"], layer: int, point: StreamPoint = "resid_post"
    ) -> Float[Tensor, "*any d_vocab"]:
        """Return how adding a vector to the stream changes each logit, to first order and on average (linear).

        The final norm's scale is its mean over the fitting text. The mean over the vocabulary is taken away, because
        the softmax does not depend on it.

        Args:
            vector: a value, a head's output, any direction, in stream units.
            layer: the layer of the point where it is added; a memory of layer l is added to resid_post of l.
            point: the stream that it is added to.

        Returns:
            Changes of logits, which add up to 0 over the vocabulary.

        Raises:
            InvalidInput: the lens reads for no model yet.
        """
        scores = logits_of(self._model(), self.readable(vector, layer, point), "raw").float()
        return scores - scores.mean(dim=-1, keepdim=True)

    @torch.no_grad()
    def readable(
        self, vector: Float[Tensor, "*any d_model"], layer: int, point: StreamPoint = "resid_post"
    ) -> Float[Tensor, "*any d_model"]:
        """The vector whose product with W_U is `direction`, up to the mean over the vocabulary.

        Carried to the end of the model, and through the final norm at its mean scale over the fitting text.
        """
        structure = self._model().structure
        carried = vector.to(self.before) @ self.jacobian(layer, point)
        if structure.final_norm is not None:
            scale = torch.full((1,), self.scale, dtype=carried.dtype, device=carried.device)
            carried = structure.final_norm.frozen(carried, scale).to(carried.dtype)
        return carried * structure.logit_scale

    def to_table(self) -> Table:
        """One row for each layer: how well the fit repeats, and the check on held-out text beside the logit lens."""
        columns: dict[str, Sequence[object]] = {
            "layer": list(range(len(self.before))),
            "agreement_of_halves": self.halves.tolist(),
        }
        if (check := self.check) is not None:
            columns |= {
                "kl": check.kl.tolist(),
                "logit_lens_kl": check.logit_lens_kl.tolist(),
                "first_token": check.agreement.tolist(),
                "logit_lens_first_token": check.logit_lens_agreement.tolist(),
            }
        return Table("The Jacobian lens and the logit lens against the model's prediction", columns, self.provenance)


def open_lens(path: str | os.PathLike[str]) -> JacobianLens:
    """Read the lens that `lens.save(path)` wrote; `lm.use_lens` makes a model read with it.

    Raises:
        InvalidInput: the file is missing, damaged, or holds something else.
    """
    found = open_result(path)
    if not isinstance(found, JacobianLens):
        raise InvalidInput(f"{path}", why=f"it holds a {type(found).__name__}, not a lens")
    return found
