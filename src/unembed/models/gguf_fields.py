"""Find what transformers ignores in a GGUF file: refuse the file if this would change results, else warn.

transformers reads the fields and tensors that it knows and silently drops the others, such as the rotary factors of
Llama 3 (`rope_freqs.weight`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from unembed.errors import ModelUnavailable, UnembedWarning

_CHANGES_NUMBERS = re.compile(
    r"rope\.|softcap|scale|sliding_window|clamp|norm_eps|key_length|value_length|gating|alibi"
)
_ALSO_CALLED = {
    "key_length": ("head_dim",),
    "value_length": ("head_dim", "v_head_dim"),
    "dimension_count": ("head_dim",),
    "layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps"),
    "layer_norm_rms_epsilon": ("rms_norm_eps",),
    "feed_forward_length": ("intermediate_size", "n_inner"),
}
"""For GGUF fields that have another name in transformers' configurations: the names that they have there."""
_NEUTRAL = {"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "rope.scaling.attn_factor": 1.0}
"""For some fields, the value that has no effect, so that it does not matter whether transformers reads the field."""


def check_fields(name: str, fields: Mapping[str, Any], config: PreTrainedConfig) -> None:
    """Refuse a file with a field that changes results and was not read; warn about other fields that were not read.

    Args:
        name: the name of the file, for the message.
        fields: the fields of the file, by name.
        config: the config that transformers made from the fields.

    Raises:
        ModelUnavailable: a field that changes results was not read.
    """
    read = _fields_read(str(fields["general.architecture"]))
    if read is None:
        return
    prefix = f"{fields['general.architecture']}."
    own = {field.removeprefix(prefix): value for field, value in fields.items() if field.startswith(prefix)}
    lost = {f: v for f, v in own.items() if f not in read and not _is_in(config, f, v) and _NEUTRAL.get(f) != v}
    if own.get("rope.scaling.type") == "none":
        lost = {field: value for field, value in lost.items() if not field.startswith("rope.scaling")}
    changing = [f"{field} = {value}" for field, value in lost.items() if _CHANGES_NUMBERS.search(field)]
    if changing:
        raise ModelUnavailable(
            f"file {name}",
            why=f"transformers ignores {', '.join(changing)} in it, and without this every result would be wrong",
            instead="Open the model in transformers' own format (a folder with config.json)",
        )
    if lost:
        warnings.warn(
            f"transformers does not read these fields of {name}: {', '.join(sorted(lost))}",
            UnembedWarning,
            stacklevel=2,
        )


def _fields_read(architecture: str) -> set[str] | None:
    """Return the fields that transformers reads for an architecture; None if transformers does not list it."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    def plain(word: str) -> str:
        return word.replace("_", "").replace("-", "")

    known = [rows for key, rows in GGUF_CONFIG_MAPPING.items() if plain(key) == plain(architecture)]
    return {field for field, meant in known[0].items() if meant not in (None, -1)} if known else None


def _is_in(config: PreTrainedConfig, field: str, value: Any) -> bool:
    """Tell whether the config has the right value for a field although transformers did not read the field."""
    last = field.rpartition(".")[2]
    inner = config.get_text_config()
    values = [getattr(inner, known, None) for known in (last, *_ALSO_CALLED.get(last, ()))]
    if last in ("key_length", "value_length", "dimension_count") and getattr(inner, "head_dim", None) is None:
        values.append(inner.hidden_size // inner.num_attention_heads)
    return value in values


def check_tensors(name: str, sizes: Mapping[str, int], hf: PreTrainedModel) -> None:
    """Refuse a file with rotary factors, which the model would ignore; warn about other tensors that are ignored.

    Args:
        name: the name of the file, for the message.
        sizes: the number of elements of each tensor in the file.
        hf: the model that was read.

    Raises:
        ModelUnavailable: the file has a tensor of rotary factors.
    """
    if factors := [tensor for tensor in sizes if tensor.startswith(("rope_freqs", "rope_factors"))]:
        raise ModelUnavailable(
            f"file {name}",
            why=f"transformers ignores its rotary factors ({factors[0]}), and without them every result would be wrong",
            instead="Open the safetensors model from which this file was made",
        )
    surplus = sum(sizes.values()) - sum(parameter.numel() for parameter in hf.parameters())
    if surplus > 0:
        warnings.warn(f"{name} holds {surplus:,} numbers that the model does not use", UnembedWarning, stacklevel=2)
