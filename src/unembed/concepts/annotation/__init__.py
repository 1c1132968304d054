"""Labels that people and judges give to memories (FFN neurons): the queue, files, the judge and agreement.

Names are imported on first use, so that labels can be read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.concepts.annotation.agreement import label_agreement as label_agreement
    from unembed.concepts.annotation.agreement import token_agreement as token_agreement
    from unembed.concepts.annotation.files import KINDS as KINDS
    from unembed.concepts.annotation.files import Annotation as Annotation
    from unembed.concepts.annotation.files import Pattern as Pattern
    from unembed.concepts.annotation.files import add_to_index as add_to_index
    from unembed.concepts.annotation.files import load as load
    from unembed.concepts.annotation.files import patterns_table as patterns_table
    from unembed.concepts.annotation.files import summary as summary
    from unembed.concepts.annotation.from_values import automatic as automatic
    from unembed.concepts.annotation.from_values import export as export
    from unembed.concepts.annotation.queue import Item as Item
    from unembed.concepts.annotation.queue import annotation_queue as annotation_queue
    from unembed.concepts.annotation.queue import definitions as definitions
    from unembed.concepts.annotation.queue import item_tokens as item_tokens
    from unembed.concepts.annotation.rules import NONE as NONE
    from unembed.concepts.annotation.rules import RULES as RULES
    from unembed.concepts.annotation.rules import pattern_notes as pattern_notes
else:
    __getattr__ = import_on_first_use(__name__)
