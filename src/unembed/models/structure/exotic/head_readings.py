"""Describe how heads read queries, keys and values where a projection of the stream does not give them directly.

Latent attention (DeepSeek-V2, section 2.1, equations 9 to 19) computes keys and values as W_U norm(W_D x). With the
norm's scale fixed at its value in one forward pass, this is linear in x; from the weights alone it is known up to that
scale. A key is the concatenation of two vectors: a content vector, which depends on the normalised latent, and a rotary
vector, which does not depend on it and is the same for all heads.

In other models, one projection returns the queries and an output gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.errors import ModelNotUnderstood
from unembed.models.norms import Norm
from unembed.models.structure.attention_layout import Mixing, ModuleCall, calls_inside
from unembed.models.structure.probe import Probe, factor_of, is_linear, relative, same
from unembed.models.structure.structure import ValueSource


@dataclass(frozen=True, eq=False)
class Latent:
    """A low-dimensional vector between stream and heads: some columns of a projection of the stream, normalised."""

    module: nn.Module
    start: int
    stop: int
    """The latent is the columns from `start` to `stop` of the module's output."""
    norm: Norm | None
    factor: float
    """The factor of the latent after its norm (Dots 3)."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A range of channels of every head's query, key or value.

    A projection computes the same number of channels for each head, and the range is the same slice for every head.
    """

    module: nn.Module | None
    """The projection that reads the stream or the latent; None if the channels are those of the latent itself."""
    latent: Latent | None
    n_heads: int
    """Number of heads whose channels are side by side in the output; 1 if all heads share the same channels."""
    start: int
    stop: int
    factor: float = 1.0

    @property
    def width(self) -> int:
        """The number of channels of each head in this range."""
        return self.stop - self.start

    def split(self, t: Float[Tensor, "*axes width"]) -> Float[Tensor, "*axes head part"]:
        """Take this range of each head's channels from a projection's output, or from the last axis of its matrix."""
        part = t.unflatten(-1, (self.n_heads, -1))[..., self.start : self.stop]
        return part if self.factor == 1.0 else part * self.factor


@dataclass(frozen=True, eq=False)
class HeadReadings:
    """How queries, keys and values are computed where none of them is one matrix times the stream.

    Queries and keys are concatenated from several channel ranges. Rotary channels come first, even if they come last in
    the model; this does not change the scores q . k.
    """

    parts: Mapping[str, tuple[Reading, ...]]
    """The channel ranges of "q", "k" and "v"; without "q" and "k" if only the values are understood."""
    normed_values: bool = False  # a norm without gain normalises each head's value (Gemma 4)

    @property
    def has_latent_keys(self) -> bool:
        """True if the ranges that form a key are not all normalised alike: by different norms, or only some."""
        return len({None if r.latent is None else r.latent.norm for r in self.parts.get("k", ())}) > 1


@dataclass(frozen=True, eq=False)
class ReadHeads:
    """Queries and keys of the recorded pass, computed as `HeadReadings` describes, rotary channels first."""

    readings: HeadReadings
    q: Float[Tensor, "pos q_width"]
    k: Float[Tensor, "pos k_width"]
    n_kv_heads: int


def find_readings(mixing: Mixing, source: ValueSource) -> ReadHeads | None:
    """Find how queries, keys and values are computed from the stream, given the module that returns the values.

    The values always equal those of the recorded forward pass; the caller checks queries and keys against the attention
    pattern. None if values or keys are computed in an unknown way.
    """
    probe = mixing.probe
    x = probe.recording.given(mixing.path)
    if x is None or source.form not in ("heads", "latent", "head_axis"):
        return None
    calls = {c.name: c for c in calls_inside(mixing)}
    linear = {name: c for name, c in calls.items() if is_linear(c.module)}
    norms = [c for c in calls.values() if "norm" in type(c.module).__name__.lower()]
    inside = _Inside(probe, source, x[0], linear, norms)
    normed = next((c for c in norms if c.module is source.module), None)
    if normed is not None:
        v = _projection_behind(normed, linear, source.d_head)
    else:
        v = next((c for c in linear.values() if c.module is source.module), None)
    if v is None:
        return None
    into_v = _latent(inside, v.given)
    if into_v is None:
        return None
    n_kv = source.n_kv_heads
    each = v.returned.shape[-1] // n_kv
    value = Reading(v.module, into_v.latent, n_kv, each - source.d_head, each, source.factor)
    keys = _keys(inside, each - source.d_head, v, into_v)
    if keys is None:
        return None
    queries = _queries(inside, keys)
    if queries is None:
        return ReadHeads(HeadReadings({"v": (value,)}, normed is not None), x.new_empty(0, 0), x.new_empty(0, 0), n_kv)
    outputs = {c.module: c.returned for c in linear.values()} | {c.module: c.returned for c in norms}
    q, k = (
        torch.cat([_captured(r, outputs, n) for r in rs], -1) for rs, n in ((queries, source.n_heads), (keys, n_kv))
    )
    readings = HeadReadings({"q": queries, "k": keys, "v": (value,)}, normed is not None)
    return ReadHeads(readings, q.flatten(1), k.flatten(1), n_kv)


