"""What people are shown and asked, as in the papers: patterns in a key's triggers, patterns in a value's top tokens.

- A key (Geva et al. 2021, section 3): its 25 top trigger prefixes. A pattern is something that at least 3 of them
  share; it is shallow (a word, an n-gram) or semantic (a topic, a construction).
- A value (Geva et al. 2022, section 4): its 30 top tokens with WordNet descriptions. A pattern is something that at
  least 4 of them share; it is semantic, syntactic or of names.

The queue is blind: among the values stand vectors drawn at random with the mean and deviation of the layer's values,
and nothing tells them apart. What an annotator finds is stored as one label a pattern; finding none is a label as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.concepts.value_concepts import sample_memories
from unembed.concepts.wordnet import wordnet
from unembed.errors import InvalidInput
from unembed.lens import read
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder

What = Literal["key", "value", "random value"]
NONE = "(no pattern)"
"""The label of an item in which an annotator found nothing."""


@dataclass(frozen=True)
class Rules:
    """What counts as a pattern."""

    shown: int
    """Prefixes or tokens shown."""
    at_least: int
    """Members that a pattern needs."""
    kinds: tuple[str, ...]
    instruction: str


RULES: Mapping[str, Rules] = {
    "key": Rules(
        25,
        3,
        ("shallow", "semantic"),
        "Look for patterns that repeat in at least 3 of the prefixes. Describe each in a few words, say whether it is "
        "shallow (the same last words, an n-gram) or semantic (a topic, a kind of sentence), and tick the prefixes "
        "that have it. A prefix may have several patterns, or none.",
    ),
    "value": Rules(
        30,
        4,
        ("semantic", "syntactic", "names"),
        "Look for patterns that at least 4 of the tokens share. Describe each in a few words, say whether it is "
        "semantic (a topic, a meaning), syntactic (a part of speech, a form) or of names, and tick the tokens that "
        "belong to it. Pieces of words may be left out. Say so if there is none.",
    ),
}


@dataclass(frozen=True)
class Item:
    """One thing to annotate. `index` is a memory, or the number of a random vector."""

    number: int
    what: What
    layer: int
    index: int


def queue(
    lm: Decoder, what: Literal["key", "value"], *, per_layer: int = 10, random_per_layer: int = 5, seed: int = 0
) -> list[Item]:
    """What to annotate, in an order that the seed decides and that tells nothing.

    Args:
        lm: the model.
        what: keys or values.
        per_layer: memories drawn from each layer.
        random_per_layer: random vectors for each layer, among values only.
        seed: of the draw and of the order.

    Raises:
        Unsupported: the model has no memories.
    """
    found: list[tuple[What, int, int]] = [(what, n, i) for n, i in sample_memories(lm, per_layer, seed)]
    if what == "value":
        random: What = "random value"
        found.extend((random, n, i) for n in range(lm.n_layers) for i in range(random_per_layer))
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed + 1)).tolist()
    return [Item(number, *found[at]) for number, at in enumerate(order)]


@torch.no_grad()
def random_value(lm: Decoder, layer: int, number: int, seed: int = 0) -> Float[Tensor, " d_model"]:
    """A vector from a normal distribution with the mean and the deviation of a layer's values in each direction.

    Source: Geva et al. 2022, section 4 (the random baseline).
    """
    values = written_values(lm, lm.layer(layer)).float()
    generator = torch.Generator().manual_seed(seed * 1_000_003 + lm.layer(layer) * 10_007 + number)
    noise = torch.randn(values.shape[1], generator=generator).to(values.device)
    return values.mean(dim=0) + values.std(dim=0) * noise


@torch.no_grad()
def item_tokens(lm: Decoder, item: Item, seed: int = 0, top: int | None = None) -> Int[Tensor, " k"]:
    """The top tokens of an item that is a value, real or random, in the raw basis."""
    k = RULES["value"].shown if top is None else top
    if item.what == "random value":
        return read(lm, random_value(lm, item.layer, item.index, seed).to(lm.dtype)[None], k, basis="raw").ids[0]
    layer, index = lm.memory(item.layer, item.index)
    return read(lm, written_values(lm, layer, torch.tensor([index])), k, basis="raw").ids[0]


def definitions(tokens: Sequence[str]) -> list[str | None]:
    """What WordNet says of each token that is a word."""
    net = wordnet()
    return [net.definition(word) if (word := token.strip()).isalpha() and len(word) > 1 else None for token in tokens]


def pattern_notes(what: str, label: str, kind: str, members: Sequence[int]) -> dict[str, Any]:
    """The notes that a pattern's label carries.

    Args:
        what: "key" or "value".
        label: its description, or `NONE`.
        kind: one of the rules' kinds; empty where there is no pattern.
        members: places of the prefixes or tokens that have it, from 0.

    Raises:
        InvalidInput: too few members, a place that was not shown, or an unknown kind.
    """
    rules = RULES[what]
    places = sorted(set(members))
    if label == NONE:
        return {"pattern": None, "members": []}
    if kind not in rules.kinds:
        raise InvalidInput(f"a pattern of kind {kind!r}", why=f"it is none of {', '.join(rules.kinds)}")
    if len(places) < rules.at_least:
        raise InvalidInput(
            f"a pattern with {len(places)} members",
            why=f"in a {what} it needs at least {rules.at_least}",
            instead="Tick more, or say that there is no pattern",
        )
    if places[0] < 0 or places[-1] >= rules.shown:
        raise InvalidInput(f"member {places[-1]}", why=f"{rules.shown} were shown, 0 to {rules.shown - 1}")
    return {"pattern": kind, "members": places}
