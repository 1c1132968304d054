"""A label of a memory (FFN neuron) or of an attention head, as an index stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Label:
    """A name that someone gives to a memory or a head.

    Attributes:
        index: the memory, or the head.
        label: a name or a sentence.
        author: a person, or a program and its settings.
        kind: what is labelled: "memory", "key", "value", or any other name; "head" for an attention head.
        notes: further facts that JSON can hold.
    """

    layer: int
    index: int
    label: str
    author: str = ""
    kind: str = "memory"
    notes: Mapping[str, Any] | None = None
