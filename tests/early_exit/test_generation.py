"""Generation with early exit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unembed import early_exit
from unembed.early_exit.baselines import Confidence
from unembed.early_exit.rule import ExitRule
from unembed.errors import InvalidInput, Unsupported


def test_generation_skips_blocks_and_a_high_threshold_changes_nothing(wren):
    rule = ExitRule(wren, Confidence("margin"), np.full(wren.n_layers - 1, -1.0), "")
    ran = []
    handles = [
        b.feed_forward.down_proj.register_forward_hook(lambda *_a, n=n: ran.append(n))
        for n, b in enumerate(wren.structure.blocks)
    ]
    found = rule.generate("The old king", max_new_tokens=4, min_new_tokens=4)
    for handle in handles:
        handle.remove()
    # The prompt goes through all blocks; each later token exits after the first.
    assert ran == [*range(wren.n_layers), 0, 0, 0]
    assert found.layers == (0, 0, 0) and found.saved_layers == wren.n_layers - 1
    careful = rule.at(2.0).generate("The old king", max_new_tokens=12, min_new_tokens=12)
    assert careful.text == wren.generate("The old king", max_new_tokens=12, min_new_tokens=12)[0]
    assert careful.saved_layers == 0
    with pytest.raises(InvalidInput, match="beams"):
        rule.generate("The old king", num_beams=2)
    with pytest.raises(Unsupported, match="batch"), early_exit.skip_layers(rule):
        wren.hf.generate(torch.full((2, 3), 50), max_new_tokens=3)
