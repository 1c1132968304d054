"""One prompt run many times at once, each row with activations of its own put in place of the model's.

A row starts at the first layer whose activation is replaced: the blocks below return the stream that the unchanged run
had there. Whether that is exact is checked on the model itself before it is relied on (models whose layers share more
than the stream are run in full).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unembed.errors import InvalidInput, NotFinite, PointMissing, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import SUM_TOLERANCE
from unembed.stream.hooks import (
    ForwardPass,
    accepts_argument,
    attach_hooks,
    forward_replaced,
    memory_guard,
    require_point,
)
from unembed.stream.interventions import Edit
from unembed.stream.run import Tokens, prepare

PATCH_POINTS = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z", "pattern", "coefficients")
TOKENS_AT_ONCE = 2048
"""Tokens of a batch of rows: its activations are what is in memory at once, besides one row of logits each."""


@dataclass(frozen=True, eq=False)
class Replacement:
    """New numbers for one activation of one row.

    Attributes:
        point: which activation, one of `PATCH_POINTS`.
        layer: its layer.
        positions: where; every position when None.
        index: a head (for z and pattern) or memories (for coefficients); the whole vector when None.
        value: the numbers, broadcast to what is replaced: (position, ...) or a scalar.
    """

    point: str
    layer: int
    positions: Int[Tensor, " p"] | None
    index: int | Int[Tensor, " i"] | None
    value: Tensor

    def write(self, t: Float[Tensor, "pos ..."], heads_first: bool = False) -> None:
        """Put the numbers into one row's activation (pos, ...); a pattern has its heads before its positions."""
        positions = slice(None) if self.positions is None else self.positions.to(t.device)
        value = self.value.to(t)
        if heads_first:
            t[self.index, positions] = value
        elif self.index is None:
            t[positions] = value
        elif isinstance(self.index, int):
            t[positions, self.index] = value
        elif isinstance(positions, slice):
            t[:, self.index.to(t.device)] = value
        else:
            t[positions[:, None], self.index.to(t.device)[None]] = value


