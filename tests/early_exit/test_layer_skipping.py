"""Skipped layers, against full passes with copied states."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import unembed
from tests.conftest import tiny
from tests.families import FAMILIES
from unembed import early_exit
from unembed.early_exit.baselines import Confidence
from unembed.early_exit.example_prefixes import confidence
from unembed.early_exit.rule import ExitRule
from unembed.errors import Unsupported


def copied(lm, ids: torch.Tensor, exits: list[int]):
    """A full pass in which each position's stream stays as it is after the block at which it exits."""
    handles = []
    for layer, block in enumerate(lm.structure.blocks):
        stay = torch.tensor([n < layer for n in exits])

        def hook(_m, args, kwargs, out, stay=stay):
            given = args[0] if args else kwargs["hidden_states"]
            new = torch.where(stay[None, :, None], given, out[0] if isinstance(out, tuple) else out)
            return (new, *out[1:]) if isinstance(out, tuple) else new

        handles.append(block.module.register_forward_hook(hook, with_kwargs=True))
    try:
        with torch.no_grad():
            return lm.hf(ids, use_cache=True)
    finally:
        for handle in handles:
            handle.remove()


def assert_same_cache(ours, theirs) -> None:
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        assert mine.get_seq_length() == other.get_seq_length()
        assert torch.allclose(mine.keys, other.keys, atol=1e-4)
        assert torch.allclose(mine.values, other.values, atol=1e-4)


class Planned:
    """Exits after given layers, one for each token."""

    name, points = "planned", ()

    def __init__(self, layers):
        self.layers, self.token = list(layers), 0

    def is_above(self, threshold, lm, layer, seen):
        if layer < self.layers[self.token]:
            return False
        self.token += 1
        return True

    def scores(self, found):
        raise NotImplementedError

    state = scores


def counts_rows(module, into: list[int]) -> None:
    """Record how many positions each product of a module is for."""
    c_attn = type(module).forward

    def forward(x):
        into.append(x.shape[1])
        return c_attn(module, x)

    module.forward = forward


def test_keys_and_values_are_pending_until_a_token_needs_them(deep):
    deep = unembed.load(copy.deepcopy(deep.hf))  # whose blocks have never been skipped
    plan = [0, 0, 0, 3, 1, 0, 3, 0]
    read = {n: [] for n in range(5)}
    counted = [block.module.attn.c_attn for block in deep.structure.blocks]
    for n, module in enumerate(counted):
        counts_rows(module, read[n])
    rule = ExitRule(deep, Planned(plan), np.zeros(4), "")
    with early_exit.skip_layers(rule) as exits:
        out = deep.hf.generate(
            torch.tensor([[5, 17, 60]]),
            max_new_tokens=9,
            min_new_tokens=9,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
        )
        taken = list(exits)
        assert out.past_key_values.get_seq_length(4) == 4  # the prompt, and the first one to be skipped
    for module in counted:
        del module.forward
    assert taken == plan
    # Layer 0 is always computed. Layer 2: the prompt, the first skipped position at once, two pending ones with
    # the fourth token, two with the seventh, and the last at the end. Layer 4 is never computed.
    assert read[0] == [3] + [1] * 8
    assert read[2] == [3, 1, 3, 3, 1]
    assert read[4] == [3, 1, 7]
    expected = copied(deep, out.sequences[:, :-1], [4] * 3 + taken)
    assert_same_cache(out.past_key_values, expected.past_key_values)
    assert out.sequences[0, 3:].tolist() == expected.logits[0, 2:].argmax(-1).tolist()

    # A block that is known to store to the cache is not checked again.
    rows: list[int] = []
    counts_rows(counted[4], rows)
    with early_exit.skip_layers(ExitRule(deep, Planned(plan[:2]), np.zeros(4), "")):
        out = deep.hf.generate(
            torch.tensor([[5, 17, 60]]), max_new_tokens=3, pad_token_id=0, return_dict_in_generate=True
        )
    assert rows == [3, 2]


