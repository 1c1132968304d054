"""Values near groups of tokens, and memories that never fire, against their definitions."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tools.training.networks import Shape, Wren
from tools.training.readable import (
    FIRST_PIECE,
    NEAR,
    NEAREST,
    REVIVED_RATE,
    add_agreement,
    add_distance,
    add_lens,
    distance_of,
    only_changing,
    revive,
)

from tools.training import readable

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


def exact_agreement(network, rows, index, changing):
    """Nats and gradient in float64, from the coefficients of a whole pass."""
    reads = []
    handle = network.blocks[index].ln_2.register_forward_hook(lambda *given: reads.append(given[2]))
    with torch.no_grad():
        network.final_stream(rows[:, :-1])
        coefficients = network.blocks[index].w_in(reads[0]).flatten(0, 1)
    handle.remove()
    values = network.blocks[index].w_out.weight.detach().double().mT.requires_grad_()
    tokens = network.unembedding.detach().double()
    nats = []
    for memory, at in enumerate(coefficients.argmax(0).tolist()):
        if coefficients[at, memory] > 0 and changing[memory]:
            value = values[memory]
            logits = tokens @ value / value.norm() * network.ln_f.weight.detach().double().norm()
            nats.append(logits.logsumexp(0) - logits[rows[:, 1:].flatten()[at]])
    mean = torch.stack(nats).mean()
    mean.backward()
    return mean.item(), values.grad.mT


@pytest.mark.parametrize("step", [0, 1])
def test_the_price_of_a_value_is_its_nats_for_the_token_after_the_top_trigger(network, step, monkeypatch):
    monkeypatch.setattr(readable, "PRODUCTS", torch.float32)
    with torch.no_grad():
        network.blocks[2 + step].w_in.bias[0] = -1000.0  # a dead memory
    rows = torch.randint(0, SHAPE.d_vocab, (8, 33))
    changing = [torch.arange(SHAPE.d_mlp) < 7, torch.arange(SHAPE.d_mlp) % 2 == 0]
    nats, gradient = exact_agreement(network, rows, 2 + step, changing[step])
    assert add_agreement(network, 0.5, rows, step, changing) == pytest.approx(nats, rel=1e-5)
    moved = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    assert list(moved) == [f"blocks.{2 + step}.w_out.weight"]
    torch.testing.assert_close(*moved.values(), (0.5 * 2 * gradient).float(), rtol=1e-4, atol=1e-6)


def test_without_a_value_that_changes_there_is_no_price(network):
    none = [torch.zeros(SHAPE.d_mlp, dtype=torch.bool)] * 2
    assert add_agreement(network, 0.5, torch.randint(0, SHAPE.d_vocab, (8, 33)), 0, none) == 0
    assert all(parameter.grad is None for parameter in network.parameters())


@torch.no_grad()
def test_only_the_values_that_are_marked_change():
    values, changing = [torch.randn(4, 6), torch.randn(4, 6)], [torch.arange(6) < 2, torch.arange(6) > 3]
    before = [weight.clone() for weight in values]
    with only_changing(values, changing):
        for weight in values:
            weight += 1
    for weight, earlier, change in zip(values, before, changing, strict=True):
        assert torch.equal(weight, earlier + change.float())


@pytest.mark.parametrize("step", [0, 1])
def test_the_price_of_a_lens_is_its_nats_for_the_next_token(step, monkeypatch):
    monkeypatch.setattr(readable, "PRODUCTS", torch.float32)
    monkeypatch.setattr(readable, "LENS_ROWS", 6)
    torch.manual_seed(0)
    network = Wren(replace(SHAPE, n_layers=6))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    rows = torch.randint(0, SHAPE.d_vocab, (8, 33))
    exact = copy.deepcopy(network).double()
    streams = []
    exact.blocks[3 + step].register_forward_hook(lambda *given: streams.append(given[2]))
    exact.final_stream(rows[:6, :-1])
    logits = exact.ln_f(streams[0]) @ exact.unembedding.detach().mT
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:6, 1:].flatten())
    (0.5 * 2 * nats).backward()
    assert add_lens(network, 0.5, rows, step) == pytest.approx(nats.item(), rel=1e-5)
    for (name, mine), other in zip(network.named_parameters(), exact.parameters(), strict=True):
        constant = name.startswith(("ln_f", *(f"blocks.{above}." for above in range(4 + step, 6))))
        assert (mine.grad is None) == constant, name
        if not constant:
            torch.testing.assert_close(mine.grad, other.grad.float(), rtol=1e-3, atol=1e-6)


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
