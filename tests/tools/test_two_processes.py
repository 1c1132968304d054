"""Two processes that share the weights give the gradients of one, bit for bit."""

from __future__ import annotations

import pytest
import torch
from tools.training.gradients import OneProcess
from tools.training.networks import Shape, build
from tools.two_processes import TwoProcesses


@pytest.mark.parametrize("d_mlp", [32, 0], ids=["wren", "attention only"])
def test_two_processes_give_the_bits_of_one(d_mlp):
    torch.manual_seed(0)
    network = build(Shape(2, 16, 2, 8, d_mlp, 50, 32))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batches = [torch.randint(0, 50, (5, 33)) for _ in range(2)]
    sparsity = 0.1 if d_mlp else 0.0

    def gradients_of(engine):
        results = []
        for rows in batches:
            objective = engine.add(rows, sparsity=sparsity)
            results.append((objective, [parameter.grad.clone() for parameter in network.parameters()]))
            network.zero_grad(set_to_none=True)
        engine.close()
        return results

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one, two = (gradients_of(kind(network, compiled=False)) for kind in (OneProcess, TwoProcesses))
    finally:
        torch.set_num_threads(threads)
    assert any(grad.abs().max() > 0 for grad in one[0][1])
    for (objective_a, grads_a), (objective_b, grads_b) in zip(one, two, strict=True):
        assert objective_a == objective_b
        assert all(torch.equal(a, b) for a, b in zip(grads_a, grads_b, strict=True))
