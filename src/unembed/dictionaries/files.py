"""Read dictionaries in the layouts of SAELens, Gemma Scope and circuit-tracer, from a folder or the hub.

| layout | files |
|---|---|
| SAELens | `cfg.json`, `sae_weights.safetensors` (sparse autoencoders and transcoders) |
| Gemma Scope | `params.npz` or `params.safetensors` with W_enc, b_enc, W_dec, b_dec, threshold |
| circuit-tracer | `W_enc_0.safetensors`, `W_dec_0.safetensors`, ... (cross-layer transcoders, a pair for each layer) |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unembed.dictionaries.dictionary import Dictionary
from unembed.errors import InvalidInput, ModelUnavailable, Unsupported, first_sentence
from unembed.results import make_folder, writing

WEIGHTS, CONFIG = "sae_weights.safetensors", "cfg.json"
_PARAMS = ("params.npz", "params.safetensors")
_ACTIVATIONS = {
    "standard": "relu",
    "jumprelu": "jumprelu",
    "topk": "topk",
    "gated": "gated",
    "transcoder": "relu",
    "jumprelu_transcoder": "jumprelu",
    "skip_transcoder": "",
}
_POINTS = {
    "hook_resid_pre": "resid_pre",
    "hook_resid_mid": "resid_mid",
    "hook_resid_post": "resid_post",
    "hook_attn_out": "attn_out",
    "hook_mlp_out": "mlp_out",
    "ln2.hook_normalized": "mlp_in",
    "mlp.hook_in": "mlp_in",
    "hook_mlp_in": "mlp_in",
}
"""The capture point of each of TransformerLens' hook names."""
_HOOK = re.compile(r"blocks\.(\d+)\.(.+)")
_IN_PATH = {"res": "resid_post", "mlp": "mlp_out", "transcoder": "mlp_in"}
"""Gemma Scope's repositories are named after the point that they read."""


def open_dictionary(source: str | Path, folder: str | None = None) -> Dictionary | tuple[Dictionary, ...]:
    """Open a dictionary, or one for each layer of a cross-layer transcoder.

    Args:
        source: a folder, or an id of the Hugging Face hub.
        folder: a folder inside it, such as "layer_5/width_16k/average_l0_68".

    Raises:
        ModelUnavailable: there is no such folder, and the hub does not have it or cannot be reached.
        InvalidInput: the folder holds no dictionary of a known layout.
        Unsupported: the dictionary computes its features in a way that is not supported.
    """
    path = Path(source).expanduser()
    path = path if path.is_dir() else _downloaded(str(source), folder)
    path = path / folder if folder else path
    name = "/".join(filter(None, (Path(source).name if Path(source).exists() else str(source), folder)))
    if (path / CONFIG).is_file() and (path / WEIGHTS).is_file():
        return _saelens(json.loads((path / CONFIG).read_text()), load_file(path / WEIGHTS), name)
    for file in _PARAMS:
        if (path / file).is_file():
            return _gemma_scope(_arrays(path / file), str(source), name)
    if (path / "W_enc_0.safetensors").is_file():
        return _cross_layer(path, name)
    raise InvalidInput(
        f"dictionary {name}",
        why=f"the folder contains neither {CONFIG} with {WEIGHTS}, nor {_PARAMS[0]}, nor W_enc_0.safetensors",
        instead="Give the folder of one dictionary: folder=",
    )


def _downloaded(source: str, folder: str | None) -> Path:
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise ModelUnavailable(f"no dictionary at {source}", why="there is no such folder")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=None if folder is None else [f"{folder}/*"]))
    except Exception as error:  # errors of the HTTP library, which differs between versions of huggingface_hub
        why = first_sentence(error)
        raise ModelUnavailable(f"dictionary {source}", why=why, instead="Give a folder") from error


