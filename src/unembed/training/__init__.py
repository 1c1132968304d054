"""How the shipped models are made: vocabulary, networks, optimiser, loop, export.

`train(name, corpus=folder, out=folder)` makes one model from a folder of `*.jsonl.xz` (one JSON object with a `text` a
line). Interrupted runs resume from their last checkpoint. Models are opened by `unembed.models`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.training.shipped_models import train as train
else:
    __getattr__ = import_on_first_use(__name__)
