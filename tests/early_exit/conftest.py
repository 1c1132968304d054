"""A trained and a random model, and examples of the latter."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import unembed
from unembed.early_exit.example_prefixes import concatenate, examples_of_prefixes


@pytest.fixture(scope="module")
def wren():
    return unembed.load("wren")


@pytest.fixture(scope="module")
def deep():
    """A random GPT-2 of five layers."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=97, n_embd=32, n_layer=5, n_head=2, n_positions=64)
    config = GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, initializer_range=0.2)  # pyright: ignore[reportArgumentType]
    return unembed.load(GPT2LMHeadModel(config).eval())


@pytest.fixture(scope="module")
def found(deep):
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(3, 97, (int(n),), generator=generator) for n in torch.randint(2, 9, (240,), generator=generator)
    ]
    return concatenate([examples_of_prefixes(deep, rows[i : i + 40]) for i in range(0, 240, 40)])


@pytest.fixture(scope="module")
def fitted():
    """`wren` with a lens of its own."""
    lm = unembed.load("wren")
    lm.use_lens(lm.fit_lens(contexts=4, length=24))
    return lm
