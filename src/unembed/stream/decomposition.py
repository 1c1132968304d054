"""Write the residual stream as a sum of what each component adds to it (embedding, attention and FFN of each layer).

In some families (Gemma, OLMo 2) a norm lies between the heads or memories of a layer and the stream. With its scale
taken as a constant from the forward pass, the norm is linear, so the contribution of each head and each memory is
exact. Libraries that ignore this norm report contributions that do not add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput, SumNotProved, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.norms import Norm
from unembed.models.structure.exotic import Streams
from unembed.models.structure.structure import Block
from unembed.names import STREAM_POINTS, SUM_TOLERANCE
from unembed.results import format_error
from unembed.stream.run import Run


def tolerance(lm: Decoder) -> float:
    """Return the largest relative error that a sum of contributions may have in this model's dtype."""
    return SUM_TOLERANCE[lm.coarsest_dtype_name]


_PERHAPS = "Load with dtype='float32', remove hooks of your own from lm.hf, or report this model"


def prove(what: str, total: Tensor, whole: Tensor, limit: float, *, instead: str = _PERHAPS) -> float:
    """Check that a sum equals a tensor up to a relative error of `limit`, and return the error.

    Raises:
        SumNotProved: the error is above the limit.
    """
    error = float((total - whole).norm() / whole.norm().clamp_min(1e-30))
    if not error <= limit:
        raise SumNotProved(
            what,
            why=f"the sum of its parts differs from it by {format_error(error, 2)} of its size (allowed: "
            f"{format_error(limit, 2)})",
            instead=instead,
        )
    return error