def test_a_second_generation_does_not_touch_the_first_ones_cache(deep):
    rule = ExitRule(deep, Planned([0, 0] * 2), np.zeros(4), "")
    options = dict(max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0, return_dict_in_generate=True)
    with early_exit.skip_layers(rule) as exits:
        generated = [deep.hf.generate(torch.tensor([ids]), **options) for ids in ([5, 17, 60], [7, 7])]
        assert exits == [0] * 4
    for found in generated:
        n = found.sequences.shape[1] - 3
        expected = copied(deep, found.sequences[:, :-1], [4] * n + [0, 0])
        assert_same_cache(found.past_key_values, expected.past_key_values)


def test_a_cache_cut_between_tokens_is_refused(deep):
    rule = ExitRule(deep, Planned([0] * 4), np.zeros(4), "")
    with pytest.raises(Unsupported, match="cropped"), torch.no_grad(), early_exit.skip_layers(rule):
        cache = deep.hf(torch.tensor([[5, 17, 60]]), use_cache=True).past_key_values
        for _ in range(2):
            deep.hf(torch.tensor([[9]]), past_key_values=cache, use_cache=True)
        cache.layers[0].crop(-1)
        deep.hf(torch.tensor([[9]]), past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_skipping_equals_a_full_pass_with_copied_states(name):
    lm = tiny(name)
    ids = torch.tensor([[5, 17, 60, 33]])
    rule = ExitRule(lm, Confidence("entropy"), np.zeros(1), "")
    with torch.no_grad():
        plain = lm.hf.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0)
    entropies = -confidence(lm.run(plain, ()).logits)[2]
    rule = rule.at(float(entropies.median()))
    taken = []
    with early_exit.skip_layers(rule) as exits:
        out = lm.hf.generate(
            ids,
            max_new_tokens=12,
            min_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            use_cache=True,  # which MPT leaves out unless told
            return_dict_in_generate=True,
        )
        taken = list(exits)
    assert len(taken) == 11
    last = lm.n_layers - 1
    expected = copied(lm, out.sequences[:, :-1], [last] * 4 + taken)
    assert torch.allclose(torch.cat(out.logits), expected.logits[0, 3:], atol=2e-4), name
    assert_same_cache(out.past_key_values, expected.past_key_values)
    assert "forward" not in lm.structure.blocks[0].module.__dict__


def test_a_model_without_a_cache_is_refused():
    lm = tiny("mpt")
    rule = ExitRule(lm, Confidence("entropy"), np.full(1, -10.0), "")
    with pytest.raises(Unsupported, match="cache"), early_exit.skip_layers(rule):
        lm.hf.generate(torch.tensor([[5, 17]]), max_new_tokens=3, min_new_tokens=3, pad_token_id=0)


@pytest.mark.parametrize("basis", ["final", "jacobian"])
def test_at_an_exit_the_token_is_predicted_by_the_basis(fitted, basis):
    ids = fitted.encode("The war lasted from 1861 to")
    streams = fitted.run(ids, "resid_post")["resid_post"][:, 0, -1]
    for layer in (1, 4, fitted.n_layers - 1):
        thresholds = np.full(fitted.n_layers - 1, np.inf)
        thresholds[layer:] = 0
        rule = ExitRule(fitted, Planned([layer]), thresholds, "planned", basis=basis)
        cache = fitted.hf(ids[:, :-1], use_cache=True).past_key_values
        with torch.no_grad(), early_exit.skip_layers(rule):
            logits = fitted.hf(ids[:, -1:], past_key_values=cache, use_cache=True).logits[0, -1]
        by_logit_lens = fitted.hf.lm_head(fitted.structure.final_norm.module(streams[layer]))
        expected = fitted.lens.read(streams[layer], layer) if basis == "jacobian" else by_logit_lens
        torch.testing.assert_close(logits, expected.detach(), rtol=1e-3, atol=1e-3)
        if layer < fitted.n_layers - 1 and basis == "jacobian":
            assert (logits - by_logit_lens).abs().max() > 0.1