def _arrays(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return load_file(path)
    with np.load(path) as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


def _saelens(config: Mapping[str, Any], weights: Mapping[str, Tensor], name: str) -> Dictionary:
    architecture = str(config.get("architecture", "standard"))
    activation = _ACTIVATIONS.get(architecture, "")
    kinds = str(config.get("activation_fn_str", config.get("activation_fn", "relu")))
    k = config.get("k") or (config.get("activation_fn_kwargs") or {}).get("k")
    if activation == "relu" and kinds.startswith("topk"):  # SAELens before version 6
        activation = "topk"
    elif activation == "relu" and kinds != "relu":
        activation = ""
    metadata = {**config, **(config.get("metadata") or {})}
    odd = {
        "normalize_activations": config.get("normalize_activations", "none") not in ("none", None, "None"),
        "rescale_acts_by_decoder_norm": bool(config.get("rescale_acts_by_decoder_norm")),
        "finetuning_scaling_factor": "scaling_factor" in weights and bool((weights["scaling_factor"] != 1).any()),
        "reshape_activations": config.get("reshape_activations", "none") not in ("none", None),
    }
    if not activation or any(odd.values()):
        what = [f"{key} = {config.get(key)!r}" for key, is_odd in odd.items() if is_odd]
        raise Unsupported(
            f"dictionary {name}",
            why=f"this version of unembed does not know its {what[0]}"
            if what
            else f"its architecture {architecture!r} is not known here",
        )
    reads, layer = _hook(metadata.get("hook_name", ""), name)
    out = metadata.get("hook_name_out")
    writes = _hook(out, name)[0] if out else reads
    b_enc = weights["b_gate"] if activation == "gated" else weights["b_enc"]
    return Dictionary(
        weights["W_enc"],
        b_enc,
        (weights["W_dec"],),
        weights["b_dec"],
        activation,
        # In a transcoder, b_dec is added to the output only; the input is used as it is.
        b_in=weights["b_dec"] if config.get("apply_b_dec_to_input", not out) else None,
        threshold=weights.get("threshold"),
        k=None if k is None or activation != "topk" else int(k),
        r_mag=weights.get("r_mag"),
        b_mag=weights.get("b_mag"),
        reads=reads,
        writes=writes,
        layer=layer if layer is not None else metadata.get("hook_layer"),
        name=name,
    )


def _hook(hook: str, name: str) -> tuple[str, int | None]:
    if not hook:
        return "resid_post", None
    match = _HOOK.fullmatch(hook)
    point = hook if match is None else match[2]
    if point in _POINTS.values():
        return point, None if match is None else int(match[1])
    if point not in _POINTS:
        raise Unsupported(f"dictionary {name}", why=f"it reads {hook!r}, which is not a capture point of unembed")
    return _POINTS[point], None if match is None else int(match[1])


def _gemma_scope(weights: Mapping[str, Tensor], source: str, name: str) -> Dictionary:
    kind = next((point for key, point in _IN_PATH.items() if re.search(rf"-{key}\w*(/|$)", source)), "resid_post")
    layer = re.search(r"layer_(\d+)", name)
    threshold = weights.get("threshold")
    return Dictionary(
        weights["W_enc"],
        weights["b_enc"],
        (weights["W_dec"],),
        weights["b_dec"],
        "relu" if threshold is None else "jumprelu",
        threshold=threshold,
        reads=kind,
        writes="mlp_out" if kind == "mlp_in" else kind,
        layer=None if layer is None else int(layer[1]),
        name=name,
    )


def _cross_layer(path: Path, name: str) -> tuple[Dictionary, ...]:
    n = len(list(path.glob("W_enc_*.safetensors")))
    config = path / "config.json"
    settings = json.loads(config.read_text()) if config.is_file() else {}
    found = []
    for layer in range(n):
        encoder = load_file(path / f"W_enc_{layer}.safetensors")
        decoder = load_file(path / f"W_dec_{layer}.safetensors")[f"W_dec_{layer}"]
        if decoder.dim() != 3 or decoder.shape[1] != n - layer:
            why = f"W_dec_{layer} is {tuple(decoder.shape)}, not (feature, {n - layer} layers, d_model)"
            raise InvalidInput(f"dictionary {name}", why=why)
        W_enc = encoder[f"W_enc_{layer}"]  # (feature, d_model)
        threshold = encoder.get(f"threshold_{layer}")
        found.append(
            Dictionary(
                W_enc.T,
                encoder[f"b_enc_{layer}"],
                tuple(decoder.unbind(1)),
                encoder[f"b_dec_{layer}"],
                "relu" if threshold is None else "jumprelu",
                threshold=threshold,
                reads=_hook(settings.get("feature_input_hook", "hook_resid_mid"), name)[0],
                writes=_hook(settings.get("feature_output_hook", "hook_mlp_out"), name)[0],
                layer=layer,
                name=name,
            )
        )
    return tuple(found)


def save_dictionary(dictionary: Dictionary, folder: str | Path, notes: Mapping[str, Any] | None = None) -> Path:
    """Write a dictionary of one layer in the layout of SAELens.

    Raises:
        Unsupported: its features write to several layers.
    """
    if len(dictionary.W_dec) != 1:
        raise Unsupported(f"writing {dictionary.name}", why="its features write to several layers")
    path = Path(folder).expanduser()
    make_folder(path)
    gated = dictionary.activation == "gated"
    tensors = {
        "W_enc": dictionary.W_enc,
        "b_gate" if gated else "b_enc": dictionary.b_enc,
        "W_dec": dictionary.W_dec[0],
        "b_dec": dictionary.b_dec,
        "threshold": dictionary.threshold,
        "r_mag": dictionary.r_mag,
        "b_mag": dictionary.b_mag,
    }
    with writing(path, instead="Make room, and run the same again"):
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items() if t is not None}, path / WEIGHTS)
    architectures = {activation: name for name, activation in reversed(_ACTIVATIONS.items()) if "trans" not in name}
    config: dict[str, Any] = {
        "architecture": architectures[dictionary.activation],
        "d_in": dictionary.W_enc.shape[0],
        "d_sae": dictionary.n_features,
        "k": dictionary.k,
        "apply_b_dec_to_input": dictionary.b_in is not None,
        "normalize_activations": "none",
        "dtype": str(dictionary.W_enc.dtype).removeprefix("torch."),
        "metadata": {
            "hook_name": f"blocks.{dictionary.layer}.{_hook_of(dictionary.reads)}",
            **(
                {"hook_name_out": f"blocks.{dictionary.layer}.{_hook_of(dictionary.writes)}"}
                if dictionary.is_transcoder
                else {}
            ),
            **(notes or {}),
        },
    }
    (path / CONFIG).write_text(json.dumps(config, indent=1) + "\n")
    return path


def _hook_of(point: str) -> str:
    return next((hook for hook, known in _POINTS.items() if known == point), point)