class Rerun:
    """An unchanged run of one prompt, and reruns of it with replaced activations."""

    def __init__(
        self,
        lm: Decoder,
        tokens: Tokens,
        points: Sequence[str] = (),
        edits: Sequence[Edit] = (),
        stream: Float[Tensor, "pos d_model"] | None = None,
    ) -> None:
        """Run the prompt once and keep the stream entering every block, and `points`.

        Args:
            lm: the model.
            tokens: one prompt.
            points: further activations to keep.
            edits: changes that hold in every run.
            stream: what enters the first block instead of the embedding (a corrupted embedding).

        Raises:
            InvalidInput: more than one prompt, or a point that cannot be replaced.
            PointMissing: the model has no such point.
        """
        self.lm, self.edits, self.stream = lm, tuple(edits), stream
        self.ids, mask = prepare(lm, tokens)
        if self.ids.shape[0] != 1:
            raise InvalidInput(f"{self.ids.shape[0]} prompts", why="one prompt is run at a time")
        if not bool(mask.all()):
            raise InvalidInput("a padded prompt", why="one prompt needs no padding", instead="Give its tokens alone")
        for point in points:
            if point not in PATCH_POINTS:
                raise InvalidInput(f"point {point!r}", why=f"activations are replaced at {', '.join(PATCH_POINTS)}")
        self._needed = {"resid_pre", *points, *(("attn_in", "z") if "pattern" in points else ())}
        self._outputs: list[Any] = []
        self._kept: dict[tuple[str, int], Tensor] = {}
        self.reference = self._first_run()
        self._skips: bool | None = None

    @property
    def n_pos(self) -> int:
        """Tokens of the prompt."""
        return self.ids.shape[1]

    def activation(self, point: str, layer: int) -> Float[Tensor, "pos ..."]:
        """An activation of the unchanged run; a pattern is (head, dst, src)."""
        return self._kept[point, layer]

    @torch.no_grad()
    def _first_run(self) -> Float[Tensor, " d_vocab"]:
        """Logits after the last token of the unchanged run; keeps its activations and what its blocks return."""
        lm = self.lm
        points = sorted(self._needed)
        for layer in range(lm.n_layers):
            for point in points:
                require_point(lm, point, layer)

        def keeper(point: str, layer: int) -> Callable[[Tensor], None]:
            return lambda t: self._kept.__setitem__((point, layer), t[0].clone())

        captures = {(p, n): keeper(p, n) for n in range(lm.n_layers) for p in points}
        with ExitStack() as stack:
            stack.enter_context(memory_guard(f"a run of {self.n_pos} tokens"))
            current = stack.enter_context(attach_hooks(lm, captures, self.edits))
            for block in lm.structure.blocks:
                stack.callback(block.module.register_forward_hook(lambda _m, _a, out: self._outputs.append(out)).remove)
            if self.stream is not None:
                _change_input(stack, lm.structure.blocks[0].module, lambda t: self._entered(t, 0), first=True)
            logits = self._logits(self.ids, current)[0]
        self._outputs = [_without_tensors(out) for out in self._outputs]
        self._check_patterns()
        return logits

    def _entered(self, t: Tensor, layer: int) -> Tensor:
        """The unchanged run's stream entering a block, for every row."""
        known = self._kept.get(("resid_pre", layer)) if self.stream is None or layer else self.stream
        assert known is not None
        return known.to(t).expand_as(t).clone()

    def _logits(self, ids: Tensor, current: ForwardPass) -> Float[Tensor, "row d_vocab"]:
        few = {"logits_to_keep": 1} if accepts_argument(self.lm, "logits_to_keep") else {}
        out = self.lm.hf(ids, use_cache=False, **few, **current.arguments).logits[:, -1]
        if not bool(torch.isfinite(out).all()):
            raise NotFinite(f"{self.lm.name}'s logits", why="they hold NaN or infinity with these replacements")
        return out

    def _check_patterns(self) -> None:
        """A replaced pattern acts through z, which must be the pattern's mixture of the values in this model."""
        for layer in range(self.lm.n_layers) if "pattern" in self._needed else ():
            z = self._kept["z", layer]
            mixed = torch.einsum("hds,shv->dhv", self._kept["pattern", layer].to(z), self._values(layer, None))
            if float((mixed - z).abs().max()) > SUM_TOLERANCE[self.lm.dtype_name] * float(z.abs().max()):
                raise Unsupported(
                    f"patterns of {self.lm.name}",
                    why=f"what the heads of layer {layer} mix is not the pattern times the values",
                    instead="Replace z instead",
                )

    def _values(self, layer: int, attn_in: Tensor | None) -> Float[Tensor, "*row src head d_head"]:
        """Each head's value at every position, from what attention reads; the unchanged run's where None."""
        lm, site = self.lm, self.lm.structure.blocks[layer].attention
        x = self._kept["attn_in", layer] if attn_in is None else attn_in
        values = torch.einsum("...sm,hmd->...shd", x, lm.weights.W_V[layer].to(x))
        if (bias := lm.weights.b_V[layer]) is not None:
            values = values + bias.to(x)
        if site.clip is not None:
            values = values.clamp(-site.clip, site.clip)
        return values.repeat_interleave(site.queries_per_kv, dim=-2)

    def logits(self, rows: Sequence[Sequence[Replacement]], batch: int | None = None) -> Float[Tensor, "row d_vocab"]:
        """Logits after the last token, for every row of replacements.

        Args:
            rows: what each row replaces; rows of one layer should stand together, since a batch starts at its lowest.
            batch: rows in memory at once; as many as hold `TOKENS_AT_ONCE` tokens if not given.

        Memory: activations of one batch, and the result.
        """
        size = batch or max(1, TOKENS_AT_ONCE // self.n_pos)
        if self._skips is None:
            self._skips = self._can_skip()
        order = sorted(range(len(rows)), key=lambda i: min((r.layer for r in rows[i]), default=0))
        out: list[Tensor | None] = [None] * len(rows)
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            for i, row in zip(chosen, self._batch([rows[i] for i in chosen], self._skips), strict=True):
                out[i] = row
        return torch.stack([row for row in out if row is not None])

    def _can_skip(self) -> bool:
        """Whether starting at a later layer gives this model's own logits."""
        layer = self.lm.n_layers - 1
        if layer == 0:
            return True
        same = Replacement("resid_pre", layer, None, None, self._kept["resid_pre", layer])
        found = self._batch([[same]], True)[0].double()
        expected = self.reference.double()
        close = float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max().clamp_min(1.0))
        return close or (self.lm.dtype_name != "float32" and float((found - expected).abs().max()) == 0.0)

    @torch.no_grad()
    def _batch(self, rows: Sequence[Sequence[Replacement]], skip: bool) -> Float[Tensor, "row d_vocab"]:
        lm, blocks = self.lm, self.lm.structure.blocks
        start = min((r.layer for row in rows for r in row), default=0) if skip else 0
        wanted: dict[tuple[str, int], list[tuple[int, Replacement]]] = {}
        for i, row in enumerate(rows):
            for replacement in row:
                wanted.setdefault((replacement.point, replacement.layer), []).append((i, replacement))
        with ExitStack() as stack:
            stack.enter_context(memory_guard(f"{len(rows)} rows of {self.n_pos} tokens"))
            current = stack.enter_context(attach_hooks(lm, {}, self.edits))
            for layer in range(start):
                stack.enter_context(_passed_through(blocks[layer].module, self._outputs[layer]))
            if start or self.stream is not None:
                _change_input(stack, blocks[start].module, lambda t: self._entered(t, start), first=True)
            for (point, layer), changes in wanted.items():
                self._install(stack, current, point, layer, changes)
            return self._logits(self.ids.expand(len(rows), -1), current)

    def _install(
        self,
        stack: ExitStack,
        current: ForwardPass,
        point: str,
        layer: int,
        changes: Sequence[tuple[int, Replacement]],
    ) -> None:
        """Hooks that write the replacements of one point of one layer."""
        block = self.lm.structure.blocks[layer]
        site, ffn = block.attention, block.feed_forward
        seen: dict[str, Tensor] = {}

        def written(t: Tensor) -> Tensor:
            t = t.clone()
            for i, replacement in changes:
                replacement.write(t[i])
            return t

        def scaled(multiplier: float) -> Callable[[Tensor], Tensor]:
            return lambda t: written(t * multiplier) / multiplier

        def middle(t: Tensor) -> Tensor:
            entering = seen["resid_pre"]
            return (written(entering + t * site.multiplier) - entering) / site.multiplier

        def heads(t: Tensor) -> Tensor:
            return written(t.view(*current.shape, site.n_heads, site.d_head)).view(t.shape)

        def mixed(t: Tensor) -> Tensor:
            z = t.view(*current.shape, site.n_heads, site.d_head).clone()
            values = self._values(layer, seen["attn_in"])
            for i, r in changes:
                positions = torch.arange(self.n_pos) if r.positions is None else r.positions
                z[i, positions, r.index] = r.value.to(z) @ values[i, :, r.index]
            return z.view(t.shape)

        attention = site.branch_norm.module if site.branch_norm else site.out_proj
        if point == "resid_pre":
            _change_input(stack, block.module, written, current)
        elif point == "resid_post":
            _change_output(stack, block.module, written, current)
        elif point == "attn_out":
            _change_output(stack, attention, scaled(site.multiplier), current)
        elif point == "resid_mid":
            _note_input(stack, block.module, "resid_pre", seen, current)
            _change_output(stack, attention, middle, current)
        elif point == "z":
            _change_input(stack, site.out_proj, heads, current)
        elif point == "pattern":
            _note_input(stack, site.layout.v, "attn_in", seen, current)
            _change_input(stack, site.out_proj, mixed, current)
        elif ffn is not None and point == "mlp_out":
            module = ffn.branch_norm.module if ffn.branch_norm else ffn.down_proj or ffn.module
            _change_output(stack, module, scaled(ffn.multiplier), current)
        elif ffn is not None and ffn.down_proj is not None and point == "coefficients":
            _change_input(stack, ffn.down_proj, written, current)
        else:
            raise PointMissing(f"{self.lm.name} layer {layer} has no {point}", why="its FFN has no such tensor")


