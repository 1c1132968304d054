"""A model sent to another process: its class, its configuration and its weights, or the name it was opened by.

A live model is never pickled: hooks and caches do not travel. The weights travel as plain bytes, which a cluster's
object store keeps once for each machine, and which all workers of a machine read in place.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from unembed.errors import ModelUnavailable, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import sampled_fingerprint
from unembed.models.loading import Opened, open_model
from unembed.models.offload import is_offloaded


@dataclass(frozen=True)
class Packed:
    """A model with its weights."""

    kind: type[PreTrainedModel]
    config: Any
    attention: str | None
    weights: dict[str, tuple[np.ndarray, torch.dtype, tuple[int, ...]]]
    rest: dict[str, Any]
    """Tokenizer, name, revision, token counts."""
    mark: str


@dataclass(frozen=True)
class Named:
    """Where a model that is spread over devices, or partly not in memory, is opened again."""

    where: str
    options: dict[str, Any]
    mark: str


def packed(lm: Decoder) -> Packed | Named:
    """What another process needs to open the model.

    Raises:
        Unsupported: the model is spread over devices and was not opened by name or from a folder.
    """
    hf, opened = lm.hf, lm._opened
    if is_offloaded(hf) or len(set(getattr(hf, "hf_device_map", {}).values())) > 1:
        if not hf.name_or_path:
            raise Unsupported(
                f"sending {lm.name} to workers",
                why="it is spread over devices and nothing says where it came from",
                instead="Give Ray(open_model=...), a function that opens it",
            )
        dtype = lm.dtype_name
        options = {"revision": lm.revision, "dtype": dtype, "device_map": "auto"}
        return Named(hf.name_or_path, options, sampled_fingerprint(lm))
    weights = {name: _bytes(tensor) for name, tensor in hf.state_dict().items()}
    rest = {
        "tokenizer": opened.tokenizer,
        "name": lm.name,
        "revision": opened.revision,
        "token_counts": opened.token_counts,
    }
    attention = getattr(hf.config, "_attn_implementation", None)
    return Packed(type(hf), hf.config, attention, weights, rest, sampled_fingerprint(lm))


def unpacked(sent: Packed | Named) -> Decoder:
    """The model, opened here.

    Raises:
        ModelUnavailable: what opens here has other weights: it was changed after it was opened, or another model lies
            under its name on this machine.
    """
    if isinstance(sent, Named):
        lm = Decoder(open_model(sent.where, **sent.options))
    else:
        weights = {name: _tensor(*held) for name, held in sent.weights.items()}
        dtype = next((t.dtype for t in weights.values() if t.is_floating_point()), None)
        attention: dict[str, Any] = {} if sent.attention is None else {"attn_implementation": sent.attention}
        hf = sent.kind.from_pretrained(None, config=sent.config, state_dict=weights, dtype=dtype, **attention)
        lm = Decoder(Opened(hf.eval(), **sent.rest))
    if sampled_fingerprint(lm) != sent.mark:
        raise ModelUnavailable(
            f"model {lm.name} in a worker",
            why="its weights are not those of the model that is swept",
            instead="Give Ray(open_model=...), a function that opens it",
        )
    return lm


def _bytes(tensor: Tensor) -> tuple[np.ndarray, torch.dtype, tuple[int, ...]]:
    """NumPy has no bfloat16, so the bytes travel and the dtype beside them."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape)


def _tensor(held: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A view of bytes that may be read-only, as those of an object store are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(held).view(dtype).view(shape)
