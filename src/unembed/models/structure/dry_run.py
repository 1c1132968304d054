"""Run a model once over a few random tokens, and record every module's input and output.

The recorded tensors then show what each module does: for example, the norm whose output the MLP reads is the norm
before the MLP, whatever its name is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unembed.models.offload import device_of

N_TOKENS = 6
INPUT_NAMES = ("hidden_states", "x", "input", "inputs", "hidden_state")


@dataclass
class Call:
    """The inputs and the output of a module in its last call."""

    given: Tensor | None = None
    returned: Tensor | None = None
    others: tuple[Tensor, ...] = ()
    """All tensors that it returned after the first, in order."""
    weights: Tensor | None = None
    """The attention weights among the outputs, if any: (batch, head, dst, src)."""
    rotary: tuple[Tensor, Tensor] | None = None
    """The cosines and sines passed to the module, if any."""
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    """All arguments of the call, so that it can be repeated."""


@dataclass
class Recording:
    """All modules' inputs and outputs in one forward pass, by module path."""

    tokens: Tensor
    calls: dict[str, Call] = field(default_factory=dict)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))

    def given(self, path: str) -> Tensor | None:
        """Return the first tensor that the module at `path` received, as (1, pos, width)."""
        call = self.calls.get(path)
        return None if call is None else _with_positions(call.given)

    def returned(self, path: str) -> Tensor | None:
        """Return the first tensor that the module at `path` returned, as (1, pos, width)."""
        call = self.calls.get(path)
        return None if call is None else _with_positions(call.returned)


class PassFailed(Exception):
    """Raised when the model's own forward pass failed; `__cause__` is the exception that the model raised."""

    def __init__(self, within: str) -> None:
        """Store the path of the innermost module that was running when the pass failed; "" for the model itself."""
        super().__init__(within)
        self.within = within


def first_tensor(value: Any) -> Tensor | None:
    """Return `value` if it is a tensor, or the first tensor in a tuple or list; None if there is none."""
    return next(iter(tensors_in(value)), None)


def tensors_in(value: Any) -> list[Tensor]:
    """Return all tensors in a tuple or list, or `value` alone if it is a tensor."""
    if isinstance(value, Tensor):
        return [value]
    return [v for v in value if isinstance(v, Tensor)] if isinstance(value, (tuple, list)) else []


def given_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the main input of a module: its first tensor argument, positional or by one of the usual names."""
    found = first_tensor(args)
    if found is not None:
        return found
    return next((kwargs[n] for n in INPUT_NAMES if isinstance(kwargs.get(n), Tensor)), None)


def _with_positions(t: Tensor | None) -> Tensor | None:
    # The batch axis may be missing: OPT merges batch and positions into one axis inside its blocks, and the output of a
    # table of positions has no batch axis.
    return t[None] if t is not None and t.dim() == 2 and t.shape[0] == N_TOKENS else t


@contextmanager
def eager(hf: PreTrainedModel) -> Iterator[None]:
    """A context in which the model uses eager attention, which returns its weights.

    The old setting is restored afterwards. The setting is written directly into the configs, because Falcon silently
    turns `set_attn_implementation("eager")` back into sdpa, and then returns weights made with the wrong kind of mask.
    """
    configs = {id(c): c for c in (hf.config, hf.config.get_text_config())}.values()
    before = [c._attn_implementation_internal for c in configs]
    for config in configs:
        config._attn_implementation_internal = "eager"
    try:
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation


def vocabulary_size(hf: PreTrainedModel) -> int:
    """Return the number of tokens: the rows of the embedding or, if there are fewer, of the unembedding.

    Mllama's embedding has extra rows for images. Where the embedding is not a single matrix, the config's `vocab_size`
    is returned.
    """
    weight = getattr(hf.get_input_embeddings(), "weight", None)
    if not isinstance(weight, Tensor):
        return hf.config.get_text_config().vocab_size
    return min(weight.shape[0], getattr(hf.get_output_embeddings(), "out_features", weight.shape[0]))


def record(hf: PreTrainedModel, d_vocab: int) -> Recording:
    """Run the model once on six random tokens, and record every module's input and output.

    Raises:
        PassFailed: the model's own forward failed.

    Memory: for 6 tokens, about 6 * (d_model + d_mlp) numbers for each module.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, d_vocab, (1, N_TOKENS), generator=generator).to(device_of(hf.get_input_embeddings()))
    tokens[0, -1] = tokens[0, 0]  # the same token at two positions: only added positions make their embeddings differ
    recording = Recording(tokens)
    handles = []
    running = [""]

    def noted(t: Tensor) -> Tensor:
        # Tensors are copied, because Falcon, CTRL and OLMo change them in place later in the pass. The copies are on
        # one device, although a device_map may spread the layers over several.
        return t.detach().to(tokens.device, copy=True)

    def note_input(path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        running.append(path)
        given = given_tensor(args, kwargs)
        call = Call(given=None if given is None else noted(given), arguments=(args, kwargs))
        pair = kwargs.get("position_embeddings", args[1] if len(args) > 1 else None)  # a positional argument in Qwen 4
        if isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(t, Tensor) for t in pair):
            call.rotary = (noted(pair[0]), noted(pair[1]))
        elif isinstance(pair, Tensor) and pair.is_complex():  # DeepSeek-V2: pairs of channels are complex numbers
            call.rotary = (noted(pair.real), noted(pair.imag))
        recording.calls[path] = call

    def note_output(path: str, output: Any) -> None:
        running.remove(path)
        call = recording.calls[path]
        tensors = [noted(t) for t in tensors_in(output)]
        call.returned, call.others = (tensors[0], tuple(tensors[1:])) if tensors else (None, ())
        if isinstance(output, (tuple, list)):
            call.weights = next(
                (
                    noted(t)
                    for t in output[1:]
                    if isinstance(t, Tensor) and t.dim() == 4 and t.shape[-2:] == (N_TOKENS, N_TOKENS)
                ),
                None,
            )

    try:
        for path, module in hf.named_modules():
            if path and not isinstance(module, nn.ModuleList):
                handles.append(
                    module.register_forward_pre_hook(
                        lambda _m, a, k, path=path: note_input(path, a, k), with_kwargs=True
                    )
                )
                handles.append(module.register_forward_hook(lambda _m, _a, o, path=path: note_output(path, o)))
        with torch.no_grad(), eager(hf), torch.compiler.set_stance("force_eager"):
            out = hf(tokens, attention_mask=torch.ones_like(tokens), use_cache=False, output_attentions=True)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        raise PassFailed(running[-1]) from error
    finally:
        for handle in handles:
            handle.remove()
    recording.logits = noted(out.logits)
    return recording
