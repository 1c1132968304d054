"""Draw cards for notebooks: a memory (FFN neuron), an attention pattern, scores of heads, or ranks by layer."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unembed.attention import HEAD_SCORES
from unembed.errors import InvalidInput, Unsupported
from unembed.memories import memory_view
from unembed.names import Mode, head_name
from unembed.notebook.drawings import Card
from unembed.notebook.result_drawings import Bars, Squares, heat
from unembed.results import Table, format_probability, format_signed, html_table, numbers, visible_html
from unembed.trace import pattern_view
from unembed.validation import positive_int

if TYPE_CHECKING:
    from unembed.attention import Circuits
    from unembed.attention.behaviour.head_scores import HeadScores
    from unembed.language_model import LanguageModel
    from unembed.names import StreamPoint
    from unembed.trace.trace import Trace

_MOST_SQUARES = 64
"""The largest number of heads for which `composition_card` draws every pair."""


def memory_card(lm: LanguageModel, layer: int, index: int, top: int = 12) -> Card:
    """Draw the tokens that a memory's value vector promotes and suppresses most.

    Args:
        top: number of promoted and of suppressed tokens.

    Raises:
        OutOfRange: the layer or the index does not exist.
        Unsupported: the model has no memories.
    """
    view = memory_view(lm, layer, index, top)
    pairs = zip(view.promoted, view.suppressed, strict=True)
    rows = [[c for s in pair for c in (visible_html(s.token), format_signed(s.score))] for pair in pairs]
    head, caption = ("promotes", "score", "suppresses", "score"), f"Layer {view.layer}, memory {view.index}"
    return Card(asdict(view), html_table(head, rows, caption=caption))


def pattern_card(trace: Trace, layer: int, head: int) -> Card:
    """Draw the attention pattern of a head on a trace's prompt: a row for each destination, a column for each source.

    Raises:
        OutOfRange: the head does not exist.
        PointMissing: the model does not return attention patterns.
    """
    view = pattern_view(trace, layer, head)
    names = [visible_html(token) for token in view.tokens]
    rows = [
        [name, *(format_probability(weight) for weight in row), *[""] * (len(names) - len(row))]
        for name, row in zip(names, view.weights, strict=True)
    ]
    caption = f"Attention of layer {view.layer}, head {view.head}"
    return Card(asdict(view), html_table(["", *names], rows, caption=caption))


def heads_card(scores: HeadScores, kind: str = "induction") -> Card:
    """Draw one score of every head, as `circuits(lm).head_scores()` returns them.

    Args:
        scores: the scores of all heads.
        kind: "induction", "previous_token", "duplicate_token", "copying" or "resting" (attention to the first
            position).

    Raises:
        InvalidInput: the kind is not one of these.
    """
    if kind not in HEAD_SCORES:
        raise InvalidInput(f"head score {kind!r}", why=f"it is not one of {', '.join(HEAD_SCORES)}")
    table = scores.to_table()
    note = f"{HEAD_SCORES[kind]}; {table.title}"
    return Card({**Squares(kind).draw(table), "definition": HEAD_SCORES[kind], "note": note}, table.fragment())


def ranks_card(
    trace: Trace, tokens: Sequence[str | int] = (), position: int = -1, point: StreamPoint = "resid_post"
) -> Card:
    """Draw ranks of tokens by layer: one line for each token, with its rank after every layer.

    Args:
        tokens: the tokens to rank; by default, the predicted token and the runner-up.
        position: the position in the prompt; negative positions count from the end.
        point: the capture point of the residual stream.

    Raises:
        NotOneToken: one of `tokens` is not a single token of the vocabulary.
        OutOfRange: the prompt has no such position.
        PointMissing: the model has no such point.
    """
    lm = trace.lm
    question = trace.question(position=position)
    ids = [lm.single_token(token) for token in tokens] or [
        t for t in (question.token, question.against) if t is not None
    ]
    names = lm.token_strings(ids)
    series: list[dict[str, Any]] = []
    for token, name in zip(ids, names, strict=True):
        ranks, probabilities = trace.ranks_and_probabilities(token, point, position=position)
        series.append({"name": name, "ranks": numbers(ranks[:, 0]), "probabilities": numbers(probabilities[:, 0])})
    layers = [str(n) for n in range(lm.n_layers)]
    note = f"Rank at {point} of every layer, after token {position % len(trace)} of the prompt"
    data = {"schema": "unembed.ranks/1", "series": series, "layers": layers, "size": lm.d_vocab, "note": note}
    rows = [[layer, *(f"{one['ranks'][n]:,}" for one in series)] for n, layer in enumerate(layers)]
    return Card(data, html_table(["layer", *map(visible_html, names)], rows, caption=html.escape(note)))


def composition_card(circuits: Circuits, mode: Mode = "k", top: int = 40) -> Card:
    """Draw the composition scores of pairs of heads: a square for each pair, or bars if there are more than 64 heads.

    Args:
        circuits: the result of `unembed.circuits(lm)`.
        mode: the input of the later head that reads the earlier one: "q", "k" or "v".
        top: number of pairs to list, largest scores first.

    Raises:
        InvalidInput: the mode is not one of these.
        Unsupported: all heads are in one layer.
    """
    missing = circuits.missing()
    known = [n for n in circuits.lm.attention_layers if n not in missing.ov and n not in missing.of(mode)]
    scores = circuits.composition(mode)[known][:, :, known].nan_to_num(0.0)
    layers, n_heads = scores.shape[:2]
    if layers < 2:
        raise Unsupported(
            f"composition in {circuits.lm.name}",
            why="all heads for which the circuits are defined are in one layer, so no head can read another",
        )
    heads = [head_name(n, h) for n in known for h in range(n_heads)]
    flat = scores.reshape(len(heads), len(heads))
    best, order = flat.flatten().sort(descending=True)
    order = order[: positive_int("top", top)]
    name = mode.upper()
    title = f"{name}-composition: norm of (W_OV of the earlier head times W_{name} of the later) over the two norms"
    columns: dict[str, list[Any]] = {
        "writer": [heads[i // len(heads)] for i in numbers(order)],
        "reader": [heads[i % len(heads)] for i in numbers(order)],
        "composition": numbers(best[: len(order)]),
    }
    table = Table(title, columns, circuits.lm.provenance())
    if len(heads) > _MOST_SQUARES:
        return Card({**Bars(("writer", "reader"), "composition").draw(table), "note": title}, table.fragment())
    # Each row is a later head, each column an earlier one. Heads of the first layer have no earlier heads to read, so
    # they have no row; heads of the last layer have no later readers, so they have no column.
    data = heat(heads[n_heads:], heads[:-n_heads], numbers(flat[:-n_heads, n_heads:].T), "composition with", title)
    return Card(data, table.fragment())
