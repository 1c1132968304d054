"""Sections about whole models: the direct path, path expansion, in-context learning, the stream's geometry."""

from __future__ import annotations

from unembed.attention.behaviour.in_context import in_context_section
from unembed.attention.paths.expansion import expansion_section
from unembed.attention.paths.geometry import subspaces, virtual_weights
from unembed.attention.paths.stream import stream_section
from unembed.attention.paths.term_importance import importance_section
from unembed.attention.text.direct_path import direct_path_section
from unembed.document.model import Section
from unembed.reports.elhage2021.measurements import Measurements


def zero_layers(m: Measurements) -> list[Section]:
    """The direct path compared with the corpus' bigrams."""
    return [direct_path_section(m.lm, m.direct_path, m.provenance)]


def expansion(m: Measurements) -> list[Section]:
    """One prompt's predicted logit by path."""
    return [expansion_section(m.circuits, m.expansion, m.predicted, 20, m.provenance)]


def importance(m: Measurements) -> list[Section]:
    """How much each order of path matters on text."""
    return [importance_section(m.term_importance, m.provenance)]


def in_context(m: Measurements) -> list[Section]:
    """Losses by position; nothing where documents are too short."""
    found = m.in_context
    if found is None:
        return []
    return [in_context_section(found.model, found.without, found.without_others, m.provenance)]


def stream(m: Measurements) -> list[Section]:
    """The residual stream as a channel."""
    weights, spaces = virtual_weights(m.lm, m.basis), subspaces(m.lm, m.basis)
    return [stream_section(m.circuits, weights, spaces, m.memory_management, m.provenance)]
