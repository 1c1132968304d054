"""Read the coefficients of a mixture of experts from the FFN's own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unembed.models.structure.dry_run import first_tensor
from unembed.models.structure.expert_storage import ExpertPass
from unembed.models.structure.experts import Experts, RoutedCoefficients


@contextmanager
def observed(
    experts: Experts, ffn: nn.Module, see: Callable[[RoutedCoefficients, Tensor], Tensor | None]
) -> Iterator[None]:
    """A context in which `see` is called with the experts' coefficients and their output in every forward pass.

    The model's own forward runs. The experts' output is the FFN's output, or the input of a norm inside the FFN.

    Args:
        experts: the experts of the FFN.
        ffn: the module that returns the sum of the experts' outputs.
        see: a function of coefficients and output; if it returns a tensor, that replaces the output.
    """
    current = ExpertPass()

    def finish(_module: nn.Module, _args: Any, output: Any) -> Any:
        written = first_tensor(output)
        assert written is not None
        changed = see(_coefficients(experts, current, written), written)
        if changed is None:
            return None
        return changed if isinstance(output, Tensor) else (changed, *output[1:])

    with ExitStack() as stack:
        experts.storage.install(stack, current)
        if experts.shared is not None:
            down, own_gate = experts.shared.down_proj, experts.shared.gate
            stack.callback(down.register_forward_pre_hook(lambda _m, a: setattr(current, "shared", a[0])).remove)
            if own_gate is not None:
                hook = own_gate.register_forward_hook(lambda _m, _a, out: setattr(current, "shared_gate", out))
                stack.callback(hook.remove)
        if experts.inner_norm is None:
            stack.callback(ffn.register_forward_hook(finish).remove)
        else:
            stack.callback(experts.inner_norm.register_forward_pre_hook(lambda m, args: finish(m, (), args)).remove)
        yield


def _coefficients(experts: Experts, current: ExpertPass, written: Tensor) -> RoutedCoefficients:
    n = written.numel() // written.shape[-1]
    (expert, position, weight), activation = experts.storage.pairs(current, n)
    weight = weight.to(activation.dtype)
    weight = weight if experts.multiplier == 1.0 else weight * experts.multiplier
    shared = None
    if experts.shared is not None:
        assert current.shared is not None
        shared = current.shared.reshape(n, -1)
        if current.shared_gate is not None:
            shared = shared * torch.sigmoid(current.shared_gate.reshape(n, 1))
        shared = shared if experts.shared.multiplier == 1.0 else shared * experts.shared.multiplier
    current.activations.clear()
    return RoutedCoefficients(experts, n, expert, position, weight, activation, shared)
