"""Cards: drawings of one memory (FFN neuron), of one head on a prompt, and of the scores of all heads."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from unembed.errors import InvalidInput
from unembed.notebook.drawings import html_of
from unembed.notebook.widgets import widget_of
from unembed.results import visible_html
from unembed.schemas.heads import DEFINITIONS
from unembed.schemas.memory import memory_view
from unembed.schemas.numbers import numbers

if TYPE_CHECKING:
    from anywidget import AnyWidget

    from unembed.attention.head_scores import HeadScores
    from unembed.language_model import LanguageModel
    from unembed.trace.trace import Trace


@dataclass(frozen=True)
class Card:
    """The data of a drawing, and the same data as a table."""

    data: dict[str, Any]
    table: str

    def _repr_html_(self) -> str:
        return html_of(self)

    def widget(self) -> AnyWidget:
        """The drawing as a Jupyter widget (needs `unembed[notebook]`)."""
        return widget_of(self)


def memory_card(lm: LanguageModel, layer: int, index: int, top: int = 12) -> Card:
    """A memory's value: the tokens that it promotes and suppresses most.

    Args:
        lm: the model.
        layer: the layer.
        index: the memory.
        top: how many tokens at either end.

    Raises:
        OutOfRange: the layer or the index does not exist.
        Unsupported: the model has no memories.
    """
    view = memory_view(lm, layer, index, top)
    pairs = zip(view.promoted, view.suppressed, strict=True)
    rows = [[c for s in pair for c in (visible_html(s.token), f"{s.score:+.4g}")] for pair in pairs]
    head = ("promotes", "score", "suppresses", "score")
    return Card(asdict(view), _table(f"Layer {view.layer}, memory {view.index}", head, rows))


def pattern_card(trace: Trace, layer: int, head: int) -> Card:
    """The attention pattern of a head on a trace's prompt: a row for each destination, over its sources.

    Raises:
        OutOfRange: the head does not exist.
        PointMissing: the model does not return attention patterns.
    """
    layer, head = trace.lm.layer(layer), trace.lm.head(head)
    pattern = trace.run_with(("pattern",)).at("pattern", layer)[0, head]
    weights: list[list[float]] = [numbers(row[: i + 1]) for i, row in enumerate(pattern)]
    tokens = trace.token_strings
    data = {"schema": "unembed.pattern/1", "layer": layer, "head": head, "tokens": tokens, "weights": weights}
    rows = [
        [visible_html(tokens[dst]), *(f"{w:.0%}" for w in row), *[""] * (len(tokens) - len(row))]
        for dst, row in enumerate(weights)
    ]
    names = ["", *(visible_html(token) for token in tokens)]
    return Card(data, _table(f"Attention of layer {layer}, head {head}", names, rows))


def heads_card(scores: HeadScores, kind: str = "induction") -> Card:
    """One score of every head, as `circuits(lm).head_scores()` returns them.

    Args:
        scores: the scores of all heads.
        kind: "induction", "previous_token", "duplicate_token", "copying" or "resting".

    Raises:
        InvalidInput: the kind is not one of these.
    """
    if kind not in DEFINITIONS:
        raise InvalidInput(f"head score {kind!r}", why=f"it is not one of {', '.join(DEFINITIONS)}")
    found: list[list[float]] = numbers(scores[kind])
    note = f"{DEFINITIONS[kind]}; {scores.by_sequence.shape[1]} sequences of 2 x {scores.length} tokens"
    data = {"schema": "unembed.heads/2", "scores": found, "definition": DEFINITIONS[kind], "note": note}
    rows = [[str(n), *(f"{x:.3g}" for x in row)] for n, row in reversed(list(enumerate(found)))]
    names = ["layer", *(f"head {i}" for i in range(len(found[0])))]
    return Card(data, _table(html.escape(note), names, rows))


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    names = "".join(f"<th>{name}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{caption}</caption><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"
