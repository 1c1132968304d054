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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unembed.dictionaries.dictionary import Dictionary
from unembed.dictionaries.saelens_fields import WITHOUT_GAIN, checked_fields
from unembed.errors import InvalidInput, ModelUnavailable, UnembedError, Unsupported, first_sentence, reading_fault
from unembed.results import make_folder, write_whole, writing

WEIGHTS, CONFIG = "sae_weights.safetensors", "cfg.json"
_PARAMS = ("params.npz", "params.safetensors")
_ARCHITECTURES = {"relu": "standard", "jumprelu": "jumprelu", "topk": "topk", "gated": "gated"}
"""For each activation function, SAELens' name for the architecture of an autoencoder that uses it."""
_TRANSCODERS = {"relu": "transcoder", "jumprelu": "jumprelu_transcoder"}
"""For some activation functions, SAELens' name for the architecture of a transcoder that uses it."""
_LAYOUT = "6.0.0"
"""The first version of SAELens with this layout. SAELens ignores the metadata of a file without a version."""
_POINTS = {
    "hook_resid_pre": "resid_pre",
    "hook_resid_mid": "resid_mid",
    "hook_resid_post": "resid_post",
    "hook_attn_out": "attn_out",
    "hook_mlp_out": "mlp_out",
    "mlp.hook_in": "mlp_in",
    "ln2.hook_normalized": "mlp_in",
    "hook_mlp_in": "resid_mid",
}
"""The capture point of each of TransformerLens' hook names; `hook_mlp_in` is what enters the norm before the FFN."""
_HOOK = re.compile(r"blocks\.(\d+)\.(.+)")
_IN_PATH = {"res": "resid_post", "mlp": "mlp_out", "transcoder": "mlp_in"}
"""The capture point that a dictionary reads, by a word in the name of its Gemma Scope repository."""


def open_dictionary(source: str | Path, folder: str | None = None) -> Dictionary | tuple[Dictionary, ...]:
    """Open a dictionary; for a cross-layer transcoder, return a tuple with one for each layer.

    Args:
        source: a folder, or the id of a repository on the Hugging Face hub.
        folder: a folder inside the source, such as "layer_5/width_16k/average_l0_68".

    Raises:
        ModelUnavailable: there is no such folder, and the hub has no such repository or cannot be reached.
        InvalidInput: the folder has no dictionary in a known layout.
        Unsupported: the dictionary computes its features in a way that is not supported.
    """
    try:
        return _opened(source, folder)
    except UnembedError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RuntimeError) as fault:
        raise _damaged(source, f"its files are damaged: {first_sentence(fault)}") from fault


def _damaged(name: object, why: str) -> InvalidInput:
    return InvalidInput(f"dictionary {name}", why=why, instead="Fetch it again")


