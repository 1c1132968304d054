"""Run one prompt many times in a batch, with other activations replaced in each row.

A batch starts at the first layer in which an activation is replaced: earlier blocks are skipped, and this layer reads
the stream of the unchanged run. Before the first batch, a test shows whether this is exact. If it is not, because a
layer uses more of an earlier layer than the stream (such as its keys), all blocks run. Rows of several prompts share
batches, padded on the right, if a second test shows that this is exact too. (It is not for rotary embeddings whose
frequencies depend on the length of the batch.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.causality.replaced_pass import Place, Replacement, by_head, record_outputs, replaced_pass
from unembed.errors import InvalidInput, NotFinite, PointMissing, UnembedError, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import PATCH_POINTS, SUM_TOLERANCE
from unembed.stream.capture_points import ForwardPass, has_point, require_point
from unembed.stream.decomposition import require_one_stream
from unembed.stream.hooks import Callback, Hook, Stop, accepts_argument, memory_guard
from unembed.stream.interventions import Edits, as_edits
from unembed.stream.run import Run, Tokens, cache_argument, check_positions, padded, prepare
from unembed.validation import positive_int

TOKENS_AT_ONCE = 2048
"""Largest number of tokens in a batch, which limits the activations and logits that are in memory at once."""
Row = Sequence[Replacement]
Function = Callable[[Float[Tensor, "row d_vocab"]], Float[Tensor, " row"]]


def layers_with(lm: Decoder, point: str) -> tuple[int, ...]:
    """Return the layers that have the activation of a capture point.

    Raises:
        PointMissing: no layer has it, or the model has no layers.
        Unsupported: no layer's FFN has memories.
    """
    if not lm.n_layers:
        raise PointMissing(f"{lm.name} has no {point}", why="it has no layers")
    needed = (point, "values") if point == "pattern" else (point,)  # a pattern is replaced by computing z from it
    found = tuple(layer for layer in range(lm.n_layers) if all(has_point(lm, p, layer) for p in needed))
    if not found:
        for one in needed:
            require_point(lm, one, 0)
    return found


def n_heads_of(lm: Decoder, layer: int) -> int:
    """Return the number of heads in a layer."""
    mixer = lm.structure.blocks[layer].mixer
    assert mixer is not None
    return mixer.n_heads


class Rerun:
    """One prompt: its unchanged run, and reruns with replaced activations."""

    def __init__(
        self,
        lm: Decoder,
        tokens: Tokens | Run,
        points: Sequence[str] = (),
        edits: Edits = (),
        stream: Float[Tensor, "pos d_model"] | None = None,
        seen: Run | None = None,
        outputs: list[Any] | None = None,
        reference: Float[Tensor, " d_vocab"] | None = None,
    ) -> None:
        """Run the prompt once; store the input of every block, and the activations at `points`.

        Args:
            tokens: one prompt; or a run of it, which is then used as `seen`.
            points: capture points of further activations to store, in all layers that have them.
            edits: changes to make in every run.
            stream: the input of the first block, if it is not the embedding of the prompt (a corrupted embedding).
            seen: a run, under the same edits, of a text that begins with these tokens. If it captured resid_pre, and no
                patterns are needed, the prompt is not run again: other activations are computed from a block's input
                when they are first needed.
            outputs: the list that `record_outputs` collected in a run of the model, if there is one.
            reference: the logits of the unchanged run after the last token, if `seen` does not have them.

        Raises:
            InvalidInput: there is more than one prompt, or an activation that cannot be replaced.
            PointMissing: the model does not have an activation to store.
            Unsupported: `stream` is given, and the model has several streams.
        """
        self.lm, self.edits, self.stream = lm, as_edits(edits), stream
        seen = tokens if isinstance(tokens, Run) else seen
        self.ids, mask = prepare(lm, tokens.tokens if isinstance(tokens, Run) else tokens)
        check_positions(self.edits, mask)
        if self.ids.shape[0] != 1:
            raise InvalidInput(
                f"{self.ids.shape[0]} prompts",
                why="one prompt is run at a time",
                instead="Give several as a list of prompts, or with their attention_mask",
            )
        if not bool(mask.all()):
            raise InvalidInput(
                "a padded prompt", why="a single prompt needs no padding", instead="Give its tokens without padding"
            )
        for point in points:
            if point not in PATCH_POINTS:
                raise InvalidInput(
                    f"point {point!r}", why=f"activations can be replaced only at {', '.join(PATCH_POINTS)}"
                )
        if stream is not None:
            require_one_stream(lm, "a replaced embedding")
        self._needed = {"resid_pre", *points, *(("values", "z") if "pattern" in points else ())}
        self._captured: dict[tuple[str, int], Tensor] = {}
        known = None if stream is not None or "pattern" in points else seen
        stored = None if known is None else self._stored(known, outputs, reference)
        self.reference = self._first_run() if stored is None else stored
        # If a model has several residual streams, their combination into one vector is stored, from which a block's
        # input cannot be recovered. So every rerun of such a model starts at the first block.
        self._skips: bool | None = None if lm.structure.streams is None else False

    @property
    def n_pos(self) -> int:
        """The number of tokens in the prompt."""
        return self.ids.shape[1]

    def activation(self, point: str, layer: int) -> Float[Tensor, "pos ..."]:
        """Return an activation of the unchanged run; a pattern is (head, dst, src)."""
        if (point, layer) not in self._captured:
            self.try_skipping()
            entering = [Replacement("resid_pre", layer, None, None, self._entering(layer))] if self._skips else []
            self._captured[point, layer] = self.activations([entering], point, layer)[0]
        return self._captured[point, layer]

    @torch.no_grad()
    def _first_run(self) -> Float[Tensor, " d_vocab"]:
        """Run the prompt unchanged, store its activations, and return the logits after the last token."""
        lm = self.lm

        def capture_at(point: str, layer: int) -> Callable[[Tensor], None]:
            return lambda t: self._captured.__setitem__((point, layer), t[0].to(lm.device, copy=True))

        captures = {(p, n): capture_at(p, n) for p in sorted(self._needed) for n in layers_with(lm, p)}
        entering = None if self.stream is None else lambda t: _entered([self], t, 0)
        with ExitStack() as stack:
            stack.enter_context(memory_guard(f"a run of {self.n_pos} tokens"))
            current = stack.enter_context(replaced_pass(lm, (), self.edits, captures, entering=entering))
            self.block_outputs = record_outputs(stack, lm)
            logits = _last_logits([self], current)[0]
        self._check_patterns()
        return logits

    @torch.no_grad()
    def _stored(
        self, seen: Run, outputs: list[Any] | None, reference: Float[Tensor, " d_vocab"] | None
    ) -> Float[Tensor, " d_vocab"] | None:
        """Store the stream of an earlier run, and return its logits after the last token.

        Returns:
            The logits; None, with nothing stored, if that run did not capture the stream in every layer.
        """
        lm = self.lm
        if not all(seen.has("resid_pre", layer) for layer in range(lm.n_layers)):
            return None
        for layer in range(lm.n_layers):
            self._captured["resid_pre", layer] = seen.at("resid_pre", layer)[0, : self.n_pos].to(lm.device)
        if outputs is None:
            outputs = lm.once((__name__, "outputs"), lambda: _block_outputs(lm, self.ids[:, :1]))
        self.block_outputs = outputs
        return (seen.logits_after(self.n_pos - 1)[0] if reference is None else reference).to(lm.device)

    def _entering(self, layer: int) -> Float[Tensor, "pos d_model"]:
        """Return the input of a block in the unchanged run."""
        return self._captured["resid_pre", layer] if layer or self.stream is None else self.stream

    def _check_patterns(self) -> None:
        """Check that z is the attention pattern times the values, because patterns are replaced through z."""
        for layer in layers_with(self.lm, "pattern") if "pattern" in self._needed else ():
            z = self._captured["z", layer]
            edited = [e.index for e in self.edits if e.target == "head" and e.layer == layer]
            own = torch.tensor([h for h in range(z.shape[1]) if h not in edited], device=z.device, dtype=torch.long)
            values = by_head(self._captured["values", layer][None], z.shape[1])[0]
            mixed = torch.einsum("hds,hsv->dhv", self._captured["pattern", layer].to(z), values.to(z))
            error = (mixed - z)[:, own].abs()
            if own.numel() and float(error.max()) > SUM_TOLERANCE[self.lm.dtype_name] * float(z.abs().max()):
                raise Unsupported(
                    f"patterns of {self.lm.name}",
                    why=f"z in layer {layer} is not the attention pattern times the value vectors",
                    instead="Replace z instead",
                )

    def logits(self, rows: Sequence[Row], batch: int | None = None) -> Float[Tensor, "row d_vocab"]:
        """Return the logits after the last token for every row of replacements; arguments as in `measured`.

        Memory: activations of one batch, and the result.
        """
        return _each([(self, row) for row in rows], batch, lambda chosen: _logits(chosen))

    def measured(self, rows: Sequence[Row], function: Function, batch: int | None = None) -> Float[Tensor, " row"]:
        """Return a metric of the logits after the last token, for every row of replacements, in float64 on the CPU.

        Args:
            rows: the replacements in each row; a batch starts at the lowest layer that is replaced in it.
            function: a function of logits (row, d_vocab) that returns one number for each row.
            batch: number of rows in memory at once; by default, as many as have `TOKENS_AT_ONCE` tokens together.

        Memory: activations and logits of one batch.
        """
        return measured_together([(self, rows, function)], batch)[0]

    def activations(
        self,
        rows: Sequence[Row],
        point: str,
        layer: int,
        batch: int | None = None,
        hooks: Mapping[Place, Hook] | None = None,
    ) -> Float[Tensor, "row pos ..."]:
        """Return an activation for every row of replacements; the pass stops after that activation.

        Args:
            rows: the replacements in each row.
            batch: number of rows in memory at once.
            hooks: functions that change other activations in every batch, called before the replacements.
        """

        def one(chosen: Sequence[RowOf]) -> Tensor:
            found: list[Tensor] = []

            def keep(t: Tensor) -> None:
                found.append(t.to(self.lm.device, copy=True))
                raise Stop

            with _replaced(chosen, {(point, layer): keep}, hooks) as current, suppress(Stop):
                _last_logits([self] * len(chosen), current)
            return found[0]

        return _each([(self, row) for row in rows], batch, one)

    def try_skipping(self) -> None:
        """Test once whether a pass that starts at a later layer gives the model's own logits, and store the result."""
        if self._skips is None:
            self._skips = True
            self._skips = self._skips_exactly()

    def _skips_exactly(self) -> bool:
        layer = self.lm.n_layers - 1
        if layer == 0:
            return True
        same = Replacement("resid_pre", layer, None, None, self._captured["resid_pre", layer])
        try:
            found, expected = _logits([(self, [same])])[0].double(), self.reference.double()
        except UnembedError:
            raise
        except Exception:  # a block needs more from the skipped blocks than the stream, such as their keys
            return False
        close = float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max().clamp_min(1.0))
        return close or (self.lm.dtype_name != "float32" and float((found - expected).abs().max()) == 0.0)

    def _is_own_pattern(self, replacement: Replacement) -> bool:
        """Tell whether the replacement of a pattern equals the pattern of the unchanged run."""
        if replacement.point != "pattern" or ("pattern", replacement.layer) not in self._captured:
            return False
        own = self._captured["pattern", replacement.layer][replacement.index]
        own = own if replacement.positions is None else own[replacement.positions.to(own.device)]
        return torch.equal(own, replacement.value.to(own))

    def _same_kernels(self) -> dict[Place, Callback]:
        """Return capture callbacks that do nothing, for each pattern that was captured in the unchanged run.

        Where a pattern is captured, attention does not use fused kernels, which round differently. With these
        callbacks, a rerun uses the same kernels as the unchanged run.
        """
        layers = layers_with(self.lm, "pattern") if "pattern" in self._needed else ()
        return {("pattern", layer): lambda _t: None for layer in layers}


