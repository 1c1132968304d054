"""Convert a circuit to an attribution graph: JSON that the viewers of circuit-tracer and Neuronpedia open.

The nodes of these viewers are features, errors, embeddings and logits. Memories, heads and dictionary features are
written as features. Sums (the other nodes of a layer, biases, changes of attention patterns) are written as errors,
which the viewers draw as diamonds.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from unembed.causality.rerun import n_heads_of
from unembed.circuit_graph.flow_view import fed_position
from unembed.circuit_graph.graph import KINDS, METRIC, CircuitGraph
from unembed.circuit_graph.in_words import CircuitWords
from unembed.circuit_graph.labels import text_of
from unembed.errors import InvalidInput, Unsupported
from unembed.results import quoted
from unembed.stream.run import run
from unembed.version import __version__

FEATURE, ERROR, EMBEDDING, LOGIT = "cross layer transcoder", "mlp reconstruction error", "embedding", "logit"
SHARE = 0.8
"""When a viewer opens the graph, it shows the largest nodes, which together have this share of all |relevance|."""
_PINNED = 10


def viewer_graph(graph: CircuitGraph) -> dict[str, Any]:
    """Return the graph of one prompt as a dict: the JSON for circuit-tracer's and Neuronpedia's viewers.

    Each node's `influence` is the share of all |relevance| that this node and all nodes with a larger |relevance| have
    together; the viewers hide small nodes by it. Groups become the viewers' supernodes. Weights are those of the
    graph's edges, in logits.

    Raises:
        InvalidInput: the graph is of several prompts.
        Unsupported: the graph was opened from a file and has no model yet.
    """
    if len(graph.cases) != 1:
        raise InvalidInput(f"a viewer's graph of {len(graph.cases)} prompts", why="a viewer shows one prompt")
    if graph.lm is None:
        raise Unsupported(
            "a viewer's graph of this circuit",
            why="it was opened from a file and has no model yet",
            instead="Use graph.bound_to(lm)",
        )
    lm, case, words = graph.lm, graph.cases[0], CircuitWords(graph)
    rows = list(graph.nodes.rows())
    shares = _shares(rows)
    nodes = {row["name"]: _node(words, row, shares[row["name"]]) for row in rows}
    answer = _answer(words)
    names = {name: node["node_id"] for name, node in nodes.items()} | {METRIC: answer["node_id"]}
    slug = re.sub(r"[^a-z0-9]+", "-", f"{lm.name} {text_of(lm, case.prompt)}".lower()).strip("-")[:80]
    writers = [row["name"] for row in rows if row["kind"] in KINDS]
    return {
        "metadata": {
            "slug": slug,
            "scan": lm.name,
            "transcoder_list": [],
            "prompt_tokens": list(graph.tokens),
            "prompt": text_of(lm, case.prompt),
            "node_threshold": SHARE,
            "schema_version": 1,
            "info": {"description": words.subject, "generator": {"name": "unembed", "version": __version__}},
        },
        "qParams": {
            "pinnedIds": [answer["node_id"], *(names[name] for name in writers[:_PINNED])],
            "supernodes": [[name, *(names[node] for node in some)] for name, some in graph.groups.items()],
            "linkType": "both",
            "clickedId": names[writers[0]] if writers else "",
            "sg_pos": "",
        },
        "nodes": [*nodes.values(), answer],
        "links": [
            {"source": names[e["source"]], "target": names[e["target"]], "weight": e["weight"]}
            for e in graph.edges.rows()
        ],
    }


def _shares(rows: list[dict[str, Any]]) -> Mapping[str, float]:
    """Return the share of |relevance| that each node has together with all larger nodes."""
    ordered = sorted(rows, key=lambda row: -abs(row["relevance"] or 0.0))
    sums = list(itertools.accumulate(abs(row["relevance"] or 0.0) for row in ordered))
    whole = (sums[-1] if sums else 0.0) or 1.0
    return {row["name"]: total / whole for row, total in zip(ordered, sums, strict=True)}


def _node(words: CircuitWords, row: dict[str, Any], share: float) -> dict[str, Any]:
    kind, name, last = row["kind"], row["name"], len(words.graph.tokens) - 1
    if kind == "token":
        token, at = words.graph.cases[0].prompt[row["position"]], row["position"]
        return _written(f"E_{token}_{at}", at, "E", at, EMBEDDING, "", share)
    layer = row["layer"] or 0
    if kind in KINDS:
        # The viewers identify a feature by its layer and number. In each layer, memories are numbered first, then
        # heads, then dictionary features, so that no two nodes have the same number.
        after = words.lm.n_memories_of(layer) if kind != "memory" and layer in words.lm.memory_layers else 0
        after += n_heads_of(words.lm, layer) if kind == "feature" else 0
        index = row["index"] + after
        label = f"{name.split('@')[0]}: {row['label']}"
        written = _written(
            f"{layer}_{index}_{row['position']}",
            _paired(layer, index),
            str(layer),
            row["position"],
            FEATURE,
            label,
            share,
        )
        return {**written, "activation": row["relevance"]}
    at = fed_position(words, name)
    position = last if at is None else at
    return _written(
        f"{layer}_{name.replace(' ', '-')}_{position}", -1, str(layer), position, ERROR, row["label"], share
    )


def _written(
    node_id: str, feature: int, layer: str, position: int, kind: str, label: str, share: float | None
) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "feature": feature,
        "layer": layer,
        "ctx_idx": position,
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": False,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": node_id,
        "clerp": label,
        "influence": share,
        "activation": None,
    }


def _paired(layer: int, index: int) -> int:
    """Return the number by which the viewers look up a feature of a layer: Cantor's pairing function."""
    return (layer + index) * (layer + index + 1) // 2 + index


def _answer(words: CircuitWords) -> dict[str, Any]:
    """Return the metric as an output node; the viewers take the probability from its label."""
    lm, case, last = words.lm, words.graph.cases[0], len(words.graph.tokens) - 1
    probability = float(run(lm, list(case.prompt)).logits[0, -1].float().softmax(-1)[case.token])
    texts = [quoted(text) for text in lm.token_strings([t for t in (case.token, case.against) if t is not None])]
    layer = str(lm.n_layers + 1)
    node_id = f"{layer}_{case.token}_{last}"
    written = _written(
        node_id,
        case.token,
        layer,
        last,
        LOGIT,
        f"Output {' over '.join(texts)} (p={probability:.3f})",
        None,
    )
    return {**written, "token_prob": probability, "is_target_logit": True}
