"""Folders with a PEFT adapter, alone or beside a model: opened where peft is installed, else refused by name."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path

from unembed.errors import ExtraMissing, ModelUnavailable, UnembedWarning, reading_fault

ADAPTER = "adapter_config.json"


def check_adapter(folder: Path) -> None:
    """Refuse a folder with an adapter that cannot be applied, and say so where one is applied.

    transformers opens a model without its adapter, in silence, where peft is not installed.

    Raises:
        ExtraMissing: peft is not installed.
        ModelUnavailable: the adapter's configuration cannot be read, or names no base model.
    """
    path = folder / ADAPTER
    if not path.is_file():
        return
    try:
        base = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as fault:
        raise ModelUnavailable(
            f"adapter {folder}", why=f"its {ADAPTER} cannot be read: {reading_fault(fault)}"
        ) from fault
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
            f"adapter {folder}", why=f"its {ADAPTER} names no base model", instead="Set base_model_name_or_path there"
        )
    of = "the model in the same folder" if has_model else str(base)
    warnings.warn(f"{folder} holds a PEFT adapter, which is applied to {of}", UnembedWarning, stacklevel=2)
