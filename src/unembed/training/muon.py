"""Muon: momentum made orthogonal, for the hidden matrices; Adam stays for embeddings, norms and biases.

Every direction of an orthogonal update moves alike, so directions that few tokens need are learned as fast as common
ones; with few tokens to train on that is worth about half of them. Source: Jordan et al. 2024, "Muon: an optimizer for
hidden layers in neural networks".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Coefficients a, b, c of x -> a x + b x^3 + c x^5, one row an iteration: each row is the best polynomial for the
# interval that the rows before leave. Four of them do what five of the fixed polynomial of Jordan et al. do.
# Source: Amsel et al. 2025, "The Polar Express: Optimal Matrix Sign Methods and Their Application to Muon"
_POLYNOMIALS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
)


def orthogonalised(matrices: Tensor) -> Tensor:
    """For each matrix of a stack the nearest one whose singular values are all near one.

    A quintic Newton-Schulz iteration in bfloat16: matrix products only, no SVD. Singular values above a hundredth of
    the Frobenius norm come out between about 0.6 and 1.3.
    """
    x = matrices.bfloat16()
    is_tall = x.size(-2) > x.size(-1)
    if is_tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7)
    for a, b, c in _POLYNOMIALS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if is_tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised per matrix, with decoupled weight decay.

    Args:
        parameters: matrices only, each `(d_out, d_in)`.
        lr: length of a step; the spectral norm of an update is `lr * sqrt(max(1, d_out / d_in))`.
        momentum: share of the old direction kept.
        weight_decay: share of the weight taken away per unit of `lr`.
    """

    def __init__(
        self, parameters: list[nn.Parameter], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every matrix; those of one shape are orthogonalised together."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                direction = parameter.grad.lerp(state["momentum"], group["momentum"])
                by_shape.setdefault(parameter.shape, []).append((parameter, direction))
            for shape, pairs in by_shape.items():
                updates = orthogonalised(torch.stack([direction for _, direction in pairs]))
                length = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for (parameter, _), update in zip(pairs, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-length)
