"""Labels that people and judges give to memories (FFN neurons): the queue, files, the judge and agreement.

Names are imported on first use, so that labels can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_HOMES = {
    "label_agreement": "unembed.concepts.annotation.agreement",
    "token_agreement": "unembed.concepts.annotation.agreement",
    "KINDS": "unembed.concepts.annotation.files",
    "Annotation": "unembed.concepts.annotation.files",
    "Pattern": "unembed.concepts.annotation.files",
    "add_to_index": "unembed.concepts.annotation.files",
    "automatic": "unembed.concepts.annotation.files",
    "export": "unembed.concepts.annotation.files",
    "load": "unembed.concepts.annotation.files",
    "patterns_table": "unembed.concepts.annotation.files",
    "summary": "unembed.concepts.annotation.files",
}

if TYPE_CHECKING:
    from unembed.concepts.annotation.agreement import label_agreement as label_agreement
    from unembed.concepts.annotation.agreement import token_agreement as token_agreement
    from unembed.concepts.annotation.files import KINDS as KINDS
    from unembed.concepts.annotation.files import Annotation as Annotation
    from unembed.concepts.annotation.files import Pattern as Pattern
    from unembed.concepts.annotation.files import add_to_index as add_to_index
    from unembed.concepts.annotation.files import automatic as automatic
    from unembed.concepts.annotation.files import export as export
    from unembed.concepts.annotation.files import load as load
    from unembed.concepts.annotation.files import patterns_table as patterns_table
    from unembed.concepts.annotation.files import summary as summary
else:

    def __getattr__(name: str) -> object:
        """Import a public name on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
