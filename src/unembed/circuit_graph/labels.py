"""Name a node, and get the tokens that it promotes and the direction that it adds to the residual stream."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.circuit_graph.node_scores import Node
from unembed.circuit_graph.node_values import Place, capture_points, values
from unembed.dictionaries import AttachedDictionary
from unembed.gallery import MemoryDescriptions
from unembed.lens import comparable_basis, read
from unembed.models.decoder import Decoder
from unembed.names import HeadAddress
from unembed.results import Table, quoted
from unembed.stream.run import run

WORDS = 3
"""Number of promoted tokens of a node."""
_OF_ATLAS = " (atlas); "
_READS = re.compile(r"@(-?\d+), promotes ")
_PROMOTED = re.compile(r'"((?:[^"]|"(?! "|$))*)"')


def node_name(lm: Decoder, node: Node, position: int) -> str:
    """Write the name of a node: L27M1392@4 for a memory at position 4, L23H4@4 for a head, L5F12@4 for a feature."""
    if node.kind == "feature":
        return f"L{node.layer}F{node.index}@{position}"
    named = lm.memory_name(node.layer, node.index) if node.kind == "memory" else HeadAddress(node.layer, node.index)
    return f"{named}@{position}"


def label_of(reads: str, promoted: Sequence[str], atlas: str | None) -> str:
    """Return the label of a node: an atlas's description if there is one, where a head reads, and promoted tokens."""
    of_atlas = "" if atlas is None else f"{atlas}{_OF_ATLAS}"
    return f"{of_atlas}{reads}promotes {' '.join(map(quoted, promoted))}"


def with_parts_of_labels(nodes: Table) -> Table:
    """Return a table of nodes with `reads`, `promoted_tokens` and `atlas`; older files have these only in labels."""
    if "promoted_tokens" in nodes.column_names:
        return nodes
    columns: dict[str, list[object]] = {"reads": [], "promoted_tokens": [], "atlas": []}
    for label in nodes["label"]:
        before, found, promoted = label.rpartition("promotes ")
        reads = _READS.search(label)
        columns["reads"].append(None if reads is None else int(reads[1]))
        columns["promoted_tokens"].append([_text(one) for one in _PROMOTED.findall(promoted)] if found else [])
        columns["atlas"].append(before.split(_OF_ATLAS)[0] if _OF_ATLAS in before else None)
    return Table(nodes.title, {**nodes.columns, **columns}, nodes.provenance)


def _text(shown: str) -> str:
    return shown.replace("·", " ").replace("↵", "\n").replace("⇥", "\t")


def text_of(lm: Decoder, tokens: Sequence[int]) -> str:
    """Return the text of some tokens, without a beginning-of-sequence token that the tokenizer adds."""
    ids = list(tokens)
    if lm.tokenizer is None:
        return "".join(lm.token_strings(ids))
    shorter = lm.decode(ids[1:]) if len(ids) > 1 else ""
    return shorter if shorter and lm.encode(shorter)[0].tolist() == ids else lm.decode(ids)


@torch.no_grad()
def promoted(
    lm: Decoder, tokens: Sequence[int], nodes: Sequence[Node], dictionary: AttachedDictionary | None = None
) -> list[list[str]]:
    """Return the tokens that the output of each node, in a run of the prompt `tokens`, promotes most."""
    if not nodes:
        return []
    found = read(lm, written(lm, tokens, nodes, dictionary), WORDS, basis=comparable_basis(lm), hidden=lm.unlisted)
    return [lm.token_strings(ids) for ids in found.ids]


@torch.no_grad()
def described(
    lm: Decoder, tokens: Sequence[int], nodes: Sequence[Node], atlas: MemoryDescriptions | None
) -> dict[int, str]:
    """Return the tested descriptions that an atlas has of the memories among `nodes`, by index in `nodes`.

    An atlas describes positive and negative coefficients of a memory separately. The description returned is that for
    the sign of the coefficient in a run of the prompt `tokens`.
    """
    where: list[Place] = list({(node.kind, node.layer): None for node in nodes if node.kind == "memory"})
    if atlas is None or not where:
        return {}
    seen = run(lm, list(tokens), capture_points(None, where), logits=False)
    own, found = values(seen, None, where), dict[int, str]()
    for number, node in enumerate(nodes):
        if node.kind == "memory":
            coefficient = own["memory", node.layer][0][-1 - node.back, node.index]
            if text := atlas.of(node.layer, node.index, negative=bool(coefficient < 0)):
                found[number] = text
    return found


@torch.no_grad()
def written(
    lm: Decoder, tokens: Sequence[int], nodes: Sequence[Node], dictionary: AttachedDictionary | None = None
) -> Float[Tensor, "node d_model"]:
    """Return the direction in which each node changes the residual stream in a run of the prompt `tokens`.

    It is z W_O for a head, the value vector with the sign of the coefficient for a memory, and the decoder vector for a
    dictionary feature.
    """
    where: list[Place] = list({(node.kind, node.layer): None for node in nodes})
    seen = run(lm, list(tokens), capture_points(dictionary, where), logits=False)
    own = values(seen, dictionary, where)
    return torch.stack([_written(lm, own[node.kind, node.layer][0], node, dictionary) for node in nodes])


def _written(
    lm: Decoder, own: Float[Tensor, "pos node ..."], node: Node, dictionary: AttachedDictionary | None
) -> Float[Tensor, " d_model"]:
    number = own[len(own) - 1 - node.back, node.index]
    if node.kind == "head":
        return number @ lm.weights.W_O[node.layer][node.index].to(number)
    if node.kind == "feature":
        assert dictionary is not None
        return dictionary.part(node.layer).W_dec[0][node.index].to(lm.dtype)
    value = lm.weights.values(node.layer, torch.tensor([node.index]))[0]
    return value * torch.where(number < 0, -1.0, 1.0).to(value)
