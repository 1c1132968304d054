"""One forward pass of the real model, with the captured tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.errors import InvalidInput, NotFinite, OutOfRange, PointMissing, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.structure.families import facts_of
from unembed.names import Point
from unembed.results import Displayed, Provenance, Table
from unembed.stream.capture_points import OF_WEIGHTS, has_point, require_point
from unembed.stream.gradients import Graph, on_the_graph
from unembed.stream.hooks import (
    Callback,
    Hook,
    Stop,
    accepts_argument,
    attach_hooks,
    memory_guard,
)
from unembed.stream.interventions import Edit, Edits, as_edits
from unembed.validation import as_int, as_str, as_tuple

_ONCE = ("position_embedding",)
"""Points that belong to the whole model and not to a layer, and are captured once."""

_BY_HEAD = ("scores", "pattern")
"""Points whose tensors have heads before positions: (batch, head, dst, src)."""

OnePrompt = str | Sequence[int] | Tensor | Mapping[str, Any]
"""A text, ids, or what a tokenizer of transformers returns, of which "input_ids" are taken."""
SeveralPrompts = Sequence[str] | Sequence[Sequence[int]] | Sequence[Tensor] | Tensor
"""A list of prompts; or, together with an attention mask, a tensor of their token ids (prompt, pos)."""
Tokens = OnePrompt | Sequence[str]


@dataclass(eq=False)
class _Layers:
    """The tensors of one capture point in all layers, stacked where they have the same shape."""

    layers: tuple[int, ...]
    device: torch.device = field(default=torch.device("cpu"), metadata={"saved": False})
    """The device on which the tensors of all layers are stored, even if the layers are on several devices. A saved run
    is read back on the CPU."""
    stack: Tensor | None = None
    odd: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """The tensors of layers whose shape differs from that of the first layer."""

    def put(self, layer: int, t: Tensor) -> None:
        if self.stack is None:
            self.stack = torch.empty((len(self.layers), *t.shape), dtype=t.dtype, device=self.device)
        if t.shape == self.stack.shape[1:]:
            self.stack[self.layers.index(layer)].copy_(t)
        else:
            self.odd[layer] = t.to(self.device, copy=True)

    def at_position(self, point: str, column: int) -> _Layers:
        stack = None if self.stack is None else _one_position(point, self.stack, column, first_axis=1)
        odd = {layer: _one_position(point, t, column) for layer, t in self.odd.items()}
        return replace(self, stack=stack, odd=odd)

    def at(self, layer: int) -> Tensor:
        assert self.stack is not None
        return self.odd[layer] if layer in self.odd else self.stack[self.layers.index(layer)]


def _one_position(point: str, t: Tensor, column: int, first_axis: int = 0) -> Tensor:
    """Return the part of a captured tensor at one position.

    The point "values" is returned whole, because one row of an attention pattern mixes the values of all positions.
    """
    axis = first_axis + (2 if point in _BY_HEAD else 1)
    return t if point == "values" or t.shape[axis] == 1 else t.narrow(axis, column, 1)


@dataclass(frozen=True, eq=False, repr=False)
class Run(Displayed):
    """The result of a forward pass: the logits, and the captured tensors by point."""

    tokens: Int[Tensor, "batch pos"]
    attention_mask: Int[Tensor, "batch pos"]
    """1 at real tokens, 0 at padding."""
    layers: tuple[int, ...]
    """The layers along the first axis of the tensors, in order: the chosen ones, or all."""
    _logits: Float[Tensor, "batch pos d_vocab"] | None
    provenance: Provenance
    _captured: dict[str, _Layers] = field(default_factory=dict[str, _Layers])
    _graph: Graph | None = field(default=None, metadata={"saved": False})
    """The captured tensors as nodes of the autograd graph; None if no graph was recorded. Not saved or pickled."""
    _last: Float[Tensor, "batch d_vocab"] | None = None
    """The logits after the last token, if those of the other tokens are not stored."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: everything except the graph."""
        return {**vars(self), "_graph": None, "_logits": None if self._logits is None else self._logits.detach()}

    def to_table(self) -> Table:
        """Return a table with a row for each captured point and the logits: layers, shape within a layer, dtype."""
        rows = [(point, list(of.layers), of.at(of.layers[0])) for point, of in self._captured.items() if of.layers]
        rows += [] if self._logits is None else [("logits", None, self._logits)]
        columns = {
            "point": [point for point, _, _ in rows],
            "layers": [layers for _, layers, _ in rows],
            "shape": [list(t.shape) for _, _, t in rows],
            "dtype": [str(t.dtype).removeprefix("torch.") for _, _, t in rows],
        }
        n, length = self.tokens.shape
        return Table(f"Run of {n} x {length} tokens", columns, self.provenance)

    def __repr__(self) -> str:
        """Return the size of the run and the names of the captured points, without the tensors."""
        rows, length = self.tokens.shape
        points = ", ".join(self._captured) or "nothing"
        return f"Run({rows} x {length} tokens, {len(self.layers)} layers, captured {points})"

    @property
    def logits(self) -> Float[Tensor, "batch pos d_vocab"]:
        """The model's logits at every position.

        Raises:
            PointMissing: the run was made with logits=False, or is a trace's.
        """
        if self._logits is None:
            raise PointMissing(
                "this run has no logits",
                why="it was made with logits=False, or belongs to a trace",
                instead="Use trace.logits(position), or unembed.run(lm, prompt).logits",
            )
        return self._logits

    def __getitem__(self, point: str) -> Float[Tensor, "layer batch ..."]:
        """Return the tensor of a capture point in all layers, with the axes layer, batch and so on.

        Raises:
            PointMissing: the run did not capture the point, or not every layer has it in the same shape.
        """
        captured = self._point(point)
        lacking = [layer for layer in self.layers if layer not in captured.layers] if point not in _ONCE else []
        if lacking or captured.odd or captured.stack is None:
            why = f"layers {lacking} do not have it" if lacking else "its width differs between layers"
            raise PointMissing(f"{point} of all layers", why=why, instead=f"Use run.at({point!r}, layer)")
        return captured.stack

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the run: the logits, and the captured ones, stacked by layer where possible."""
        captured = [t for of in self._captured.values() for t in (of.stack, *of.odd.values()) if t is not None]
        return [t for t in (self._logits, self._last) if t is not None] + captured

    def joined(self, other: Run) -> Run:
        """Return a copy of the run with the further tensors that another run of the same tokens captured."""
        return replace(self, _captured={**other._captured, **self._captured})

    def without(self, points: Collection[str]) -> Run:
        """Return a copy of the run without the tensors of some capture points."""
        return replace(self, _captured={name: of for name, of in self._captured.items() if name not in points})

    def with_last_logits(self) -> Run:
        """Return a copy of the run that stores logits after the last token only, for `logits_after`."""
        return replace(self, _logits=None, _last=self.logits[:, -1].clone())

    def logits_after(self, column: int) -> Float[Tensor, "batch d_vocab"]:
        """Return the logits after the token of one column.

        Raises:
            PointMissing: the run was made with logits=False, or stores those of the last column only.
        """
        last = column == self.tokens.shape[1] - 1
        return self._last if last and self._last is not None else self.logits[:, column]

    def with_one_stream(self) -> Run:
        """Return the run with resid_pre and resid_post as views of one tensor.

        If some layer's input is not the output of the layer before it, the run is returned unchanged.
        """
        before, after = self["resid_pre"], self["resid_post"]
        if not torch.equal(before[1:], after[:-1]):
            return self
        both = torch.cat([before[:1], after])
        pre, post = self._captured["resid_pre"], self._captured["resid_post"]
        shared = {"resid_pre": replace(pre, stack=both[:-1]), "resid_post": replace(post, stack=both[1:])}
        return replace(self, _captured={**self._captured, **shared})

    def at_position(self, column: int) -> Run:
        """Return the part of the run at one position, as a run of one token; its tensors are views of this run's.

        The point "values" still has all positions, because one row of an attention pattern mixes the values of all
        positions.
        """
        part = slice(column, column + 1)
        logits = None if self._logits is None else self._logits[:, part]
        captured = {point: of.at_position(point, column) for point, of in self._captured.items()}
        return replace(
            self,
            tokens=self.tokens[:, part],
            attention_mask=self.attention_mask[:, part],
            _logits=logits,
            _last=None,
            _captured=captured,
        )

    def gradient(self, point: str, of: Float[Tensor, ""]) -> Float[Tensor, "layer batch ..."]:
        """Return the gradient of a scalar with respect to a captured tensor, in all layers that have that tensor.

        Args:
            point: a capture point of this run.
            of: a scalar tensor computed from `run.logits`.

        Raises:
            PointMissing: the run did not capture the point, or was made without `grad=True`.
            InvalidInput: `of` was not computed from this run's logits.
        """
        captured = self._point(point)
        if self._graph is None:
            raise PointMissing(
                "this run has no gradients",
                why="it ran without grad=True, which records the graph",
                instead="Run it with grad=True",
            )
        return self._graph.gradient(point, captured.layers, of)

    def _point(self, point: str) -> _Layers:
        if as_str("point", point) not in self._captured:
            names = ", ".join(sorted(self._captured)) or "nothing"
            raise PointMissing(
                f"this run has no {point}", why=f"it captured {names}", instead=f"Run with capture=({point!r},)"
            )
        return self._captured[point]

    def __contains__(self, point: object) -> bool:
        return isinstance(point, str) and point in self._captured

    def has(self, point: str, layer: int) -> bool:
        """Tell whether the run captured a point in a layer."""
        return point in self and layer in self._captured[point].layers

    def at(self, point: str, layer: int) -> Float[Tensor, "batch ..."]:
        """Return the tensor of a capture point in one layer.

        Raises:
            OutOfRange: the run did not capture this layer.
            PointMissing: the run did not capture the point, or the layer does not have it.
        """
        layer = as_int("layer", layer)
        if layer not in self.layers:
            raise OutOfRange(f"layer {layer}", why=f"this run has layers {list(self.layers)}")
        captured = self._point(point)
        if layer not in captured.layers:
            raise PointMissing(f"layer {layer} has no {point}", why=f"only layers {list(captured.layers)} have it")
        return captured.at(layer)


def prepare(
    lm: Decoder, tokens: Tokens, attention_mask: Tensor | None = None
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Return token ids and attention mask as (batch, pos); several texts are padded on the right.

    Raises:
        InvalidInput: the tokens are empty, not integers, or longer than the model's context.
        OutOfRange: an id is not in the vocabulary.
    """
    if isinstance(tokens, Mapping) and "input_ids" in tokens:  # what a tokenizer of transformers returns
        tokens = tokens["input_ids"]
    if isinstance(tokens, str):
        ids = lm.encode(tokens)
    elif isinstance(tokens, Tensor):
        ids = tokens
    elif not hasattr(tokens, "__len__"):
        raise InvalidInput(f"tokens {tokens!r:.60}", why="they are neither text nor ids")
    elif len(tokens) > 0 and all(isinstance(t, str) for t in tokens):
        return padded(lm, [lm.encode(t)[0] for t in tokens])  # type: ignore[arg-type]
    else:
        try:
            ids = torch.tensor(tokens) if len(tokens) else torch.empty(0, dtype=torch.long)
        except (TypeError, ValueError) as error:
            raise InvalidInput("tokens", why="they are neither text nor numbers in rows of equal length") from error
    if ids.dtype not in (torch.int64, torch.int32):
        raise InvalidInput("tokens", why=f"their dtype is {ids.dtype}, not an integer type")
    ids = (ids[None] if ids.dim() == 1 else ids).to(lm.device, torch.long)
    if ids.dim() != 2 or ids.numel() == 0:
        raise InvalidInput(
            "tokens",
            why=f"their shape is {tuple(ids.shape)}",
            instead="Give a tensor of shape (batch, pos) that is not empty",
        )
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= lm.d_vocab:
        raise OutOfRange(
            f"token {high if low >= 0 else low}", why=f"the ids of the vocabulary are 0 to {lm.d_vocab - 1}"
        )
    if lm.n_ctx is not None and ids.shape[1] > lm.n_ctx:
        raise InvalidInput(
            f"a prompt of {ids.shape[1]} tokens",
            why=f"{lm.name} has a context of {lm.n_ctx}",
            instead=f"Cut it: lm.windows(prompt) in Python; on the command line --windows {lm.n_ctx} for all of it, "
            f"or --last {lm.n_ctx} for its end",
        )
    if attention_mask is None:
        return ids, torch.ones_like(ids)
    mask = attention_mask.to(ids)
    if mask.shape != ids.shape or not bool(mask.any(dim=1).all()):
        raise InvalidInput("attention_mask", why="it must have the tokens' shape and a real token in every row")
    return ids, mask