def _block_outputs(lm: Decoder, ids: Int[Tensor, "1 1"]) -> list[Any]:
    """Return what `record_outputs` collects in a pass over one token; it is the same for any text."""
    with ExitStack() as stack:
        current = stack.enter_context(replaced_pass(lm, ()))
        found = record_outputs(stack, lm)
        lm.hf(ids, **cache_argument(lm), **last_logits(lm, 1), **current.arguments)
    return found


RowOf = tuple[Rerun, Row]
"""A row of a batch: the prompt to run again, and the replacements to make."""


def measured_together(
    parts: Sequence[tuple[Rerun, Sequence[Row], Function]], batch: int | None = None
) -> list[Float[Tensor, " row"]]:
    """Run each prompt again, once with each row of replaced activations; return its metric in float64 on the CPU.

    Args:
        parts: for each prompt its unchanged run, its rows, and its metric. A row lists the activations to replace in
            one forward pass, with their new values. All runs are of one model under the same edits. Prompts of unequal
            length share batches if padding does not change their logits.
        batch: number of rows in memory at once; by default, as many as have `TOKENS_AT_ONCE` tokens together.

    Memory: activations and logits of one batch.
    """
    if len(parts) > 1 and not _padding_is_exact([run for run, _, _ in parts]):
        return [measured_together([part], batch)[0] for part in parts]
    rows = [(run, row) for run, rows, _ in parts for row in rows]
    functions = {run: function for run, _, function in parts}

    def measure(chosen: Sequence[RowOf]) -> Float[Tensor, " row"]:
        logits, of = _logits(chosen), [run for run, _ in chosen]
        values = torch.empty(len(chosen), dtype=torch.float64)
        for run in dict.fromkeys(of):
            mine = torch.tensor([i for i, other in enumerate(of) if other is run])
            values[mine] = functions[run](logits[mine.to(logits.device)]).double().cpu()
        return values

    values = _each(rows, batch, measure)
    return list(values.split([len(rows) for _, rows, _ in parts]))


