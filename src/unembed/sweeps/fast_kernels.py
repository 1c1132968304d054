"""Faster kernels for the forward pass of a sweep.

`chunked_gelu` changes no bit of the result. `fast_forward` does: "float32" changes rounding only; "bfloat16" computes
matrix products in bfloat16, but leaves activations and the residual stream in float32. `fast_difference` measures how
much memory coefficients change.

`chunked_gelu` and `fast_forward` replace the `forward` of some modules and restore it at the end, so hooks still work.

| change | gain, one core of an AMD EPYC |
|---|---|
| `chunked_gelu`: a GELU of eight tensor operations runs on one chunk after another | a sixth of GPT-2's forward pass |
| `fast="float32"`: such a GELU runs in one kernel | a third of GPT-2's sweep |
| `fast="bfloat16"`: matrix products in bfloat16 as well | 60 % of the sweep (`benchmarks/RESULTS.md`) |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import activations
from transformers.pytorch_utils import Conv1D

from unembed.corpus.segments import Batch
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.stream.run import run
from unembed.validation import one_of

Fast = Literal["float32", "bfloat16"]
CHUNK = 1 << 17
"""Number of elements of a chunk for each thread: 0.5 MB in float32, the fastest size with 1 MB of level-2 cache."""


def processor_has_bfloat16() -> bool:
    """Tell whether this processor has instructions for bfloat16; without them bfloat16 is slower than float32."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def check_fast(lm: Decoder, fast: str | None) -> None:
    """Refuse a value of `fast` that does not exist, or would not be faster on this machine.

    Raises:
        InvalidInput: there is no such value.
        Unsupported: `fast` is "bfloat16", and the processor has no instructions for it.
    """
    if fast is not None:
        one_of("fast", fast, get_args(Fast))
    if fast == "bfloat16" and lm.device.type == "cpu" and not processor_has_bfloat16():
        raise Unsupported(
            "fast='bfloat16'", why="this processor does not multiply in bfloat16", instead="Use fast='float32'"
        )


def tanh_gelus() -> tuple[type[nn.Module], ...]:
    """Return the classes of modules that compute GELU as 0.5 x (1 + tanh(...)) by separate tensor operations."""
    # This import takes 0.1 s, so it is done here, where only sweeps need it, and not at the top of the module.
    from transformers.models.bloom.modeling_bloom import BloomGelu

    return activations.NewGELUActivation, activations.FastGELUActivation, BloomGelu


@contextmanager
def chunked_gelu(lm: Decoder) -> Iterator[None]:
    """A context in which GELUs of several tensor operations run on one chunk of the input after another, on the CPU.

    Each of the eight operations would read and write a whole hidden layer in main memory, whereas a chunk stays in the
    processor's cache. The result is the same bit for bit, because tanh gives an element the same bits wherever it lies
    in a tensor (a sigmoid would not). Hooks see one call on the whole tensor.
    """
    with ExitStack() as stack:
        stack.enter_context(lm.lock)
        spelled_out = tanh_gelus()
        for module in lm.hf.modules():
            if type(module) in spelled_out:
                _replace_forward(module, _in_chunks(module.forward), stack)
        yield


@contextmanager
def fast_forward(lm: Decoder, fast: str | None) -> Iterator[None]:
    """A context in which the model's forward pass uses the faster kernels.

    Memory: with "bfloat16", a copy of the float32 weights at half their size.
    """
    check_fast(lm, fast)
    if fast is None:
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(lm.lock)
        stack.enter_context(_tf32(lm))
        for module in lm.hf.get_decoder().modules():
            forward = _fast_forward_of(module, fast)
            if forward is not None:
                _replace_forward(module, forward, stack)
        yield


def fast_difference(lm: Decoder, batch: Batch, fast: str) -> float:
    """Return the largest change of a coefficient in a batch, relative to the largest coefficient of its layer."""

    def coefficients() -> Tensor:
        found = run(lm, batch.tokens, "coefficients", attention_mask=batch.mask, logits=False)
        return found["coefficients"].float()

    exact = coefficients()
    with fast_forward(lm, fast):
        change = (coefficients() - exact).abs()
    real = batch.mask.to(exact.device)[None, :, :, None]
    largest = (exact.abs() * real).flatten(1).amax(dim=1)
    return float(((change * real).flatten(1).amax(dim=1) / largest).max())


def _replace_forward(module: nn.Module, forward: Callable[..., Any], stack: ExitStack) -> None:
    # If another library, such as accelerate, has already replaced the forward, it is left unchanged.
    if "forward" not in vars(module):
        module.forward = forward
        stack.callback(delattr, module, "forward")


def _in_chunks(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        size = CHUNK * torch.get_num_threads()
        if x.device.type != "cpu" or x.numel() <= size or not x.is_contiguous() or x.requires_grad:
            return activation(x)
        out = torch.empty_like(x)
        for source, target in zip(x.view(-1).split(size), out.view(-1).split(size), strict=True):
            target.copy_(activation(source))
        return out

    return forward


def _fast_forward_of(module: nn.Module, fast: str) -> Callable[..., Any] | None:
    if isinstance(module, tanh_gelus()):
        return partial(nn.functional.gelu, approximate="tanh")
    if fast == "float32" or type(module) not in (nn.Linear, Conv1D):
        return None
    linear: Any = module
    weight, bias = linear.weight.detach(), linear.bias
    if weight.dtype != torch.float32 or weight.is_meta:
        return None
    weight = (weight.T if isinstance(module, Conv1D) else weight).bfloat16().contiguous()
    bias = None if bias is None else bias.detach().bfloat16()
    return lambda x: nn.functional.linear(x.bfloat16(), weight, bias).to(x.dtype)


@contextmanager
def _tf32(lm: Decoder) -> Iterator[None]:
    """A context that allows matrix products in TensorFloat-32 on CUDA; it changes nothing on other devices."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = before or lm.device.type == "cuda"
    try:
        yield
    finally:
        matmul.allow_tf32 = before
