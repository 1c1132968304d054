"""Apply PEFT adapters, or refuse them with the reason; an adapter is never silently ignored.

An adapter is in the model's folder, in a folder of its own, or passed together with a model.
"""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from unembed.errors import ExtraMissing, ModelUnavailable, UnembedWarning, first_sentence, reading_fault
from unembed.models.load_report import check_weights, collected_log

ADAPTER = "adapter_config.json"


def check_adapter(folder: Path) -> None:
    """Raise an error if the adapter in a folder cannot be applied; warn if it will be applied.

    Nothing happens if the folder has no adapter. The error for a missing peft is needed because transformers, without
    peft, silently opens a model without its adapter.

    Raises:
        ExtraMissing: peft is not installed.
        ModelUnavailable: the adapter's configuration cannot be read, or names no base model.
    """
    path = folder / ADAPTER
    if not path.is_file():
        return
    base = _base_of(folder)
    has_model = (folder / "config.json").exists()
    if importlib.util.find_spec("peft") is None:
        raise ExtraMissing(
            f"folder {folder}",
            why="it holds a PEFT adapter, and peft is not installed",
            instead="pip install peft"
            + ("; or move the adapter out of the folder to open the base model" if has_model else ""),
        )
    if not has_model and not base:
        raise ModelUnavailable(
            f"adapter {folder}", why=f"its {ADAPTER} names no base model", instead="Set base_model_name_or_path in it"
        )
    of = "the model in the same folder" if has_model else str(base)
    warnings.warn(f"{folder} holds a PEFT adapter, which is applied to {of}", UnembedWarning, stacklevel=2)


def apply_adapter(hf: PreTrainedModel, folder: Path, name: str) -> None:
    """Apply a PEFT adapter to a model, in place.

    Args:
        hf: the model.
        folder: the folder of the adapter, with `adapter_config.json`.
        name: the name of the model, for error messages.

    Raises:
        ExtraMissing: peft is not installed.
        ModelUnavailable: there is no adapter, it cannot be read, or it does not fit the model.
    """
    what = f"adapter {folder}"
    if not (folder / ADAPTER).is_file():
        raise ModelUnavailable(what, why=f"it contains no {ADAPTER}", instead="Give the folder of a PEFT adapter")
    base = _base_of(folder)
    if importlib.util.find_spec("peft") is None:
        raise ExtraMissing(what, why="peft, which applies it, is not installed", instead="pip install peft")
    model: Any = hf
    try:
        with collected_log(str(folder)) as messages:
            info = model.load_adapter(str(folder))
    except Exception as fault:  # peft and transformers raise many kinds of error
        raise ModelUnavailable(what, why=f"it does not fit {name}: {first_sentence(fault)}") from fault
    messages.warn()
    if info is not None:
        check_weights(
            str(folder), {key: getattr(info, key) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}
        )
    hf.eval()
    if base and Path(base).name != Path(name).name:
        warnings.warn(
            f"the adapter {folder.name} was trained on {base}; it is applied to {name}", UnembedWarning, stacklevel=2
        )


def _base_of(folder: Path) -> str | None:
    """Return the name of the model that an adapter was trained on; None if its configuration does not say."""
    try:
        return json.loads((folder / ADAPTER).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as fault:
        raise ModelUnavailable(
            f"adapter {folder}", why=f"its {ADAPTER} cannot be read: {reading_fault(fault)}"
        ) from fault
