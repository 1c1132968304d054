"""A fitted Jacobian lens: an affine map for residual streams, and a linear map for vectors that are added to them.

The affine map uses mean streams of the fitting text: it multiplies the deviation of a stream from the mean stream by
the Jacobian, and adds the mean last stream.

Source: Gurnee et al. 2026, the Jacobian lens.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput, PointMissing
from unembed.jacobian.check import HELD_OUT, LensCheck
from unembed.lens import logits_of
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import sampled_fingerprint
from unembed.names import StreamPoint
from unembed.results import Displayed, Provenance, Table
from unembed.results.result_files import open_result
from unembed.validation import as_path, one_of

_PARALLEL = "attention and FFN of this layer are not in sequence"
POINTS: tuple[StreamPoint, ...] = get_args(StreamPoint)


@dataclass(eq=False, repr=False)
class JacobianLens(Displayed):
    """The mean Jacobian of the last residual stream with respect to the stream at each layer, and the mean streams.

    Vectors are rows: a vector v that is added to resid_pre of layer l becomes `v @ before[l]` at the end of the model.
    """

    before: Float[Tensor, "layer d_model d_model"]
    """Jacobians with respect to resid_pre of each layer."""
    middle: Float[Tensor, "layer d_model d_model"] | None
    """Jacobians with respect to resid_mid of each layer; NaN in layers without resid_mid, None if none has it."""
    mean_before: Float[Tensor, "layer d_model"]
    mean_middle: Float[Tensor, "layer d_model"] | None
    mean_final: Float[Tensor, " d_model"]
    """The mean of the last residual stream, before the final norm."""
    scale: float
    """The mean scale of the final norm, for the linear map. If a file lacks it, it is NaN until it is measured."""
    halves: Float[Tensor, " layer"]
    """By layer, the cosine similarity of the resid_pre Jacobians fitted on two halves of the contexts; 1 means that the
    fit is fully reproducible."""
    contexts: int
    length: int
    fingerprint: str
    """The fingerprint of the model's weights; empty if it is not known."""
    provenance: Provenance
    check: LensCheck | None = None
    """How well the lens predicts the model's output on held-out text; None if it was not checked."""
    spans: tuple[tuple[int, int], ...] = ()
    """The text windows that the lens was fitted on: for each part of the fit, the first and the one after the last."""
    converted: dict[str, str] = field(default_factory=dict)
    """By dtype, the fingerprint of the weights after conversion to that dtype. The lens can be used for these, too."""
    lm: Decoder | None = field(default=None, metadata={"saved": False})
    """The model for which the lens is used; `lm.use_lens` sets it. Not saved."""
    on_first_reading: Callable[[], None] | None = field(default=None, metadata={"saved": False})
    """Called once, before the lens is first used. Not saved."""

    def __getstate__(self) -> dict[str, object]:
        """Return the fields to pickle: all except the model and the callback."""
        return {**vars(self), "lm": None, "on_first_reading": None}

    def __repr__(self) -> str:
        return (
            f"JacobianLens({self.provenance.model}: {len(self.before)} layers, "
            f"{self.contexts} contexts of {self.length} tokens)"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the lens to a file for `open_lens`; a name that ends in .pt selects the published, smaller format."""
        from unembed.jacobian.published import SUFFIX, save_published

        if as_path(path).suffix == SUFFIX:
            save_published(self, as_path(path))
        else:
            super().save(path)

    @property
    def estimator(self) -> str:
        """How the Jacobian was estimated: "same position" by `fit_lens`, or the name that a published file gives."""
        return str(self.provenance.notes.get("estimator"))

    @property
    def tokens_read(self) -> int:
        """Number of tokens of the text up to the end of the last window that was used for the fit or the check."""
        end = max((end for _, end in self.spans), default=self.contexts)
        return (end + HELD_OUT) * self.length

    def in_dtype(self, dtype: torch.dtype) -> "JacobianLens":
        """Return the lens with its Jacobians in a dtype; return it unchanged if a value is too large for the dtype."""
        parts = {"before": self.before} | ({} if self.middle is None else {"middle": self.middle})
        largest = max(float(part.abs().nan_to_num().max()) for part in parts.values())
        if largest > torch.finfo(dtype).max:
            return self
        return replace(self, **{name: part.to(dtype) for name, part in parts.items()})

    def merged(self, *others: "JacobianLens") -> "JacobianLens":
        """Combine this lens with lenses that were fitted on other windows of a text: average over all contexts.

        `halves` then compares this lens with the average of the others. The check on held-out text is dropped, because
        one lens may have been checked on the contexts of another; `check_lens` repeats it.

        Raises:
            InvalidInput: no other lens is given; or two lenses differ in weights, context length or estimator, or share
                contexts.
        """
        parts = [self, *others]
        _require_parts(parts)
        shares = [one.contexts / sum(part.contexts for part in parts) for one in parts]

        def mean(name: str) -> Any:
            values = [getattr(one, name) for one in parts]
            if values[0] is None:
                return None
            whole = [value.float() if isinstance(value, Tensor) else value for value in values]
            return sum(share * value for share, value in zip(shares, whole, strict=True))

        rest = others[0] if len(others) == 1 else others[0].merged(*others[1:])
        names = ("before", "middle", "mean_before", "mean_middle", "mean_final", "scale")
        contexts = sum(one.contexts for one in parts)
        notes = {**self.provenance.notes, "contexts": contexts, "parts": len(parts)}
        corpus = " + ".join(dict.fromkeys(str(one.provenance.corpus) for one in parts))
        found = replace(
            self,
            **{name: mean(name) for name in names},
            halves=_cosines(self.before, rest.before),
            contexts=contexts,
            spans=tuple(sorted(span for one in parts for span in one.spans)),
            check=None,
            provenance=replace(self.provenance, corpus=corpus, notes=notes),
        )
        return found.in_dtype(self.before.dtype)

    def bound_to(self, lm: Decoder) -> "JacobianLens":
        """Bind this lens to the model for which it is used, and return it.

        Raises:
            InvalidInput: the lens was fitted on other weights; or, if its file does not identify the weights, the sizes
                differ.
        """
        if not self.fingerprint:  # a published file does not say on which weights it was fitted
            from unembed.jacobian.published import require_same_sizes

            require_same_sizes(self, lm)
        elif sampled_fingerprint(lm) not in {self.fingerprint, *self.converted.values()}:
            # The file was written by an earlier version, which did not store `converted`.
            if not self.converted and self.provenance.dtype not in ("none", lm.dtype_name):
                raise InvalidInput(
                    f"the lens of {self.provenance.model}",
                    why=f"it was fitted on {self.provenance.dtype} weights, and its file lacks the fingerprint "
                    f"that would show whether these {lm.dtype_name} weights are the same ones",
                    instead=f"Open the model in {self.provenance.dtype}, or fit the lens again: `unembed fit-lens`",
                )
            raise InvalidInput(
                f"the lens of {self.provenance.model}",
                why=f"it was fitted on other weights than those of {lm.name}",
                instead="Fit one for this model: lm.fit_lens, or `unembed fit-lens`",
            )
        self.lm = lm
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and name != "halves":
                setattr(self, name, value.to(lm.device))
        return self

    def jacobian(self, layer: int, point: StreamPoint = "resid_post") -> Float[Tensor, "d_model d_model"]:
        """Return the mean Jacobian J of the last stream with respect to a layer's capture point, for products v @ J.

        Raises:
            OutOfRange: there is no such layer.
            PointMissing: the layer has no such point.
        """
        place, layer = self._place(layer, point)
        if self.on_first_reading is not None:
            self.on_first_reading()
            self.on_first_reading = None
        if place is None:
            return torch.eye(self.before.shape[1], device=self.before.device)
        return place[layer].float()

    def mean(self, layer: int, point: StreamPoint = "resid_post") -> Float[Tensor, " d_model"]:
        """Return the mean residual stream at a capture point of a layer."""
        place, layer = self._place(layer, point)
        if place is None:
            return self.mean_final
        means = self.mean_before if place is self.before else self.mean_middle
        assert means is not None
        return means[layer]

    def _place(self, layer: int, point: StreamPoint) -> tuple[Tensor | None, int]:
        """Return the tensor with the Jacobians of a capture point, and the index in it of this layer's Jacobian.

        The tensor is None for the last residual stream, whose Jacobian is the identity.
        """
        one_of("point", point, POINTS)
        layer = self._model().layer(layer)
        if point == "resid_mid":
            if self.middle is None or bool(self.middle[layer, 0, 0].isnan()):
                why = "a published lens does not have it" if self.length == 0 else _PARALLEL
                raise PointMissing(f"resid_mid of layer {layer}", why=why, instead="Use resid_post")
            return self.middle, layer
        layer += point == "resid_post"  # resid_post of a layer is resid_pre of the next
        if layer == len(self.before):
            return None, layer
        if bool(self.before[layer, 0, 0].isnan()):
            raise PointMissing(
                f"the Jacobian of {point} of layer {layer - (point == 'resid_post')}",
                why=f"the lens of {self.provenance.model} does not have it",
                instead="Fit a lens: lm.fit_lens, or `unembed fit-lens`",
            )
        return self.before, layer

    def _model(self) -> Decoder:
        if self.lm is None:
            raise InvalidInput(
                "a lens without a model",
                why="logits are computed with the unembedding of a model",
                instead="Use lm.use_lens(lens)",
            )
        return self.lm

    def carried(
        self, stream: Float[Tensor, "*pos d_model"], layer: int, point: StreamPoint = "resid_post"
    ) -> Float[Tensor, "*pos d_model"]:
        """Return the last residual stream that a layer's residual stream leads to on average.

        This is the mean last stream, plus (stream - mean stream of the layer) @ Jacobian.
        """
        deviation = stream.to(self.mean_final) - self.mean(layer, point)
        return self.mean_final + deviation @ self.jacobian(layer, point)

    @torch.no_grad()
    def read(
        self, stream: Float[Tensor, "*pos d_model"], layer: int, point: StreamPoint = "resid_post"
    ) -> Float[Tensor, "*pos d_vocab"]:
        """Return the logits that a residual stream leads to on average: affine map, final norm and unembedding.

        Args:
            stream: residual streams at the capture point.
            layer: counted from 0; negative numbers count from the last layer.
            point: the capture point in the layer.

        Raises:
            InvalidInput: the lens is not bound to a model.
        """
        lm = self._model()
        return logits_of(lm, self.carried(stream, layer, point).to(lm.dtype), "final").float()

    @torch.no_grad()
    def direction(
        self, vector: Float[Tensor, "*any d_model"], layer: int, point: StreamPoint = "resid_post"
    ) -> Float[Tensor, "*any d_vocab"]:
        """Return how adding a vector to the stream changes each logit, to first order and on average (linear).

        The final norm's scale is its mean over the fitting text. The mean over the vocabulary is subtracted, because
        the softmax does not depend on it.

        Args:
            vector: such as a value vector or a head's output, as it is added to the residual stream.
            layer: the layer at which it is added; the value vector of a memory (FFN neuron) of layer l is added to
                resid_post of layer l.
            point: the capture point at which it is added.

        Returns:
            Changes of logits, which add up to 0 over the vocabulary.

        Raises:
            InvalidInput: the lens is not bound to a model.
        """
        scores = logits_of(self._model(), self.readable(vector, layer, point), "raw").float()
        return scores - scores.mean(dim=-1, keepdim=True)

    @torch.no_grad()
    def readable(
        self, vector: Float[Tensor, "*any d_model"], layer: int, point: StreamPoint = "resid_post"
    ) -> Float[Tensor, "*any d_model"]:
        """Return the vector whose product with W_U is `direction`, before the mean over the vocabulary is subtracted.

        The vector is multiplied by the Jacobian, and goes through the final norm with the mean scale of the fitting
        text.
        """
        return self._after_blocks(vector.to(self.mean_final) @ self.jacobian(layer, point))

    def read_as(
        self, columns: Float[Tensor, "d_model token"], layer: int, point: StreamPoint = "resid_post"
    ) -> Float[Tensor, "d_model token"]:
        """Map columns to columns c for which `vector @ c` equals `readable(vector, ...) @ columns`.

        For a few tokens and many vectors, mapping the columns is cheaper than mapping each vector with `readable`.
        """
        unit = torch.eye(len(columns), dtype=self.mean_final.dtype, device=self.mean_final.device)
        return self.jacobian(layer, point) @ (self._after_blocks(unit) @ columns.to(unit))

    def _after_blocks(self, carried: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
        structure = self._model().structure
        if structure.final_norm is not None:
            scale = torch.full((1,), self._final_scale(), dtype=carried.dtype, device=carried.device)
            carried = structure.final_norm.frozen(carried, scale).to(carried.dtype)
        return carried * structure.logit_scale

    def _final_scale(self) -> float:
        """Return the mean scale of the final norm: from the lens, or else measured once on the shipped text."""
        if math.isnan(self.scale):
            from unembed.jacobian.published import mean_scale

            self.scale = mean_scale(self._model())
        return self.scale

    def to_table(self) -> Table:
        """Return a row for each layer: `halves`, and how well this lens and the logit lens predict held-out text."""
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


def _cosines(
    a: Float[Tensor, "layer d_model d_model"], b: Float[Tensor, "layer d_model d_model"]
) -> Float[Tensor, " layer"]:
    """Return the cosine similarity of the two Jacobians of each layer, in float32, one layer at a time."""
    pairs = ((x.float().flatten(), y.float().flatten()) for x, y in zip(a, b, strict=True))
    return torch.stack([torch.cosine_similarity(x, y, dim=0) for x, y in pairs])


def _require_parts(parts: Sequence[JacobianLens]) -> None:
    """Raise `InvalidInput` if the lenses differ in weights, context length or estimator, or share contexts."""
    if len(parts) < 2:
        raise InvalidInput("merging one lens", why="there is nothing to merge it with", instead="Give two or more")
    first = parts[0]
    for one in parts[1:]:
        for what in ("fingerprint", "length", "estimator"):
            if getattr(one, what) != getattr(first, what):
                raise InvalidInput(
                    f"merging lenses of {first.provenance.model} and {one.provenance.model}",
                    why=f"they differ in {what}: {getattr(first, what)}, {getattr(one, what)}",
                    instead="Fit the parts with the same model and settings",
                )
    spans = sorted((one.provenance.corpus or "", *span) for one in parts for span in one.spans)
    for (text, _, end), (other, start, _) in pairwise(spans):
        if text == other and start < end:
            raise InvalidInput(
                "merging lenses that share contexts",
                why=f"one ends at window {end} of the text, another starts at window {start}",
                instead="Fit each part with its own `first` (--first-window)",
            )


def open_lens(path: str | os.PathLike[str]) -> JacobianLens:
    """Read a lens that `lens.save(path)` wrote, or a published lens; `lm.use_lens` sets it for a model.

    Published lenses are files of the kind that Gurnee et al. and TransformerLens 4.3 write (`J`, `n_prompts`, ...).

    Raises:
        InvalidInput: the file is missing, damaged, or holds something else.
    """
    from unembed.jacobian.published import is_torch_file, open_published

    if is_torch_file(file := as_path(path)):
        return open_published(file)
    found = open_result(path)
    if not isinstance(found, JacobianLens):
        raise InvalidInput(f"{path}", why=f"it holds a {type(found).__name__}, not a lens")
    return found