def _padding_is_exact(runs: Sequence[Rerun]) -> bool:
    """Tell whether padding in a batch with the longest prompt leaves the shortest prompt's logits unchanged."""
    shortest, longest = (pick(runs, key=lambda run: run.n_pos) for pick in (min, max))
    if shortest.n_pos == longest.n_pos:
        return True
    found, expected = _logits([(shortest, ()), (longest, ())])[0].double(), shortest.reference.double()
    return float((found - expected).abs().max()) <= SUM_TOLERANCE[shortest.lm.dtype_name] * float(expected.abs().max())


def _each(
    rows: Sequence[RowOf], batch: int | None, work: Callable[[Sequence[RowOf]], Tensor]
) -> Float[Tensor, "row ..."]:
    """Return the result of `work` for each row, in the given order.

    Batches are made in the order of the first replaced layer, so that each batch can skip as many blocks as possible.
    """
    longest = max((run.n_pos for run, _ in rows), default=1)
    size = max(1, TOKENS_AT_ONCE // longest) if batch is None else positive_int("batch", batch)
    for run in dict.fromkeys(run for run, _ in rows):
        run.try_skipping()
    order = sorted(range(len(rows)), key=lambda i: min((r.layer for r in rows[i][1]), default=0))
    out: list[Tensor | None] = [None] * len(rows)
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        for i, row in zip(chosen, work([rows[i] for i in chosen]), strict=True):
            out[i] = row
    return torch.stack([row for row in out if row is not None])


def _logits(rows: Sequence[RowOf]) -> Float[Tensor, "row d_vocab"]:
    with _replaced(rows) as current:
        return _last_logits([run for run, _ in rows], current)


def _last_logits(runs: Sequence[Rerun], current: ForwardPass) -> Float[Tensor, "row d_vocab"]:
    """Return the logits after the last token of each row's prompt."""
    lm, lengths = runs[0].lm, [run.n_pos for run in runs]
    if len(set(lengths)) == 1:
        ids = torch.cat([run.ids for run in runs])
    else:
        # Attention is causal and the padding is on the right, so no token of a prompt attends to padding, and no mask
        # is needed. Without a mask, the model uses the same kernels as for a prompt without padding.
        ids, current.mask = padded(lm, [run.ids[0] for run in runs])
    few = last_logits(lm, max(lengths), max(lengths) - min(lengths) + 1)
    out = lm.hf(ids, **cache_argument(lm), **few, **current.arguments).logits
    last = torch.tensor(lengths, device=out.device) - max(lengths) - 1  # each last token, from the end
    out = out[torch.arange(len(runs), device=out.device), last]
    if not bool(torch.isfinite(out).all()):
        raise NotFinite(f"{lm.name}'s logits", why="they hold NaN or infinity with these replacements")
    return out


def last_logits(lm: Decoder, n_pos: int, n: int = 1) -> dict[str, Tensor]:
    """Return the argument that limits the logits to the last `n` positions; empty if the model has no such argument.

    The argument is passed as a list of positions. If it were the number `n`, Gemma 4 would compute only the last `n`
    positions in its last layers.
    """
    return {"logits_to_keep": torch.arange(n_pos - n, n_pos)} if accepts_argument(lm, "logits_to_keep") else {}


def _entered(runs: Sequence[Rerun], t: Float[Tensor, "row pos d_model"], layer: int) -> Tensor:
    """Return, for each row, the input of a block in the unchanged run of the row's prompt; zero at padding."""
    if len(set(runs)) == 1:
        return runs[0]._entering(layer).to(t).expand_as(t).clone()
    out = torch.zeros_like(t)
    for row, run in zip(out, runs, strict=True):
        row[: run.n_pos] = run._entering(layer).to(t)
    return out


@contextmanager
def _replaced(
    rows: Sequence[RowOf],
    captures: Mapping[Place, Callback] | None = None,
    hooks: Mapping[Place, Hook] | None = None,
) -> Iterator[ForwardPass]:
    """A context in which a forward pass of these rows makes their replacements, from the first replaced layer on."""
    runs = [run for run, _ in rows]
    first, n_pos = runs[0], max(run.n_pos for run in runs)
    skips = all(run._skips for run in set(runs))
    start = min((r.layer for _, row in rows for r in row), default=0) if skips else 0
    changes: list[tuple[int, Replacement]] = []
    for i, (run, row) in enumerate(rows):
        if len(row) == 1 and run._is_own_pattern(row[0]):
            continue  # the pattern is not changed; computing z from it again would only add rounding errors
        changes += [(i, one if run.n_pos == n_pos else one.padded(run.n_pos, n_pos)) for one in row]
    starts_later = start or any(run.stream is not None for run in set(runs))
    passes = replaced_pass(
        first.lm,
        changes,
        first.edits,
        {**first._same_kernels(), **(captures or {})},
        hooks,
        skipped=first.block_outputs[:start],
        entering=(lambda t: _entered(runs, t, start)) if starts_later else None,
    )
    with torch.no_grad(), memory_guard(f"{len(rows)} rows of {n_pos} tokens"), passes as current:
        yield current
