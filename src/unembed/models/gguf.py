"""Read GGUF files (the format of llama.cpp) with transformers: weights, configuration and tokenizer.

Quantised weights are dequantised: the model then has, in floating point, exactly the values that the quantised weights
represent. These differ from the weights before quantisation, so results state the quantisation.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from unembed.errors import ExtraMissing, ModelUnavailable, first_sentence
from unembed.models.gguf_fields import check_fields, check_tensors
from unembed.models.load_report import check_weights, collected_log

QUANTISED = "dequantised_from"
"""The field of a model's configuration that names the quantised formats of its weights before dequantisation."""
_FLOATS = ("F16", "F32", "F64", "BF16")


@dataclass(frozen=True, eq=False)
class GgufModel:
    """The model and the tokenizer in a GGUF file."""

    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def gguf_file(path: Path) -> Path | None:
    """Return the GGUF file at a path, or the only GGUF file in a folder.

    None if there is no such file, or if the folder has a `config.json`: then it contains a model in the format of
    transformers, which is opened instead.

    Raises:
        ModelUnavailable: the folder contains several GGUF files.
    """
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:3]) + (" ..." if len(found) > 3 else "")
        raise ModelUnavailable(
            f"folder {path}", why=f"it holds {len(found)} GGUF files: {names}", instead="Give the path of one"
        )
    return found[0] if found else None


def check_gguf_extra(what: str) -> None:
    """Raise an error if the packages that read GGUF files are not installed.

    Raises:
        ExtraMissing: a package is not installed.
    """
    lacking = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if lacking:
        raise ExtraMissing(
            what,
            why=f"GGUF files are read with {' and '.join(lacking)}, which is not installed",
            instead="pip install 'unembed[gguf]'",
        )


def read_gguf(path: Path, dtype: torch.dtype | str = "auto") -> GgufModel:
    """Read the model and the tokenizer from a GGUF file.

    If weights were quantised, the model's config gets the field `dequantised_from` with the names of their formats.

    Raises:
        ExtraMissing: gguf or accelerate is not installed.
        ModelUnavailable: the file is damaged, or transformers does not read its architecture, or ignores a field or
            tensor that changes results.
    """
    check_gguf_extra(f"file {path.name}")
    reader = _reader(path)
    types = dict(Counter(tensor.tensor_type.name for tensor in reader.tensors).most_common())
    given = {"gguf_file": path.name, "local_files_only": True}
    try:
        with collected_log(path.name) as messages, _without_bar():
            hf, info = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]
                path.parent, dtype=dtype, output_loading_info=True, **_unpacked(), **given
            )
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **given)
    except Exception as error:  # transformers and gguf raise many kinds of error
        raise ModelUnavailable(f"file {path}", why=f"transformers cannot read it: {first_sentence(error)}") from error
    check_weights(path.name, info)
    check_fields(path.name, {name: field.contents() for name, field in reader.fields.items()}, hf.config)
    check_tensors(path.name, {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}, hf)
    messages.warn()
    return GgufModel(_as_floats(hf, types), tokenizer)


def _unpacked() -> dict[str, Any]:
    """Return the keyword argument that makes transformers dequantise the weights; empty in versions without it."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


@contextmanager
def _without_bar() -> Iterator[None]:
    """A context that hides the progress bar of transformers' GGUF reader, which no setting of transformers hides."""
    from transformers import modeling_gguf_pytorch_utils

    reader: Any = modeling_gguf_pytorch_utils
    before = reader.tqdm
    reader.tqdm = lambda each, **_: each
    try:
        yield
    finally:
        reader.tqdm = before


def _reader(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except Exception as error:  # a damaged file causes many kinds of error
        raise ModelUnavailable(
            f"file {path}", why=f"it is not a complete GGUF file: {first_sentence(error)}"
        ) from error


def _as_floats(hf: PreTrainedModel, types: Mapping[str, int]) -> PreTrainedModel:
    """Remove the quantisation settings so that the dequantised model can be saved; record the former formats."""
    model: Any = hf
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if name in vars(model):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    if packed := [f"{name} ({n} of {sum(types.values())} tensors)" for name, n in types.items() if name not in _FLOATS]:
        setattr(model.config, QUANTISED, ", ".join(packed))
    return hf
