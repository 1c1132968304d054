"""Check the fields of SAELens' `cfg.json` that affect features; a field that is not supported raises an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unembed.errors import InvalidInput, Unsupported

_ACTIVATIONS = {
    "standard": "relu",
    "jumprelu": "jumprelu",
    "topk": "topk",
    "gated": "gated",
    "transcoder": "relu",
    "jumprelu_transcoder": "jumprelu",
}
WITHOUT_GAIN = "ln2.hook_normalized"
"""TransformerLens' hook at a norm's output before gain and bias. TransformerLens folds gain and bias into the weights
that read the output.
"""
_NOTHING = ("none", "None", None, False)
_CHANGING = (
    *("normalize_activations", "rescale_acts_by_decoder_norm", "reshape_activations", "hook_head_index"),
    *("noise_scale", "use_error_term"),
)
"""Fields that change the features if they have any value other than those in `_NOTHING`."""


@dataclass(frozen=True)
class Fields:
    """The fields of a configuration that affect the features.

    Attributes:
        activation: one of `unembed.dictionaries.dictionary.ACTIVATIONS`.
        k: the k of topk; None for other activations.
        reads: the name of the hook whose activation is encoded; empty if the configuration names none.
        writes: the name of the hook that is reconstructed; empty if it is the same.
        layer: the layer, if a field names it.
        subtracts_bias: whether b_dec is subtracted from the encoder's input.
        centred: whether the mean over channels is subtracted from activations.
    """

    activation: str
    k: int | None
    reads: str
    writes: str
    layer: int | None
    subtracts_bias: bool
    centred: bool


def checked_fields(config: Mapping[str, Any], weights: Mapping[str, Tensor], name: str) -> Fields:
    """Read the fields of a `cfg.json`, as any version of SAELens writes it.

    Raises:
        Unsupported: a field changes the features in a way that is not supported; the message names it.
        InvalidInput: a field has a value of the wrong kind, or contradicts the weights.
    """
    inner = config.get("metadata") or {}
    if not isinstance(inner, Mapping):
        raise InvalidInput(f"dictionary {name}", why="its metadata are not a dict")
    both = {**config, **inner}
    reads, writes = (_text(both, key, name) for key in ("hook_name", "hook_name_out"))
    activation, k = _activation(config, name)
    for key in _CHANGING:
        if both.get(key) not in _NOTHING and not (key == "hook_head_index" and both[key] in ("", -1)):
            raise Unsupported(f"dictionary {name}", why=f"its {key} = {both[key]!r} is not supported")
    if "scaling_factor" in weights and bool((weights["scaling_factor"] != 1).any()):
        raise Unsupported(f"dictionary {name}", why="its finetuning_scaling_factor is not supported")
    if "W_skip" in weights:
        raise Unsupported(f"dictionary {name}", why="its W_skip (of a skip transcoder) is not supported")
    for key, axis in (("d_in", 0), ("d_sae", 1)):
        if key in config and "W_enc" in weights and config[key] != weights["W_enc"].shape[axis]:
            why = f"its {key} is {config[key]!r}, but W_enc has {weights['W_enc'].shape[axis]}"
            raise InvalidInput(f"dictionary {name}", why=why, instead="Fetch it again")
    opened = both.get("model_from_pretrained_kwargs") or {}
    if not isinstance(opened, Mapping):
        raise InvalidInput(f"dictionary {name}", why="its model_from_pretrained_kwargs are not a dict")
    if not opened.get("fold_ln", True) and reads.endswith(WITHOUT_GAIN):
        raise Unsupported(f"dictionary {name}", why=f"its fold_ln = {opened['fold_ln']!r} at {reads} is not supported")
    layer = both.get("hook_layer", both.get("hook_point_layer"))
    if layer is not None and (type(layer) is not int or layer < 0):
        raise InvalidInput(f"dictionary {name}", why=f"its hook_layer is {layer!r}, not the number of a layer")
    return Fields(
        activation,
        k,
        reads,
        writes,
        layer,
        bool(config.get("apply_b_dec_to_input", not writes)),  # in a transcoder b_dec belongs to the output alone
        bool(opened.get("center_writing_weights", False)),
    )


def _text(fields: Mapping[str, Any], key: str, name: str) -> str:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"dictionary {name}", why=f"its {key} is {value!r}, not the name of a hook")
    return value or ""


def _activation(config: Mapping[str, Any], name: str) -> tuple[str, int | None]:
    """Return the activation function's name, and the k of topk (None for others)."""
    architecture = config.get("architecture", "standard")
    activation = _ACTIVATIONS.get(architecture) if isinstance(architecture, str) else None
    if activation is None:
        raise Unsupported(f"dictionary {name}", why=f"its architecture {architecture!r} is not supported")
    key = "activation_fn_str" if "activation_fn_str" in config else "activation_fn"
    function = config.get(key) or "relu"
    more = config.get("activation_fn_kwargs") or {}
    if not isinstance(function, str) or not isinstance(more, Mapping):
        raise InvalidInput(f"dictionary {name}", why=f"its {key} or activation_fn_kwargs has a value of the wrong type")
    # In files of SAELens before version 6, the function says topk, and the architecture does not.
    if activation == "relu" and function == "topk":
        activation = "topk"
    elif function not in ("relu", activation):
        raise Unsupported(f"dictionary {name}", why=f"its {key} {function!r} is not supported")
    if odd := sorted(set(more) - {"k"}):
        raise Unsupported(f"dictionary {name}", why=f"its activation_fn_kwargs {odd[0]!r} is not supported")
    k = config.get("k") or more.get("k")
    if activation != "topk":
        return activation, None
    if type(k) is not int or k < 1:
        raise InvalidInput(f"dictionary {name}", why=f"its k is {k!r}, not a number of features")
    return activation, k
