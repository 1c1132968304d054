"""A faster forward pass for sweeps, not bit for bit the model's own: other kernels for the same formulas.

"float32" changes rounding only: GELU's tanh form in one kernel instead of eight, and matrix products by oneDNN, which
where the processor is not Intel's is the faster of torch's two libraries, weights laid out as it likes them best; on
CUDA products in TF32. "bfloat16" multiplies in bfloat16, activations and the stream stay as they are.
`fast_difference` measures what either does to the coefficients. Modules are not replaced, so hooks stay; when the block
is left the model is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from unembed.corpus.segments import Batch
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.stream.run import run
from unembed.sweeps.chunked_gelu import TANH_GELUS

Fast = Literal["float32", "bfloat16"]
MODES = ("float32", "bfloat16")


def checked(lm: Decoder, fast: str | None) -> None:
    """Refuse what cannot be done, or would not be faster.

    Raises:
        InvalidInput: no such mode.
        Unsupported: bfloat16 on a processor without instructions for it.
    """
    if fast is not None and fast not in MODES:
        raise InvalidInput(f"fast={fast!r}", why=f"it is none of {', '.join(MODES)}")
    able = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if fast == "bfloat16" and lm.device.type == "cpu" and not able:
        raise Unsupported(
            "fast='bfloat16'", why="this processor does not multiply in bfloat16", instead="Use fast='float32'"
        )


@contextmanager
def quickened(lm: Decoder, fast: str | None) -> Iterator[None]:
    """While inside, the model's forward pass is the faster one.

    Memory: with "bfloat16" half the float32 weights once more; with "float32" those of `Conv1D` (GPT-2) once more,
    which lie the wrong way round for oneDNN.
    """
    checked(lm, fast)
    if fast is None:
        yield
        return
    body = lm.hf.get_decoder() if hasattr(lm.hf, "get_decoder") else lm.hf
    with ExitStack() as stack:
        stack.enter_context(lm.lock)
        stack.enter_context(_tf32(lm))
        for module in body.modules():
            forward = _forward(module, fast)
            if forward is not None and "forward" not in vars(module):  # another's, such as accelerate's, stays
                module.forward = forward
                stack.callback(delattr, module, "forward")
        yield


def fast_difference(lm: Decoder, batch: Batch, fast: str) -> float:
    """The largest change of a coefficient on a batch, over the largest coefficient of its layer."""
    tokens, mask = batch.tokens.to(lm.device), batch.mask.long().to(lm.device)

    def coefficients() -> Tensor:
        return run(lm, tokens, "coefficients", attention_mask=mask, logits=False)["coefficients"].float()

    exact = coefficients()
    with quickened(lm, fast):
        changed = (coefficients() - exact).abs()
    real = batch.mask.to(exact.device)[None, :, :, None]
    largest = (exact.abs() * real).flatten(1).amax(dim=1)
    return float(((changed * real).flatten(1).amax(dim=1) / largest).max())


def _forward(module: nn.Module, fast: str) -> Callable[..., Any] | None:
    if isinstance(module, TANH_GELUS):
        return partial(nn.functional.gelu, approximate="tanh")
    if type(module) not in (nn.Linear, Conv1D):
        return None
    linear: Any = module
    weight, bias = linear.weight.detach(), linear.bias
    if weight.dtype != torch.float32 or weight.is_meta:
        return None
    turned = isinstance(module, Conv1D)
    weight, bias = weight.T if turned else weight, None if bias is None else bias.detach()
    half = fast == "bfloat16"
    if half:
        weight, bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        multiply = partial(nn.functional.linear, weight=weight, bias=bias)
    else:
        # The product as torch's own compiler calls it; torch has no public names for it.
        laid = torch.ops.mkldnn._reorder_linear_weight(weight) if half or turned else weight
        multiply = partial(_onednn, weight=laid, bias=bias)
    return (lambda x: multiply(x.bfloat16()).to(x.dtype)) if half else multiply


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@contextmanager
def _tf32(lm: Decoder) -> Iterator[None]:
    """TensorFloat-32 on CUDA; elsewhere nothing."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = before or lm.device.type == "cuda"
    try:
        yield
    finally:
        matmul.allow_tf32 = before
