"""Define the label of a memory (FFN neuron) or an attention head, as an index stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Label:
    """A name that a person or a program gives to a memory or a head.

    Attributes:
        index: the index of the memory or the head in its layer.
        label: a name or a sentence.
        author: a person, or a program and its settings.
        kind: what is labelled: "memory", "key", "value", or any other name; "head" for an attention head.
        notes: further JSON values that are stored with the label.
    """

    layer: int
    index: int
    label: str
    author: str = ""
    kind: str = "memory"
    notes: Mapping[str, Any] | None = None
