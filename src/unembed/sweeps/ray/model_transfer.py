"""Send a model to another process: its class, configuration and weights, or the name that it was opened by.

The model object itself is never pickled, so its hooks and caches are not sent. The weights are sent as plain bytes:
Ray's object store has one copy of them on each machine, which all workers of that machine read.
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
class SerializedModel:
    """A model as data to send: its class, configuration and weights, and what else is needed to open it."""

    kind: type[PreTrainedModel]
    config: Any
    attention: str | None
    weights: dict[str, tuple[np.ndarray, torch.dtype, tuple[int, ...]]]
    extras: dict[str, Any]
    """What else is needed to open the model: tokenizer, name, revision and token counts."""
    weights_hash: str


@dataclass(frozen=True)
class ModelReference:
    """The name and options to open a model again, if it is spread over devices or not entirely in memory."""

    where: str
    options: dict[str, Any]
    weights_hash: str


def serialize_model(lm: Decoder) -> SerializedModel | ModelReference:
    """Return everything that another process needs to open the model.

    Raises:
        Unsupported: the model is spread over devices and was not opened by name or from a folder.
    """
    hf, opened = lm.hf, lm._opened
    if is_offloaded(hf) or len(set(getattr(hf, "hf_device_map", {}).values())) > 1:
        if not hf.name_or_path:
            raise Unsupported(
                f"sending {lm.name} to workers",
                why="it is spread over devices and was not opened by name or from a folder",
                instead="Give Ray(open_model=...), a function that opens it",
            )
        options = {"revision": lm.revision, "dtype": lm.dtype_name, "device_map": "auto"}
        return ModelReference(hf.name_or_path, options, sampled_fingerprint(lm))
    weights = {name: _bytes(tensor) for name, tensor in hf.state_dict().items()}
    extras = {
        "tokenizer": opened.tokenizer,
        "name": lm.name,
        "revision": opened.revision,
        "token_counts": opened.token_counts,
    }
    attention = getattr(hf.config, "_attn_implementation", None)
    return SerializedModel(type(hf), hf.config, attention, weights, extras, sampled_fingerprint(lm))


def deserialize_model(source: SerializedModel | ModelReference) -> Decoder:
    """Open a model in this process from what `serialize_model` returned.

    Raises:
        ModelUnavailable: the weights differ: the model was changed after it was opened, or this machine has another
            model under the same name.
    """
    if isinstance(source, ModelReference):
        lm = Decoder(open_model(source.where, **source.options))
    else:
        weights = {name: _tensor(*data) for name, data in source.weights.items()}
        dtype = next((t.dtype for t in weights.values() if t.is_floating_point()), None)
        attention: dict[str, Any] = {} if source.attention is None else {"attn_implementation": source.attention}
        hf = source.kind.from_pretrained(None, config=source.config, state_dict=weights, dtype=dtype, **attention)
        lm = Decoder(Opened(hf.eval(), **source.extras))
    if sampled_fingerprint(lm) != source.weights_hash:
        raise ModelUnavailable(
            f"model {lm.name} in a worker",
            why="its weights differ from those of the model in the process that started the sweep",
            instead="Give Ray(open_model=...), a function that opens it",
        )
    return lm


def _bytes(tensor: Tensor) -> tuple[np.ndarray, torch.dtype, tuple[int, ...]]:
    """Return a tensor's bytes as a NumPy array, its dtype and its shape; NumPy has no bfloat16."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape)


def _tensor(data: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor that is a view of an array of bytes, which may be read-only (in Ray's object store they are)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(data).view(dtype).view(shape)