def _change_input(
    stack: ExitStack,
    module: nn.Module,
    change: Callable[[Tensor], Tensor],
    current: ForwardPass | None = None,
    *,
    first: bool = False,
) -> None:
    """Replace the tensor that a module works on, wherever its caller puts it."""

    def hook(_m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for i, value in enumerate(args):
            if isinstance(value, Tensor):
                return (*args[:i], _reshaped(value, change, current), *args[i + 1 :]), kwargs
        for name in ("hidden_states", "x", "input", "inputs"):
            if isinstance(kwargs.get(name), Tensor):
                return args, {**kwargs, name: _reshaped(kwargs[name], change, current)}
        raise Unsupported(f"replacing the input of {type(module).__name__}", why="it is given no tensor")

    stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True, prepend=first).remove)


def _change_output(
    stack: ExitStack, module: nn.Module, change: Callable[[Tensor], Tensor], current: ForwardPass
) -> None:
    """Replace the first tensor that a module returns."""

    def hook(_m: nn.Module, _args: Any, out: Any) -> Any:
        if isinstance(out, Tensor):
            return _reshaped(out, change, current)
        i = next(i for i, value in enumerate(out) if isinstance(value, Tensor))
        parts = [*out[:i], _reshaped(out[i], change, current), *out[i + 1 :]]
        return tuple(parts) if isinstance(out, tuple) else parts

    stack.callback(module.register_forward_hook(hook).remove)


def _note_input(stack: ExitStack, module: nn.Module, name: str, seen: dict[str, Tensor], current: ForwardPass) -> None:
    def hook(_m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)
        assert given is not None
        seen[name] = current.by_position(given)

    stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)


def _reshaped(t: Tensor, change: Callable[[Tensor], Tensor], current: ForwardPass | None) -> Tensor:
    """The change made to a tensor as (batch, pos, ...), returned in the shape that the module uses."""
    return change(t if current is None else current.by_position(t)).view(t.shape)


def _without_tensors(out: Any) -> Any:
    """The form of what a block returns, with its first tensor left out."""
    if isinstance(out, Tensor):
        return None
    i = next(i for i, value in enumerate(out) if isinstance(value, Tensor))
    return [*out[:i], ..., *(None if isinstance(v, Tensor) else v for v in out[i + 1 :])], type(out) is tuple


def _passed_through(module: nn.Module, form: Any) -> AbstractContextManager[None]:
    """Context manager: the block returns the stream that it is given."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = next((v for v in (*args, kwargs.get("hidden_states")) if isinstance(v, Tensor)), None)
        if form is None:
            return hidden
        parts, is_tuple = form
        filled = [hidden if value is ... else value for value in parts]
        return tuple(filled) if is_tuple else filled

    return forward_replaced(module, forward)