def _opened(source: str | Path, folder: str | None) -> Dictionary | tuple[Dictionary, ...]:
    path = Path(source).expanduser()
    path = path if path.is_dir() else _downloaded(str(source), folder)
    path = path / folder if folder else path
    name = "/".join(filter(None, (Path(source).name if Path(source).exists() else str(source), folder)))
    if (path / CONFIG).is_file() and (path / WEIGHTS).is_file():
        return _saelens(_fields(path / CONFIG, name), _arrays(path / WEIGHTS, name), name)
    for file in _PARAMS:
        if (path / file).is_file():
            return _gemma_scope(_arrays(path / file, name), str(source), name)
    if (path / "W_enc_0.safetensors").is_file():
        return _cross_layer(path, name)
    raise InvalidInput(
        f"dictionary {name}",
        why=f"the folder contains neither {CONFIG} with {WEIGHTS}, nor {_PARAMS[0]}, nor W_enc_0.safetensors",
        instead="Pass the folder of a single dictionary as `folder`",
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


def _fields(path: Path, name: str) -> Mapping[str, Any]:
    """Read a configuration file, which must be a JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as fault:
        raise _damaged(name, f"its {path.name} cannot be read: {reading_fault(fault)}") from fault
    if not isinstance(found, dict):
        raise _damaged(name, f"its {path.name} is not a JSON object")
    return found


class _Arrays(dict[str, Tensor]):
    """The tensors of a file by name; looking up a name that is missing raises `InvalidInput`."""

    def __init__(self, tensors: Mapping[str, Tensor], file: str, name: str) -> None:
        super().__init__(tensors)
        self._file, self._name = file, name

    def __missing__(self, key: str) -> Tensor:
        raise _damaged(self._name, f"its {self._file} contains no {key}")


def _arrays(path: Path, name: str) -> _Arrays:
    """Read the tensors of a file.

    Raises:
        InvalidInput: the file is missing, damaged, or contains something else.
    """
    try:
        if path.suffix == ".safetensors":
            return _Arrays(load_file(path), path.name, name)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return _Arrays({key: torch.from_numpy(stored[key]) for key in stored.files}, path.name, name)
    except Exception as fault:  # safetensors, zipfile and numpy raise kinds of their own
        raise _damaged(name, f"its {path.name} cannot be read: {reading_fault(fault)}") from fault


def _saelens(config: Mapping[str, Any], weights: Mapping[str, Tensor], name: str) -> Dictionary:
    fields = checked_fields(config, weights, name)
    reads, layer = _hook(fields.reads, name)
    writes = _hook(fields.writes, name)[0] if fields.writes else reads
    gated = fields.activation == "gated"
    return Dictionary(
        weights["W_enc"],
        weights["b_gate"] if gated else weights["b_enc"],
        (weights["W_dec"],),
        weights["b_dec"],
        fields.activation,
        b_in=weights["b_dec"] if fields.subtracts_bias else None,
        threshold=weights["threshold"] if fields.activation == "jumprelu" else None,
        k=fields.k,
        r_mag=weights["r_mag"] if gated else None,
        b_mag=weights["b_mag"] if gated else None,
        reads=reads,
        writes=writes,
        layer=fields.layer if layer is None else layer,
        name=name,
        without_gain=fields.reads.endswith(WITHOUT_GAIN),
        centred=fields.centred,
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
    settings = _fields(config, name) if config.is_file() else {}
    found = []
    for layer in range(n):
        encoder = _arrays(path / f"W_enc_{layer}.safetensors", name)
        decoder = _arrays(path / f"W_dec_{layer}.safetensors", name)[f"W_dec_{layer}"]
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
    """Write a dictionary of one layer in the layout of SAELens 6.

    SAELens subtracts either b_dec or nothing from the encoder's input. For any other b_in, b_in times W_enc is
    subtracted from the encoder's biases instead, which gives the same features. SAELens has no transcoders with topk or
    gated activations; these are written as autoencoders.

    Raises:
        Unsupported: its features write to several layers.
    """
    if len(dictionary.W_dec) != 1:
        raise Unsupported(f"writing {dictionary.name}", why="its features write to several layers")
    path = Path(folder).expanduser()
    make_folder(path)
    d = dictionary if _subtracts_b_dec(dictionary) else _without_b_in(dictionary)
    gated = d.activation == "gated"
    tensors = {"W_enc": d.W_enc, "b_gate" if gated else "b_enc": d.b_enc, "W_dec": d.W_dec[0], "b_dec": d.b_dec}
    tensors |= {"r_mag": d.r_mag, "b_mag": d.b_mag} if gated else {}
    tensors |= {"threshold": d.threshold} if d.activation == "jumprelu" else {}
    with writing(path, instead="Make room, and run the same again"):
        # If this process ends halfway, the folder must not hold new weights with the old configuration.
        (path / CONFIG).unlink(missing_ok=True)
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items() if t is not None}, path / WEIGHTS)
    at = "" if d.layer is None else f"blocks.{d.layer}."
    architectures = _ARCHITECTURES | (_TRANSCODERS if d.is_transcoder else {})
    config: dict[str, Any] = {
        "architecture": architectures[d.activation],
        "d_in": d.W_enc.shape[0],
        "d_sae": d.n_features,
        **({"d_out": d.b_dec.shape[0]} if d.is_transcoder else {}),
        "k": d.k,
        "apply_b_dec_to_input": d.b_in is not None,
        "normalize_activations": "none",
        "dtype": str(d.W_enc.dtype).removeprefix("torch."),
        "metadata": {
            "sae_lens_version": _LAYOUT,
            "hook_name": at + (WITHOUT_GAIN if d.without_gain else _hook_of(d.reads)),
            **({"model_from_pretrained_kwargs": {"center_writing_weights": True}} if d.centred else {}),
            **({"hook_name_out": at + _hook_of(d.writes)} if d.is_transcoder else {}),
            **(notes or {}),
        },
    }
    write_whole(path / CONFIG, json.dumps(config, indent=1) + "\n")
    return path


def _subtracts_b_dec(d: Dictionary) -> bool:
    """Tell whether this is an autoencoder with b_in equal to b_dec; SAELens has a field for this only there."""
    return d.b_in is not None and not d.is_transcoder and torch.equal(d.b_in, d.b_dec)


def _without_b_in(d: Dictionary) -> Dictionary:
    """Return a dictionary with the same features whose encoder subtracts nothing: (x - b_in) W = x W - b_in W."""
    if d.b_in is None:
        return d
    shift = d.b_in @ d.W_enc
    b_mag = None if d.b_mag is None or d.r_mag is None else d.b_mag - shift * d.r_mag.exp()
    return replace(d, b_in=None, b_enc=d.b_enc - shift, b_mag=b_mag)


def _hook_of(point: str) -> str:
    return next((hook for hook, known in _POINTS.items() if known == point), point)
