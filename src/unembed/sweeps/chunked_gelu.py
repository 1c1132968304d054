"""Activation functions called piece by piece, so that what they compute on the way stays in the processor's cache.

transformers spells GELU out in eight steps, and on a batch as wide as a hidden layer every step reads and writes main
memory: a sixth of GPT-2's pass. Here the model's own module is called on one stretch after another instead. Its steps
give an element the same bits wherever it stands (a sigmoid's would not), and hooks see one call on the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from transformers import activations
from transformers.models.bloom.modeling_bloom import BloomGelu

from unembed.models.decoder import Decoder

TANH_GELUS = (activations.NewGELUActivation, activations.FastGELUActivation, BloomGelu)
"""Modules that spell out 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
PIECE = 1 << 17
"""Elements of a piece for each thread: 0.5 MB in float32, measured best with 1 MB of second-level cache."""


@contextmanager
def in_pieces(lm: Decoder) -> Iterator[None]:
    """While inside, GELUs spelled out are called piece by piece; on the CPU only."""
    with ExitStack() as stack:
        stack.enter_context(lm.lock)
        for module in lm.hf.modules():
            if type(module) in TANH_GELUS and "forward" not in vars(module):  # another's, such as accelerate's, stays
                module.forward = _by_pieces(module.forward)
                stack.callback(delattr, module, "forward")
        yield


def _by_pieces(whole: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        size = PIECE * torch.get_num_threads()
        if x.device.type != "cpu" or x.numel() <= size or not x.is_contiguous():
            return whole(x)
        out = torch.empty_like(x)
        for given, place in zip(x.view(-1).split(size), out.view(-1).split(size), strict=True):
            place.copy_(whole(given))
        return out

    return forward
