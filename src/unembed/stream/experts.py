"""Capture and change the coefficients of memories in experts, after a layer's FFN has run.

A changed coefficient is applied by adding (difference times value) to what the FFN wrote. The FFN's output is linear in
its coefficients, so this equals running the down-projections on the changed coefficients. A coefficient can also be set
where the router did not choose the expert; its value is added all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.models.decoder import Decoder
from unembed.models.structure.expert_pass import observed
from unembed.models.structure.experts import RoutedCoefficients
from unembed.stream.interventions import Edit, edited
from unembed.validation import as_int

if TYPE_CHECKING:
    from unembed.stream.capture_points import ForwardPass

Change = Callable[[Float[Tensor, "batch pos memory"]], Float[Tensor, "batch pos memory"]]


def install_experts(
    stack: ExitStack,
    lm: Decoder,
    layer: int,
    current: ForwardPass,
    *,
    edits: Sequence[Edit] = (),
    changes: Sequence[Change] = (),
    captures: Sequence[tuple[str, Callable[[Tensor], None]]] = (),
    routed: Sequence[Callable[[RoutedCoefficients], None]] = (),
) -> None:
    """Read and change the coefficients of a layer of experts in every pass until the stack closes.

    Args:
        stack: on which the hooks are removed.
        layer: with experts.
        current: the pass, which holds the positions.
        edits: the edits of coefficients, made first.
        changes: functions of all coefficients of the layer, made next.
        captures: what to call with "coefficients" or "gate_weights" after the changes, by name.
        routed: what to call with the model's own coefficients without zeros; only without edits and changes.
    """
    site = lm.feed_forward(layer)
    experts = site.experts
    assert experts is not None
    numbers = [as_int("memory", edit.index) for edit in edits]
    columns = sorted(set(numbers))
    local = [replace(edit, index=columns.index(number)) for edit, number in zip(edits, numbers, strict=True)]

    def see(found: RoutedCoefficients, output: Tensor) -> Tensor | None:
        for callback in routed:
            callback(found)
        if not (edits or changes or captures):
            return None
        shape = current.shape
        written = output
        if edits:
            own = found.columns(columns).view(*shape, -1)
            changed = edited(own, local, current.rows)
            written = written + _added(lm, layer, torch.tensor(columns), changed - own, output)
            current.edited[layer] = columns, changed
        needs_all = bool(changes) or any(point == "coefficients" for point, _ in captures)
        dense = dense_coefficients(found, layer, current) if needs_all else None
        for change in changes:
            assert dense is not None
            before, dense = dense, change(dense)
            difference = (dense - before).flatten(0, 1)
            rows = difference.any(dim=0).nonzero()[:, 0]
            if len(rows):
                written = written + _added(lm, layer, rows, difference[:, rows], output)
        for point, callback in captures:
            if point == "gate_weights":
                callback(found.gate_weights().view(*shape, -1))
            elif dense is not None:
                callback(dense)
        return None if written is output else written

    stack.enter_context(observed(experts, site.module, see))


def dense_coefficients(
    found: RoutedCoefficients, layer: int, current: ForwardPass
) -> Float[Tensor, "batch pos memory"]:
    """Return all coefficients of a layer of experts after the edits of this pass."""
    dense = found.dense().view(*current.shape, -1)
    if layer in current.edited:
        columns, changed = current.edited[layer]
        dense[..., columns] = changed
    return dense


def _added(lm: Decoder, layer: int, rows: Tensor, difference: Tensor, like: Tensor) -> Tensor:
    """Return the change in the FFN's output that a change of coefficients causes."""
    values = lm.weights.values(layer, rows)
    return (difference.flatten(0, -2).to(values) @ values).view(like.shape).to(like)
