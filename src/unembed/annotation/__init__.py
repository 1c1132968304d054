"""Labels of memories (FFN neurons) by people or a language model: items to annotate, files, and agreement.

The public names are imported on first use, so that labels can be read without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.annotation.agreement import label_agreement as label_agreement
    from unembed.annotation.agreement import token_agreement as token_agreement
    from unembed.annotation.files import KINDS as KINDS
    from unembed.annotation.files import Annotation as Annotation
    from unembed.annotation.files import Pattern as Pattern
    from unembed.annotation.files import add_to_index as add_to_index
    from unembed.annotation.files import load as load
    from unembed.annotation.files import patterns_table as patterns_table
    from unembed.annotation.files import summary as summary
    from unembed.annotation.from_values import automatic as automatic
    from unembed.annotation.from_values import export as export
    from unembed.annotation.label_concepts import Concept as Concept
    from unembed.annotation.label_concepts import concept as concept
    from unembed.annotation.label_concepts import concepts as concepts
    from unembed.annotation.label_concepts import memories_named as memories_named
    from unembed.annotation.queue import Item as Item
    from unembed.annotation.queue import annotation_queue as annotation_queue
    from unembed.annotation.queue import definitions as definitions
    from unembed.annotation.queue import nameable_first as nameable_first
    from unembed.annotation.queue import tokens_of_items as tokens_of_items
    from unembed.annotation.rules import NONE as NONE
    from unembed.annotation.rules import RULES as RULES
    from unembed.annotation.rules import pattern_notes as pattern_notes
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "agreement": "label_agreement token_agreement",
            "files": "KINDS Annotation Pattern add_to_index load patterns_table summary",
            "from_values": "automatic export",
            "label_concepts": "Concept concept concepts memories_named",
            "queue": "Item annotation_queue definitions item_tokens nameable_first tokens_of_items",
            "rules": "NONE RULES pattern_notes",
        },
        offered="add_to_index export load summary token_agreement",
    )
