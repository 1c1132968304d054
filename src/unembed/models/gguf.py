"""Read GGUF files (of llama.cpp), which hold weights, configuration and tokenizer, with transformers.

Quantised weights are dequantised: the model then holds, in floating point, exactly the numbers that the file's blocks
represent. They differ from the model's numbers before it was quantised, so results state the quantisation.
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
from unembed.models.load_report import check_weights, heard

QUANTISED = "dequantised_from"
"""The field of a model's configuration that says from which types of numbers its weights were dequantised."""
_FLOATS = ("F16", "F32", "F64", "BF16")


@dataclass(frozen=True, eq=False)
class GgufModel:
    """The contents of a GGUF file."""

    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def gguf_file(path: Path) -> Path | None:
    """Return the GGUF file that a path names: the file itself, or the only one in a folder without another model.

    Raises:
        ModelUnavailable: the folder holds several, and nothing says which is meant.
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
    """Refuse to go on if the packages that read GGUF files are not installed.

    Raises:
        ExtraMissing: one is not.
    """
    lacking = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if lacking:
        raise ExtraMissing(
            what,
            why=f"GGUF files are read with {' and '.join(lacking)}, which is not installed",
            instead="pip install 'unembed[gguf]'",
        )


def read_gguf(path: Path, dtype: torch.dtype | str = "auto") -> GgufModel:
    """Read model and tokenizer from a GGUF file; if weights were packed, the config gets the field `QUANTISED`.

    Raises:
        ExtraMissing: gguf or accelerate is not installed.
        ModelUnavailable: the file is damaged, or transformers does not read its architecture, or not all it says.
    """
    check_gguf_extra(f"file {path.name}")
    reader = _reader(path)
    types = dict(Counter(tensor.tensor_type.name for tensor in reader.tensors).most_common())
    given = {"gguf_file": path.name, "local_files_only": True}
    try:
        with heard(path.name) as said, _without_bar():
            hf, info = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]
                path.parent, dtype=dtype, output_loading_info=True, **_unpacked(), **given
            )
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **given)
    except Exception as error:  # transformers and gguf raise many kinds
        raise ModelUnavailable(f"file {path}", why=f"transformers does not read it: {first_sentence(error)}") from error
    check_weights(path.name, info)
    check_fields(path.name, {name: field.contents() for name, field in reader.fields.items()}, hf.config)
    check_tensors(path.name, {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}, hf)
    said.pass_on()
    return GgufModel(_as_floats(hf, types), tokenizer)


def _unpacked() -> dict[str, Any]:
    """Return the argument that keeps transformers from leaving weights packed, if this version has one."""
    import transformers

    config = getattr(transformers, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


@contextmanager
def _without_bar() -> Iterator[None]:
    """A context without the progress bar of transformers' reader, which its own switch does not turn off."""
    from transformers import modeling_gguf_pytorch_utils

    reader: Any = modeling_gguf_pytorch_utils
    before = reader.tqdm
    reader.tqdm = lambda each, **_: each
    try:
        yield
    finally:
        reader.tqdm = before


def _reader(path: Path) -> Any:
    """Return a reader of the file's fields and tensors."""
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except Exception as error:  # a damaged file raises many kinds
        raise ModelUnavailable(
            f"file {path}", why=f"it is not a complete GGUF file: {first_sentence(error)}"
        ) from error


def _as_floats(hf: PreTrainedModel, types: Mapping[str, int]) -> PreTrainedModel:
    """Mark the dequantised model as one with floating-point weights, so that it can be saved."""
    model: Any = hf
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if name in vars(model):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    if packed := [f"{name} ({n} of {sum(types.values())} tensors)" for name, n in types.items() if name not in _FLOATS]:
        setattr(model.config, QUANTISED, ", ".join(packed))
    return hf
