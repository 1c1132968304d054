"""Record the graph of a forward pass, and compute gradients of a scalar with respect to captured tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.structure.expert_pass import observed
from unembed.models.structure.experts import RoutedCoefficients
from unembed.stream.capture_points import ForwardPass, capture_point
from unembed.stream.experts import dense_coefficients
from unembed.stream.hooks import after_module, change_tensor, of_experts


@dataclass(frozen=True, eq=False)
class Graph:
    """The captured tensors of a forward pass, as nodes of the autograd graph from which the logits are computed."""

    lm: Decoder
    current: ForwardPass
    own: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def gradient(self, point: str, layers: Sequence[int], of: Tensor) -> Tensor:
        """Return the gradient of the scalar `of` with respect to a captured tensor in each layer.

        It is zero where the scalar does not depend on the tensor.
        """
        if of.numel() != 1 or not of.requires_grad:
            raise InvalidInput(
                "the tensor whose gradient is requested",
                why="it is not a scalar computed from this run's logits",
                instead="Give for example run.logits[0, -1, a] - run.logits[0, -1, b]",
            )
        own = [self.own[point, layer] for layer in layers]
        if len({t.shape for t in own}) > 1:
            raise Unsupported(
                f"the gradient at {point} in layers {layers[0]} to {layers[-1]}",
                why="the layers differ in size",
                instead="Run with layers=[...] of one size",
            )
        found = torch.autograd.grad(of.reshape(()), own, retain_graph=True, allow_unused=True)
        return torch.stack(
            [
                _read_gradient(self.lm, point, layer, torch.zeros_like(t) if g is None else g, self.current)
                for layer, t, g in zip(layers, own, found, strict=True)
            ]
        )


def _read_gradient(lm: Decoder, point: str, layer: int, own: Tensor, current: ForwardPass) -> Tensor:
    """Convert the gradient for a module's input or output to the gradient for the captured tensor."""
    if point == "pattern":
        return own
    block = lm.structure.blocks[layer]
    own = current.by_position(own)
    # The captured tensor is the module's output times a constant. So the gradient with respect to it is the gradient
    # with respect to the output, divided by this constant.
    if point in ("attn_out", "mlp_out"):
        site = block.mixer if point == "attn_out" else block.feed_forward
        assert site is not None
        return own / site.multiplier
    if point in ("resid_pre", "resid_post"):
        put_back = capture_point("resid_post").put_back
        assert put_back is not None
        return put_back(own, own, block)  # raises an error if there are several streams
    return capture_point(point).reshape(own, block, current)


@contextmanager
def on_the_graph(
    lm: Decoder, points: Collection[tuple[str, int]], own: dict[tuple[str, int], Tensor], current: ForwardPass
) -> Iterator[None]:
    """A context in which a forward pass records its graph, starting at the first block's input.

    Args:
        lm: the model, with hooks attached.
        points: the capture points and layers whose tensors to store.
        own: a dict to store the modules' inputs or outputs in, by capture point and layer.
        current: the forward pass that `attach_hooks` yields.
    """

    def begin(t: Tensor) -> Tensor:
        return t.detach().requires_grad_()

    def keep(key: tuple[str, int]) -> Callable[[Tensor], Tensor]:
        def saved(t: Tensor) -> Tensor:
            own[key] = t
            return t.clone()  # a copy, because OLMo and Falcon later change such tensors in place

        return saved

    with ExitStack() as stack:
        if lm.structure.blocks:
            change_tensor(stack, lm, 0, "resid_pre", begin)
        for point, layer in points:
            if point in ("scores", "gate_weights"):
                instead = "Use pattern, q or k" if point == "scores" else "Use coefficients"
                raise Unsupported(
                    f"gradients of {point}",
                    why="this tensor can be captured, but its gradient cannot be computed",
                    instead=instead,
                )
            if of_experts(lm, point, layer):
                _keep_coefficients(stack, lm, layer, current, partial(own.__setitem__, (point, layer)))
            elif point == "pattern":
                _refuse_difference(lm, layer)
                after_module(
                    stack, lm.structure.blocks[layer].attention.module, partial(_keep_weights, own, (point, layer))
                )
            else:
                change_tensor(stack, lm, layer, point, keep((point, layer)))
        yield


def _refuse_difference(lm: Decoder, layer: int) -> None:
    if lm.structure.blocks[layer].attention.differential is not None:
        raise Unsupported(
            f"gradients at pattern in layer {layer} of {lm.name}",
            why="a head's pattern is the difference of two softmaxes, which the model does not compute as one tensor",
            instead="Use z",
        )


def _keep_weights(own: dict[tuple[str, int], Tensor], key: tuple[str, int], out: Any) -> None:
    own[key] = next(t for t in out[1:] if isinstance(t, Tensor) and t.dim() == 4)


def _keep_coefficients(
    stack: ExitStack, lm: Decoder, layer: int, current: ForwardPass, keep: Callable[[Tensor], None]
) -> None:
    """Make an expert layer's coefficients leaves of the graph until the stack closes, so that they have gradients."""
    site = lm.feed_forward(layer)
    assert site.experts is not None

    def see(found: RoutedCoefficients, output: Tensor) -> Tensor:
        dense = dense_coefficients(found, layer, current).detach().requires_grad_()
        keep(dense)
        nothing = (dense - dense.detach()).flatten(0, 1)
        return output + (nothing.to(output) @ lm.weights.values(layer).to(output)).view(output.shape)

    stack.enter_context(observed(site.experts, site.module, see))
