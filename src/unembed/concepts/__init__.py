"""Concepts of memories (FFN neurons): classes of tokens, WordNet, embeddings, annotations, a judge, agreement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.concepts import annotation as annotation
from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.concepts.label_concepts import Concept as Concept
    from unembed.concepts.label_concepts import concept as concept
    from unembed.concepts.label_concepts import concepts as concepts
    from unembed.concepts.label_concepts import memories_named as memories_named
else:
    __getattr__ = import_on_first_use(__name__)
