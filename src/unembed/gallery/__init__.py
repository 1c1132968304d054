"""The gallery of memories (FFN neurons): those that do something a person can name, and what that is.

Five measures are evidence, each with a size and a p-value (they are called ingredients): coherence of the promoted
tokens, a concept that they share, a pattern in the texts on which the memory fires most (its triggers), agreement of
the promoted tokens with the tokens that follow these texts, and the effect of removing the memory there. An index has
the texts; without one, only the concept can be measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.gallery.candidates import TriggerText as TriggerText
    from unembed.gallery.descriptions import MemoryDescriptions as MemoryDescriptions
    from unembed.gallery.descriptions import atlas_descriptions as atlas_descriptions
    from unembed.gallery.descriptions import memory_descriptions as memory_descriptions
    from unembed.gallery.descriptions import memory_gallery as memory_gallery
    from unembed.gallery.descriptions import saved_descriptions as saved_descriptions
    from unembed.gallery.descriptions import saved_gallery as saved_gallery
    from unembed.gallery.evidence import INGREDIENTS as INGREDIENTS
    from unembed.gallery.evidence import Evidence as Evidence
    from unembed.gallery.evidence import MemoryEvidence as MemoryEvidence
    from unembed.gallery.gallery import ALIKE as ALIKE
    from unembed.gallery.gallery import FILE as FILE
    from unembed.gallery.gallery import SAVED as SAVED
    from unembed.gallery.gallery import Gallery as Gallery
    from unembed.gallery.gallery import reader as reader
    from unembed.gallery.ranking import rank_memories as rank_memories
    from unembed.gallery.saved_progress import SavedProgress as SavedProgress
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "descriptions": (
                "MemoryDescriptions atlas_descriptions memory_descriptions memory_gallery saved_descriptions "
                "saved_gallery"
            ),
            "evidence": "INGREDIENTS Evidence MemoryEvidence",
            "gallery": "ALIKE FILE SAVED Gallery reader",
            "candidates": "TriggerText",
            "ranking": "rank_memories",
            "saved_progress": "SavedProgress",
        },
    )