@dataclass(frozen=True, eq=False)
class Branch:
    """How the output of attention or an FFN enters the stream in a forward pass: multiplier * norm(gate * output).

    The gate and the scale of the norm are constants, taken from that forward pass.
    """

    norm: Norm | None
    scale: Float[Tensor, "*pos 1"] | None
    multiplier: float
    gate: Float[Tensor, "*pos d_model"] | None = None
    """A factor for each channel and position (in RWKV); None if there is no gate."""

    def written(self, part: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos d_model"]:
        """Return what one term of the output contributes to the stream."""
        part = part if self.gate is None else part * self.gate
        if self.norm is not None and self.scale is not None:
            part = self.norm.frozen(part, self.scale)
        return part * self.multiplier

    def direction(self, u: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Convert a direction u in the stream to the equivalent direction for the output, before gate and norm.

        Its dot product with an output still has to be multiplied by `factor`, which depends on the position.
        """
        u = u * self.multiplier
        if self.norm is not None:
            u = self.norm.pulled_back(u, torch.ones(1, dtype=u.dtype, device=u.device))
        return u if self.gate is None else u * self.gate.to(u.dtype)

    @property
    def factor(self) -> Float[Tensor, "*pos 1"] | float:
        """The factor, at each position, by which a dot product with `direction` must be multiplied."""
        return 1.0 if self.scale is None else 1.0 / self.scale

    @property
    def bias(self) -> Float[Tensor, " d_model"] | None:
        """The bias of the norm as it is added to the stream; None if there is none."""
        if self.norm is None or self.norm.bias is None:
            return None
        return self.norm.bias * self.multiplier


def attention_branch(lm: Decoder, layer: int, z: Float[Tensor, "*pos head d_head"]) -> Branch:
    """Return how the outputs of a layer's heads entered the stream in the forward pass that gave z."""
    site = lm.structure.blocks[layer].mixer
    assert site is not None
    if site.branch_norm is None:
        return Branch(None, None, site.multiplier)
    raw = z.flatten(-2) @ lm.weights.W_O[layer].flatten(0, 1)
    if (bias := lm.weights.b_O[layer]) is not None:
        raw = raw + bias
    return Branch(site.branch_norm, site.branch_norm.scale(raw), site.multiplier)


def source_values(lm: Decoder, run: Run, layer: int, *, gated: bool = False) -> Float[Tensor, "head src d_head"]:
    """Return each head's value vector at each position of the first prompt.

    The attention pattern mixes these vectors.

    Args:
        run: a run that captured "values".
        gated: whether to accept a layer with a gate or a norm between the mixed values and the out-projection.

    Raises:
        Unsupported: the values were not found, or they are gated and `gated` is False.
    """
    site = lm.structure.blocks[layer].attention
    if site.values is None:
        _ = site.layout  # raises with the reason
    assert site.values is not None
    if site.values.gated and not gated:
        raise Unsupported(
            f"the values of layer {layer} of {lm.name}",
            why="after attention has mixed them, they go through a gate or norm whose factors differ between positions",
            instead="Use an attribution by source, which includes that gate or norm",
        )
    values = run.at("values", layer)[0]
    return values.repeat_interleave(site.values.n_heads // site.values.n_kv_heads, dim=0)


def memory_branch(
    lm: Decoder,
    layer: int,
    coefficients: Float[Tensor, "*pos d_mlp"],
    gate: Float[Tensor, "*pos d_model"] | None,
) -> Branch:
    """Return how the memories (FFN neurons) of a layer entered the stream in the pass that gave these coefficients.

    Args:
        coefficients: the coefficients of all memories of the layer.
        gate: the capture point "channel_gate" at the same positions, if the layer has it.
    """
    site = lm.feed_forward(layer)
    if site.branch_norm is None:
        return Branch(None, None, site.multiplier, gate)
    raw = coefficients @ lm.weights.W_out[layer]
    if (bias := lm.weights.b_out[layer]) is not None:
        raw = raw + bias
    raw = raw if gate is None else raw * gate
    return Branch(site.branch_norm, site.branch_norm.scale(raw), site.multiplier, gate)


def branch_of_run(lm: Decoder, run: Run, layer: int, position: int | slice = slice(None)) -> Branch:
    """Return how the memories (FFN neurons) of a layer entered the stream, for the first prompt of a run."""
    has_gate = lm.feed_forward(layer).channel_gate is not None
    gate = run.at("channel_gate", layer)[0, position] if has_gate else None
    return memory_branch(lm, layer, run.at("coefficients", layer)[0, position], gate)


def memory_points(lm: Decoder) -> tuple[str, ...]:
    """Return the capture points needed for a layer's memories: their coefficients, and a gate if there is one."""
    gated = any(b.feed_forward is not None and b.feed_forward.channel_gate is not None for b in lm.structure.blocks)
    return ("coefficients", "channel_gate") if gated else ("coefficients",)


@dataclass(frozen=True, eq=False)
class Writers:
    """The residual stream at one point as a sum of contributions, one for each component that adds to the stream.

    The relative error of the sum is stored too.
    """

    labels: tuple[str, ...]
    vectors: Float[Tensor, "writer batch pos d_model"]
    error: float


def writer_points(lm: Decoder) -> tuple[str, ...]:
    """Return the capture points needed to write the stream as a sum, besides resid_pre and resid_post.

    They are the outputs of all components, and the tensors that determine how later blocks rescale or mix the stream.
    """
    blocks = lm.structure.blocks
    points = ["attn_out"] if any(b.mixer is not None for b in blocks) else []
    points += ["mlp_out"] if any(b.feed_forward is not None for b in blocks) else []
    points += ["position_embedding"] if lm.structure.position_embedding is not None else []
    most = max(len(b.early_writers) + len(b.late_writers) for b in blocks)
    return (*points, *(f"writer {i}" for i in range(most)), *(p for p in mixing_points(lm) if p != "resid_pre"))


@dataclass(frozen=True)
class Step:
    """One component of a block: its label, its capture point, and whether it is added after the FFN's input is read."""

    label: str
    point: str
    late: bool


def steps_of(block: Block) -> tuple[Step, ...]:
    """Return the components of a block in the order of the forward pass."""
    others = [*block.early_writers, *block.late_writers]
    mixer = (
        [] if block.mixer is None else [Step("attention" if block.mixer.is_attention else "mixer", "attn_out", False)]
    )
    early = [Step(w.label, f"writer {i}", False) for i, w in enumerate(block.early_writers)]
    ffn = [] if block.feed_forward is None else [Step("ffn", "mlp_out", True)]
    late = [Step(w.label, f"writer {i}", True) for i, w in enumerate(others) if i >= len(early)]
    steps = (*mixer, *early, *ffn, *late)
    return steps if block.is_sequential else tuple(replace(s, late=True) for s in steps)


def writers(lm: Decoder, run: Run, point: str, layer: int) -> Writers:
    """Return what the embedding, the positions and each component contribute to the stream at a capture point.

    If a block rescales the stream, the contributions of earlier components are rescaled with it.

    Args:
        run: a run that captured resid_pre, `writer_points(lm)` and `point`; unedited_post too if the stream is edited.
        point: a capture point of the stream: resid_pre, resid_mid or resid_post.

    Raises:
        SumNotProved: the contributions do not add up to the stream.
        Unsupported: the model has several streams.

    Memory: one tensor (batch, pos, d_model) for each contribution.
    """
    if point not in STREAM_POINTS:
        raise InvalidInput(f"point {point!r}", why=f"it is not one of {', '.join(STREAM_POINTS)}")
    require_one_stream(lm, "the stream as a sum of vectors")
    layer = lm.layer(layer)
    labels, vectors = ["embedding"], [run.at("resid_pre", 0)]
    if lm.structure.position_embedding is not None:
        positions = run["position_embedding"][0]
        labels, vectors = ["embedding", "positions"], [vectors[0] - positions, positions]
    for n, block in enumerate(lm.structure.blocks[: layer + 1]):
        if n == layer and point == "resid_pre":
            break
        steps = steps_of(block)
        vectors = _normed(vectors, labels, block.entry_norm, run, "resid_pre", n)
        vectors = _rescaled(vectors, block.entry_gain)
        labels += [f"{s.label} {n}" for s in steps if not s.late]
        vectors += [run.at(s.point, n) for s in steps if not s.late]
        if n == layer and point == "resid_mid":
            break
        vectors = _normed(vectors, labels, block.middle_norm, run, "resid_mid", n)
        vectors = _rescaled(vectors, block.middle_gain)
        labels += [f"{s.label} {n}" for s in steps if s.late]
        vectors += [run.at(s.point, n) for s in steps if s.late]
        vectors = _rescaled(_rescaled(vectors, block.exit_gain), block.handover)
        if run.has("unedited_post", n):
            labels, vectors = [*labels, f"edit {n}"], [*vectors, run.at("resid_post", n) - run.at("unedited_post", n)]
    stacked = torch.stack(vectors)
    whole = run.at(point, layer)
    error = prove(f"the stream of {lm.name} at {point} {layer}", stacked.sum(dim=0), whole, tolerance(lm))
    return Writers(tuple(labels), stacked, error)


def _normed(
    vectors: list[Tensor], labels: list[str], norm: Norm | None, run: Run, point: str, layer: int
) -> list[Tensor]:
    """Apply a norm of the stream, with constant scale, to each contribution; append its bias as a contribution."""
    if norm is None:
        return vectors
    scale = norm.scale(run.at(point, layer))
    vectors = [norm.frozen(v, scale).to(v.dtype) for v in vectors]
    if norm.bias is not None:
        labels.append(f"norm bias {layer}")
        vectors.append(norm.bias.to(vectors[0]).expand_as(vectors[0]))
    return vectors


def require_one_stream(lm: Decoder, what: str) -> None:
    """Refuse analyses that are not defined for a model with several streams.

    Raises:
        Unsupported: the model has several streams.
    """
    if lm.structure.streams is not None:
        raise Unsupported(
            f"{what} of {lm.name}",
            why=f"the model has {lm.structure.streams.count} streams, mixed differently at every position",
            instead="Use attributions, readings or memories, which take the mixing into account",
        )


def require_unnormalised_stream(lm: Decoder, what: str) -> None:
    """Refuse an operation that assumes that each block only multiplies the stream by a gain and adds to it.

    Raises:
        Unsupported: the model has several streams, or normalises its stream, or rescales it between blocks.
    """
    require_one_stream(lm, what)
    if lm.structure.has_stream_norms or any(b.handover != 1.0 for b in lm.structure.blocks):
        raise Unsupported(
            f"{what} of {lm.name}",
            why="blocks normalise or rescale the residual stream itself",
            instead="Use attributions, which take it into account",
        )


def _rescaled(vectors: list[Tensor], gain: float | Tensor) -> list[Tensor]:
    return vectors if not isinstance(gain, Tensor) and gain == 1.0 else [v * gain for v in vectors]


@dataclass(frozen=True, eq=False)
class Directions:
    """One direction at the end of the stream, converted to the equivalent direction for each component's output.

    The dot product of a component's output with its direction is the component's contribution to the dot product at the
    end. A block that rescales the stream multiplies all earlier contributions. So the direction is taken back through
    the gains, norms and mixtures of later blocks, from the last to the first, each with its values in the forward pass.
    """

    start: Float[Tensor, "*pos d_model"] | Float[Tensor, "*pos stream d_model"]
    """The direction for the embedding; in a model with several streams, one for each."""
    steps: tuple[Mapping[str, Tensor], ...]
    """For each layer, the directions for its components' outputs, by capture point ("attn_out", "mlp_out", "writer 0",
    ...)."""
    end: tuple[Float[Tensor, "... d_model"], ...]
    """For each layer, the direction for a vector that an edit adds to the stream after the block. Empty with several
    streams."""
    constants: tuple[tuple[int, Float[Tensor, "..."]], ...]
    """For each layer, the contribution of the biases of norms that are applied to the stream itself."""

    def ffn(self, layer: int) -> Float[Tensor, "*pos d_model"]:
        """Return the direction for the output of a layer's FFN."""
        return self.steps[layer]["mlp_out"]


def mixing_points(lm: Decoder) -> tuple[str, ...]:
    """Return the capture points that `directions` needs; none if blocks do nothing to the stream but add to it."""
    structure = lm.structure
    points = ["streams", "streams_middle", "streams_end"] if structure.streams is not None else []
    points += ["resid_pre"] if structure.has_stream_norms else []
    middle = any(b.middle_norm is not None and b.is_sequential for b in structure.blocks)
    return (*points, *(["resid_mid"] if middle else []))


def directions(
    lm: Decoder, u: Float[Tensor, "*pos d_model"], run: Run | None = None, column: int | slice = slice(None)
) -> Directions:
    """Convert the direction `u` at the end of the stream to the equivalent direction for each component's output.

    Args:
        u: the direction, after the last block and before the final norm.
        run: a run that captured `mixing_points(lm)`; its first row is used. None if there are no such points.
        column: the position, or all of them; then directions that depend on the position have positions as first axis.
    """
    assert run is not None or not mixing_points(lm)
    if lm.structure.streams is not None and run is not None:
        return _through_streams(lm, lm.structure.streams, u, run, column)
    steps: list[dict[str, Tensor]] = []
    constants: list[tuple[int, Tensor]] = []
    end: list[Tensor] = []
    for layer in reversed(range(lm.n_layers)):
        block = lm.structure.blocks[layer]
        end.append(u)
        u = late = _pulled(_pulled(u, block.handover), block.exit_gain)
        u = _pulled(u, block.middle_gain)
        if block.middle_norm is not None and run is not None:
            before = run.at("resid_mid", layer)[0, column]
            u = _through_norm(block.middle_norm, u, before, layer, constants)
        early = u
        u = _pulled(u, block.entry_gain)
        if block.entry_norm is not None and run is not None:
            before = run.at("resid_pre", layer)[0, column]
            u = _through_norm(block.entry_norm, u, before, layer, constants)
        steps.append({s.point: late if s.late else early for s in steps_of(block)})
    return Directions(u, tuple(reversed(steps)), tuple(reversed(end)), tuple(constants))


def _pulled(u: Tensor, gain: float | Tensor) -> Tensor:
    return u * gain.to(u) if isinstance(gain, Tensor) else u if gain == 1.0 else u * gain


def _through_norm(norm: Norm, u: Tensor, x: Tensor, layer: int, constants: list[tuple[int, Tensor]]) -> Tensor:
    if norm.bias is not None:
        constants.append((layer, u @ norm.bias.to(u)))
    return norm.pulled_back(u, norm.scale(x).to(u))


def _through_streams(lm: Decoder, streams: Streams, u: Tensor, run: Run, column: int | slice) -> Directions:
    leaving = streams.pulled_through_end(u, run.at("streams_end", lm.n_layers - 1)[0, column])
    steps: list[dict[str, Tensor]] = []
    for layer in reversed(range(lm.n_layers)):
        entering, middle = (run.at(point, layer)[0, column] for point in ("streams", "streams_middle"))
        pulled = streams.pulled_through_block(layer, leaving, entering, middle)
        others = {f"writer {i}": direction for i, direction in enumerate(pulled.others)}
        steps.append({"attn_out": pulled.attention, "mlp_out": pulled.ffn, **others})
        leaving = pulled.entering
    return Directions(leaving, tuple(reversed(steps)), (), ())
