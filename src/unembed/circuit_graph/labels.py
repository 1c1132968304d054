"""Name a node, and say in a few words what it does: what a memory or head promotes, and what a head reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.circuit_graph.node_scores import Node
from unembed.lens import comparable_basis, read
from unembed.models.decoder import Decoder
from unembed.names import HeadAddress
from unembed.stream.run import run

WORDS = 3
"""Tokens in a label."""


def node_name(lm: Decoder, node: Node, position: int) -> str:
    """Write the name of a node: L27M1392@4 for a memory at position 4, L23H4@4 for a head."""
    named = lm.memory_name(node.layer, node.index) if node.kind == "memory" else HeadAddress(node.layer, node.index)
    return f"{named}@{position}"


def text_of(lm: Decoder, tokens: Sequence[int]) -> str:
    """The text whose tokens these are, without a begin token that the tokenizer adds."""
    ids = list(tokens)
    if lm.tokenizer is None:
        return "".join(lm.token_strings(ids))
    shorter = lm.decode(ids[1:]) if len(ids) > 1 else ""
    return shorter if shorter and lm.encode(shorter)[0].tolist() == ids else lm.decode(ids)


@torch.no_grad()
def promoted(lm: Decoder, tokens: Sequence[int], nodes: Sequence[Node]) -> list[list[str]]:
    """Return the tokens that each node promotes in a run, with the sign of its coefficient or a head's z.

    Args:
        tokens: the prompt.
        nodes: at positions counted back from its end.
    """
    if not nodes:
        return []
    points = [p for p, kind in (("z", "head"), ("coefficients", "memory")) if any(n.kind == kind for n in nodes)]
    seen = run(lm, list(tokens), points, logits=False)
    vectors = torch.stack([_written(lm, seen.at, len(tokens), node) for node in nodes])
    found = read(lm, vectors, WORDS, basis=comparable_basis(lm), hidden=lm.unlisted)
    return [lm.token_strings(ids) for ids in found.ids]


def _written(lm: Decoder, at: Callable[[str, int], Tensor], length: int, node: Node) -> Float[Tensor, " d_model"]:
    """Return the direction that a node writes."""
    position = length - 1 - node.back
    if node.kind == "head":
        z = at("z", node.layer)[0, position, node.index]
        return z @ lm.weights.W_O[node.layer][node.index].to(z)
    coefficient = at("coefficients", node.layer)[0, position, node.index]
    value = lm.weights.values(node.layer, torch.tensor([node.index]))[0]
    return value * torch.where(coefficient < 0, -1.0, 1.0).to(value)