def _projection_behind(norm: ModuleCall, linear: Mapping[str, ModuleCall], d_head: int) -> ModuleCall | None:
    """Return the projection whose output a norm without gain divides by each head's root mean square (Gemma 4).

    After such a norm, a head's value at a position is the projection's output times one number for that head and
    position. None if the norm has a gain.
    """
    given, returned = (t.double() for t in (norm.given, norm.returned))
    size = (given * returned).sum(-1, keepdim=True) / returned.square().sum(-1, keepdim=True).clamp_min(1e-30)
    if relative(size * returned, given) > (1e-5 if norm.returned.element_size() >= 4 else 1e-2):
        return None
    same_size = (c for c in linear.values() if c.returned.numel() == norm.given.numel())
    return next((c for c in same_size if torch.equal(c.returned.reshape(-1, d_head), norm.given)), None)


@dataclass(frozen=True, eq=False)
class _Inside:
    """What an attention computed in the recorded forward pass: its input `x`, and the calls of modules inside it."""

    probe: Probe
    source: ValueSource
    x: Float[Tensor, "pos d_model"]
    linear: Mapping[str, ModuleCall]
    norms: list[ModuleCall]


@dataclass(frozen=True, eq=False)
class _Into:
    """The input of a projection: a latent vector, or the stream itself if `latent` is None."""

    latent: Latent | None


def _latent(inside: _Inside, given: Tensor) -> _Into | None:
    """Return whether a projection, whose input is `given`, reads the stream or a latent vector; None if neither."""
    if same(given, inside.x):
        return _Into(None)
    tolerance = inside.probe.tolerance
    for norm in inside.norms:
        if norm.returned.shape != given.shape:
            continue
        factor = factor_of(norm.returned, given)
        if relative(factor * norm.returned, given) > tolerance:
            continue
        for down in inside.linear.values():
            start = _columns(norm.given, down.returned)
            if start is not None and same(down.given, inside.x):
                known = _checked(inside.probe, norm)
                near = 1.0 if abs(factor - 1) <= tolerance else factor
                return (
                    None if known is None else _Into(Latent(down.module, start, start + given.shape[-1], known, near))
                )
    return None


def _columns(part: Tensor, whole: Tensor) -> int | None:
    """Return the index in `whole` at which `part` begins, if `part` equals its first or last columns; else None."""
    width = part.shape[-1]
    if len(part) != len(whole):
        return None
    starts = {0, whole.shape[-1] - width} if whole.shape[-1] >= width else set()
    return next((s for s in sorted(starts) if torch.equal(whole[:, s : s + width], part)), None)


def _checked(probe: Probe, call: ModuleCall) -> Norm | None:
    norm = Norm(call.module, call.path, call.given.shape[-1], probe.hf.get_input_embeddings())
    try:
        norm.check(call.given, call.returned, max(probe.tolerance, 1e-4))
    except (ModelNotUnderstood, RuntimeError):
        return None
    return norm


def _keys(inside: _Inside, d_content: int, v: ModuleCall, into_v: _Into) -> tuple[Reading, ...] | None:
    source = inside.source
    if into_v.latent is None:  # values are not read from a latent, so keys have their own projection of the stream
        hits = [c for name, c in inside.linear.items() if name.lower().startswith("k") and same(c.given, inside.x)]
        if len(hits) != 1 or hits[0].returned.shape[-1] % source.n_kv_heads:
            return None
        each = hits[0].returned.shape[-1] // source.n_kv_heads
        return (Reading(hits[0].module, None, source.n_kv_heads, 0, each),)
    latent = into_v.latent
    content = Reading(v.module, latent, source.n_heads, 0, d_content)
    down = next(c for c in inside.linear.values() if c.module is latent.module)
    if latent.stop == down.returned.shape[-1]:
        return (content,)
    rest = down.returned[:, latent.stop :]
    norm = next((c for c in inside.norms if same(c.given, rest)), None)
    known = None if norm is None else _checked(inside.probe, norm)
    if norm is not None and known is None:
        return None
    rotary = Latent(latent.module, latent.stop, down.returned.shape[-1], known, 1.0)
    return (Reading(None, rotary, 1, 0, rest.shape[-1]), content)


def _queries(inside: _Inside, keys: tuple[Reading, ...]) -> tuple[Reading, ...] | None:
    source, d_key = inside.source, sum(r.width for r in keys)
    for name, call in reversed(list(inside.linear.items())):
        width = call.returned.shape[-1]
        if not name.lower().startswith("q") or width % source.n_heads or width // source.n_heads < d_key:
            continue
        into = _latent(inside, call.given)
        if into is None:
            continue
        whole = Reading(call.module, into.latent, source.n_heads, 0, d_key)
        if len(keys) == 1:
            return (whole,)
        # In the model's query the content part comes first. Here the rotary part is put first, as in the keys.
        d_content = keys[1].width
        return (
            Reading(call.module, into.latent, source.n_heads, d_content, d_key),
            Reading(call.module, into.latent, source.n_heads, 0, d_content),
        )
    return None


def _captured(reading: Reading, outputs: Mapping[nn.Module, Tensor], n_heads: int) -> Float[Tensor, "pos head width"]:
    """Return the channels of a `Reading`, for each head, in the recorded forward pass."""
    if reading.module is not None:
        heads = reading.split(outputs[reading.module])
    else:
        assert reading.latent is not None
        latent = reading.latent
        own = outputs[latent.module][:, latent.start : latent.stop]
        own = own if latent.norm is None else outputs[latent.norm.module]
        heads = reading.split(own)
    return heads.expand(-1, n_heads, -1) if heads.shape[1] == 1 else heads
