"""Capture and change the coefficients of experts' memories (FFN neurons), after a layer's FFN has run.

To change a coefficient, the difference times the memory's value vector is added to the FFN's output. Since that output
is linear in the coefficients, this equals running the down-projections on the changed coefficients. A coefficient can
also be set for an expert that the router did not choose.
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
    """Capture and change the coefficients of a layer of experts in every forward pass, until the stack closes.

    Args:
        stack: removes the hooks when it closes.
        layer: a layer with experts.
        current: the forward pass, which knows the batch's shape and positions.
        edits: edits of coefficients, which are applied first.
        changes: functions that take and return all coefficients of the layer, applied next.
        captures: pairs of a name ("coefficients" or "gate_weights") and a function to call with that tensor, after the
            changes.
        routed: functions to call with the coefficients of the chosen experts; allowed only without edits and changes.
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
    values = lm.weights.values(layer, rows)
    return (difference.flatten(0, -2).to(values) @ values).view(like.shape).to(like)
