"""Values near groups of tokens, and memories that never fire, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unembed.training.networks import Shape, Wren
from unembed.training.readable import FIRST_PIECE, NEAR, NEAREST, REVIVED_RATE, add_distance, distance_of, revive

SHAPE = Shape(n_layers=4, d_model=16, n_heads=2, d_head=8, d_mlp=12, d_vocab=FIRST_PIECE + 60, context=32)


@pytest.fixture
def network():
    torch.manual_seed(0)
    network = Wren(SHAPE)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return network


def exact_distance(values, embeddings):
    values, embeddings = values.detach().double().numpy(), embeddings.detach().double().numpy()
    tokens = embeddings - embeddings.mean(0)
    total = 0.0
    for value in values:
        cosines = sorted(tokens @ value / np.linalg.norm(tokens, axis=1) / np.linalg.norm(value))
        total += max(0.0, NEAR - np.mean(cosines[-NEAREST:]))
    return total / len(values)


def test_the_distance_is_what_the_nearest_tokens_mean_cosine_lacks(network):
    embeddings = torch.randn(2000, 300)
    embeddings[:20] += 2 * torch.randn(300)  # a group of tokens
    values = torch.cat([torch.randn(5, 300), embeddings[:20].mean(0, keepdim=True)])
    distance = distance_of(values, embeddings)
    assert distance.item() == pytest.approx(exact_distance(values, embeddings), abs=2e-3)  # products in bfloat16
    assert distance.item() > 0.05
    assert distance_of(values[5:], embeddings).item() == 0


def test_a_shift_of_all_embeddings_changes_nothing():
    values, embeddings = torch.randn(5, 300), torch.randn(2000, 300)
    assert distance_of(values, embeddings + 3).item() == pytest.approx(distance_of(values, embeddings).item(), abs=2e-3)


def test_all_values_of_the_upper_half_and_no_other_weights_are_pulled_in_turn(network):
    pulled = {}
    for step in range(8):
        network.zero_grad()
        add_distance(network, 1.0, step)
        for name, parameter in network.named_parameters():
            if parameter.grad is not None and parameter.grad.any():
                pulled[name] = pulled.get(name, 0) + (parameter.grad != 0).any(0).int()
    wide = {name: times.tolist() for name, times in pulled.items()}
    assert set(wide) <= {"blocks.2.w_out.weight", "blocks.3.w_out.weight"}
    assert all(set(times) <= {0, 1} for times in wide.values())


def test_the_pull_brings_values_near_tokens():
    torch.manual_seed(0)
    network = Wren(Shape(n_layers=2, d_model=64, n_heads=2, d_head=8, d_mlp=8, d_vocab=FIRST_PIECE + 500, context=32))
    torch.nn.init.normal_(network.blocks[1].w_out.weight)
    pieces = network.unembedding[FIRST_PIECE:]
    first = distance_of(network.blocks[1].w_out.weight.mT, pieces).item()
    optimiser = torch.optim.AdamW([network.blocks[1].w_out.weight], lr=0.02)
    for step in range(200):
        optimiser.zero_grad()
        add_distance(network, 1.0, step)
        optimiser.step()
    assert distance_of(network.blocks[1].w_out.weight.mT, pieces).item() < 0.1 * first


@torch.no_grad()
def test_a_dead_memory_fires_at_one_position_in_a_hundred_and_writes_little_yet(network):
    rows = torch.randint(0, SHAPE.d_vocab, (40, 32))
    for block, dead in zip(network.blocks, (0, 3, 0, 1), strict=True):
        block.w_in.bias.fill_(3.0)
        block.w_in.bias[:dead] = -1000.0
    before = network.final_stream(rows)
    alive = network.blocks[1].w_in.weight[3:].clone()
    values = network.blocks[1].w_out.weight[:, :3].clone()
    revived = revive(network, rows)
    assert revived == [0, 3, 0, 1]
    torch.testing.assert_close(network.final_stream(rows), before, rtol=0, atol=1e-2)
    assert torch.equal(network.blocks[1].w_out.weight[:, :3], values * 1e-3)
    assert torch.equal(network.blocks[1].w_in.weight[3:], alive)
    reads = []
    network.blocks[1].ln_2.register_forward_hook(lambda *given: reads.append(given[2]))
    network.final_stream(rows)
    rates = (network.blocks[1].w_in(reads[0]) > 0).flatten(0, 1).float().mean(0)[:3]
    assert rates.tolist() == pytest.approx([REVIVED_RATE] * 3, abs=0.002)
    assert revive(network, rows) == [0, 0, 0, 0]
