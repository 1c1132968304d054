"""The lens that ships is one of wren's weights, over the text that ships, and reads better than the logit lens."""

from __future__ import annotations

import torch

import unembed
from unembed.corpus.whole_windows import WholeWindows
from unembed.models.fingerprint import sampled_fingerprint
from unembed.models.shipped_models import SHIPPED, shipped_folder, shipped_lens


def test_the_shipped_lens_is_of_the_shipped_weights_and_text() -> None:
    lm = unembed.load("wren")
    path = shipped_lens(sampled_fingerprint(lm))
    assert path is not None and path.parent == shipped_folder("wren")
    lens = unembed.open_lens(path)
    assert lens.fingerprint == sampled_fingerprint(lm) and lens.contexts == 64
    assert lens.provenance.corpus == WholeWindows.of(lm, None, 64, 0, 64).text
    assert lens.before.dtype == torch.float16


def test_the_check_of_the_shipped_lens_is_better_in_every_layer_than_the_logit_lens() -> None:
    lm = unembed.load("wren")
    check = lm.use_lens().check
    assert check is not None and check.positions == 240
    assert (check.kl[:-1] < 0.9 * check.logit_lens_kl[:-1]).all()
    assert (check.agreement[:-1] >= check.logit_lens_agreement[:-1]).all()


def test_other_shipped_models_and_other_weights_have_none() -> None:
    assert shipped_lens("0" * 16) is None
    with_lens = {path.parent.name for path in shipped_folder("wren").parent.glob("*/lens-*")}
    assert with_lens == {"wren"} and with_lens < set(SHIPPED)