def padded(lm: Decoder, rows: Sequence[Tensor]) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Return the tokens of several prompts, each (pos,), as one batch padded on the right, and its attention mask."""
    longest = max(len(r) for r in rows)
    named = [getattr(lm.tokenizer, name, None) for name in ("pad_token_id", "eos_token_id")]
    # Padding is masked, so it may be any token id that has a row in the model's embedding. The tokenizer's own padding
    # id is used only if it has such a row.
    filler = next((i for i in named if i is not None and i < lm.d_vocab), 0)
    ids = torch.full((len(rows), longest), filler, dtype=torch.long, device=lm.device)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return prepare(lm, ids, mask)


def unpadded(lm: Decoder, prompts: Sequence[Tokens] | Tensor, attention_mask: Tensor | None = None) -> list[Tokens]:
    """Return several prompts, each without its padding.

    Args:
        prompts: several texts, or the token ids of each; with a mask, ids (batch, pos).
        attention_mask: 1 at real tokens; padding may be on either side.

    Raises:
        InvalidInput: there is one text instead of several, or no prompt, or the mask has another shape.
    """
    if isinstance(prompts, str) or not len(prompts):
        raise InvalidInput(f"prompts {prompts!r:.60}", why="they are not a list of prompts")
    if attention_mask is None:
        return list(prompts)
    ids, mask = prepare(lm, prompts if isinstance(prompts, Tensor) else torch.tensor(prompts), attention_mask)
    return [row[real.bool()] for row, real in zip(ids, mask, strict=True)]


def are_several(prompts: object) -> bool:
    """Tell whether `prompts` is a list of prompts, and not one prompt."""
    return isinstance(prompts, list | tuple) and all(isinstance(one, str | list | tuple | Tensor) for one in prompts)


def check_positions(edits: Sequence[Edit], mask: Int[Tensor, "batch pos"]) -> None:
    """Refuse an edit at a negative position that lies before the start of every prompt in a batch.

    An edit at a position after the prompt is allowed: it has an effect only while a continuation is generated.

    Raises:
        OutOfRange: an edit is at position -p, and no prompt has p tokens.
    """
    longest = int(mask.sum(dim=1).max())
    for edit in edits:
        for p in () if isinstance(edit.positions, str) else edit.positions:
            if p < -longest:
                raise OutOfRange(f"an edit at position {p}", why=f"the prompt has {longest} tokens, 0 to {longest - 1}")


def check_padding(lm: Decoder, mask: Int[Tensor, "batch pos"]) -> None:
    """Refuse padding on the left for model families in which it changes the results although the mask hides it.

    Raises:
        Unsupported: a row begins with padding, and the family's token mixers read padding.
    """
    why = facts_of(lm.hf.config.model_type).reads_left_padding
    if why and not bool(mask[:, 0].all()):
        raise Unsupported(
            f"padding on the left with {lm.name}",
            why=why,
            instead="Pad on the right; to generate from prompts of unequal length, give them one at a time",
        )


def cache_argument(lm: Decoder) -> dict[str, bool]:
    """Return the argument that turns the key-value cache off, unless the model cannot run without it.

    Raises:
        Unsupported: the pass records gradients, and the model needs a cache that it overwrites in place.
    """
    needed = facts_of(lm.hf.config.model_type).float32_state_without_cache and lm.dtype.itemsize < 4
    if needed and torch.is_grad_enabled():
        raise Unsupported(
            f"gradients of {lm.name} in {lm.dtype_name}",
            why="in half precision it overwrites its recurrent state in place",
            instead="Load with dtype='float32'",
        )
    return {"use_cache": needed}


def forward_arguments(lm: Decoder, mask: Int[Tensor, "batch pos"]) -> dict[str, object]:
    """Return the arguments of the model's forward for this mask, so that padding does not change the results.

    Raises:
        Unsupported: padding on the left would change the results, or gradients are impossible in the model's dtype.
    """
    arguments: dict[str, object] = {**cache_argument(lm)}
    if bool(mask.all()):
        return arguments
    check_padding(lm, mask)
    arguments["attention_mask"] = mask
    if not bool(mask[:, 0].all()) and accepts_argument(lm, "position_ids"):
        arguments["position_ids"] = (mask.cumsum(dim=1) - 1).clamp_min(0)
    return arguments


def _points_of_row(
    row: int | None, row_of: str | Collection[str] | None, capture: Collection[str], n: int
) -> tuple[str, ...]:
    """Check `row` and `row_of`, and return the capture points at which `run` stores only the position `row`."""
    if row is not None and not 0 <= as_int("row", row) < n:
        raise OutOfRange(f"row {row}", why=f"the prompt has the positions 0 to {n - 1}")
    if row_of is None:
        return ("pattern",)
    chosen = (row_of,) if isinstance(row_of, str) else tuple(as_tuple("row_of", row_of))
    if others := [point for point in chosen if point not in capture]:
        raise InvalidInput(f"row_of with {others[0]!r}", why="this point is not captured", instead="Capture it too")
    return chosen


@torch.no_grad()
def run(
    lm: Decoder,
    tokens: Tokens,
    capture: Point | str | Collection[Point | str] = (),
    edits: Edits = (),
    *,
    attention_mask: Tensor | None = None,
    logits: bool = True,
    layers: Sequence[int] | None = None,
    hooks: Mapping[str, Hook] | None = None,
    grad: bool = False,
    row: int | None = None,
    row_of: Point | str | Collection[Point | str] | None = None,
) -> Run:
    """Run the model once on a batch; capture tensors, and change them by edits or hooks.

    Args:
        tokens: token ids (batch, pos), one text, or several texts (padded on the right).
        capture: the capture points, see `unembed.names.POINTS`; the tensors equal the model's own bit for bit.
        edits: changes to make during the pass; at positions after the prompt they have no effect.
        attention_mask: 1 at real tokens; padding may be on either side.
        logits: whether to compute logits; if False, the pass stops after the last captured tensor.
        layers: the layers to capture; by default, all that have the tensor.
        hooks: for each capture point, a function of (tensor, layer), called after the edits in every layer that has the
            tensor. If it returns a tensor, that replaces the model's; None leaves it unchanged.
        grad: whether to record the graph from the first block's input to the logits, for `Run.gradient`.
        row: the only position to store at the points in `row_of`, on an axis of length 1; by default, all.
        row_of: the captured points of which only `row` is needed; patterns when None. Of patterns it is the
            destination: (batch, head, 1, src).

    Raises:
        PointMissing: no layer has a tensor to capture, or one of the chosen layers does not have it.
        InvalidInput: a hook returned a tensor of another shape, or replaced a tensor that can only be captured; a point
            in `row_of` is not captured.
        OutOfRange: `row` is no position of the prompt, or an edit is at a position before the first token.
        NotFinite: the logits contain NaN or infinity.

    Memory: the captured tensors, plus one layer's activations; with `grad`, the activations of all layers.
    """
    capture = (capture,) if isinstance(capture, str) else as_tuple("points", capture)
    capture = tuple(dict.fromkeys(as_str("point", point) for point in capture))
    if grad and not logits:
        raise InvalidInput("grad=True with logits=False", why="gradients need a number computed from the logits")
    ids, mask = prepare(lm, tokens, attention_mask)
    row_of = _points_of_row(row, row_of, capture, ids.shape[1])
    edits = as_edits(edits)
    check_positions(edits, mask)
    provenance = lm.provenance(notes={"edits": [edit.to_dict() for edit in edits]} if edits else None)
    chosen = tuple(lm.layer(n) for n in (range(lm.n_layers) if layers is None else as_tuple("layers", layers)))
    where = {point: _layers_with(lm, point, chosen, layers is not None) for point in capture}
    captured = {point: _Layers(where[point], lm.device) for point in capture}
    missing = {(p, n) for p in capture for n in where[p]}

    def keep(point: str, layer: int) -> Callback:
        def callback(t: Tensor) -> None:
            if row is not None and point in row_of:
                t = _one_position(point, t, row)
            captured[point].put(layer, t.detach())
            missing.discard((point, layer))
            if not missing and not logits:
                raise Stop

        return callback

    if not missing and not logits:
        return Run(ids, mask, chosen, None, provenance)
    captures = {(p, n): keep(p, n) for p, n in missing}
    replacing = {
        (p, n): h for p, h in (hooks or {}).items() for n in _layers_with(lm, p, tuple(range(lm.n_layers)), False)
    }
    out, graph = None, None
    whole_patterns = "pattern" not in row_of or "scores" in capture or set(OF_WEIGHTS) & set(hooks or ())
    one_row = None if whole_patterns else row
    with ExitStack() as stack:
        stack.enter_context(memory_guard(f"a pass of {ids.numel()} tokens"))
        current = stack.enter_context(attach_hooks(lm, captures, edits, replacing, pattern_row=one_row))
        if grad:
            graph = Graph(lm, current)
            stack.enter_context(torch.enable_grad())
            stack.enter_context(on_the_graph(lm, captures, graph.own, current))
        stack.enter_context(suppress(Stop))
        out = lm.hf(ids, **forward_arguments(lm, mask), **current.arguments).logits
    if out is not None and not _finite(out.detach(), mask):
        raise NotFinite(
            f"{lm.name}'s logits",
            why="they hold NaN or infinity" + (" under these edits" if edits or hooks else ""),
            instead="Use smaller edits" if edits or hooks else "Check the weights, or load with dtype='float32'",
        )
    return Run(ids, mask, chosen, out, provenance, captured, graph)


def _layers_with(lm: Decoder, point: str, chosen: tuple[int, ...], strict: bool) -> tuple[int, ...]:
    """Return the layers in which to capture a point: those that have it or, if `strict`, all chosen ones."""
    if point in _ONCE:
        require_point(lm, point, 0)
        return chosen[:1]
    layers = tuple(layer for layer in chosen if has_point(lm, point, layer))
    for layer in chosen if strict else chosen[:1] if not layers else ():
        require_point(lm, point, layer)
    return layers


def _finite(logits: Tensor, mask: Tensor) -> bool:
    """Tell whether the logits of all tokens but padding are finite."""
    return bool(torch.isfinite(logits.sum())) or bool(torch.isfinite(logits[mask.bool()]).all())


def position_of(run: Run, position: int) -> int:
    """Return the column of a position in the first prompt of a run.

    Positions count from the first token after padding; negative ones count from the prompt's end.

    Raises:
        OutOfRange: the prompt has no such position.
    """
    return column_of(run.attention_mask, position)


def column_of(mask: Int[Tensor, "batch pos"], position: int) -> int:
    """Return the column of a position in the first row of a mask, as `position_of` does for a run.

    Raises:
        OutOfRange: the prompt has no such position.
    """
    real, position = mask[0].nonzero()[:, 0], as_int("position", position)
    if not -len(real) <= position < len(real):
        raise OutOfRange(f"position {position}", why=f"the prompt has {len(real)} tokens, 0 to {len(real) - 1}")
    return int(real[position])
