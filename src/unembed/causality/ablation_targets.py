"""The targets of ablation: a head, a memory, a group of memories, a component or a whole layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from unembed.causality.path_ends import all_heads
from unembed.causality.rerun import layers_with, n_heads_of
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import head_name
from unembed.stream.capture_points import has_point, require_point
from unembed.validation import as_pair, as_tuple

Pair = tuple[int, int]
Heads = str | Sequence[Pair]
"""Pairs (layer, head), or "all"."""
Memories = str | Sequence[Pair] | Sequence[Sequence[Pair]] | Mapping[str, Sequence[Pair]]
"""Pairs (layer, index), groups of pairs, groups by name, or "all"."""
Components = str | Sequence[tuple[str, int]]
"""("attn_out" or "mlp_out", layer), or "all"."""
Layers = str | Sequence[int]
"""Layers, or "all"."""
Target = tuple[str, int, int | None]
"""Capture point, layer, and the index of the head or memory (None for a whole component)."""


@dataclass(frozen=True)
class Group:
    """The heads, memories or components that one ablation removes together."""

    label: str
    targets: tuple[Target, ...]

    @property
    def start(self) -> int:
        """The lowest layer in the group."""
        return min(layer for _, layer, _ in self.targets)


def groups_of(
    lm: Decoder,
    heads: Heads | None = None,
    memories: Memories | None = None,
    components: Components | None = None,
    layers: Layers | None = None,
) -> list[Group]:
    """Return one group for each ablation; if nothing is chosen, one for each head.

    Raises:
        InvalidInput: there is nothing to ablate, or a component is unknown.
        OutOfRange: the model does not have a layer, head or memory that is named.
        PointMissing: a layer does not have a component that is named.
        Unsupported: a layer has no heads or no memories to ablate.
    """
    if heads is None and memories is None and components is None and layers is None:
        heads = "all"
    found = _heads(lm, heads) + _memories(lm, memories) + _components(lm, components) + _layers(lm, layers)
    if not found:
        raise InvalidInput("an ablation without targets", why="no head, memory, component or layer is given")
    return found


def grid_of(
    lm: Decoder, heads: object, memories: object, components: object, layers: object, n: int
) -> tuple[int, ...]:
    """Return the shape of the results: (layer, head) or (layer, memory) if all of one kind are ablated, else (n,)."""
    chosen = [kind for kind in (heads, memories, components, layers) if kind is not None]
    if not chosen or (len(chosen) == 1 and isinstance(heads, str)):
        point = "z"
    elif len(chosen) == 1 and isinstance(memories, str):
        point = "coefficients"
    else:
        return (n,)
    width_of = lm.n_memories_of if point == "coefficients" else partial(n_heads_of, lm)
    rows = layers_with(lm, point)
    return (len(rows), n // len(rows)) if len({width_of(layer) for layer in rows}) == 1 else (n,)


def _heads(lm: Decoder, heads: Any) -> list[Group]:
    pairs = all_heads(lm) if _is_all("heads", heads) else as_tuple("heads", heads) if heads is not None else ()
    found = []
    for pair in pairs:
        layer, head = as_pair("head", pair)
        layer = lm.layer(layer)
        require_point(lm, "z", layer)
        found.append(_group(lm, [("z", layer, lm.head(head, layer))]))
    return found


def _memories(lm: Decoder, memories: Any) -> list[Group]:
    if memories is None:
        return []
    if _is_all("memories", memories):
        memories = [(n, i) for n in layers_with(lm, "coefficients") for i in range(lm.weights.n_memories[n])]
    if isinstance(memories, Mapping):
        named = {name: _pairs(lm, pairs) for name, pairs in memories.items()}
        return [_group(lm, t, name if len(t) == 1 else f"{name} ({len(t)} memories)") for name, t in named.items()]
    found = []
    for group in as_tuple("memories", memories):
        first = next(iter(as_tuple("memory", group)), None)
        found.append(_group(lm, _pairs(lm, group if isinstance(first, (tuple, list)) else [group])))
    return found


def _pairs(lm: Decoder, pairs: Any) -> list[Target]:
    found: list[Target] = [("coefficients", *lm.memory(*as_pair("memory", pair))) for pair in pairs]
    if not found:
        raise InvalidInput("an empty group of memories", instead="Give at least one pair (layer, index) in each group")
    return list(dict.fromkeys(found))


def _components(lm: Decoder, components: Any) -> list[Group]:
    if components is None:
        return []
    if _is_all("components", components):
        points = ("attn_out", "mlp_out")
        components = [(p, n) for p in points for n in range(lm.n_layers) if has_point(lm, p, n)]
    found = []
    for point, layer in components:
        if point not in ("attn_out", "mlp_out"):
            raise InvalidInput(f"component {point!r}", why="it is not attn_out or mlp_out")
        require_point(lm, point, lm.layer(layer))
        found.append(_group(lm, [(point, lm.layer(layer), None)]))
    return found


def _layers(lm: Decoder, layers: Any) -> list[Group]:
    if layers is None:
        return []
    numbers = range(lm.n_layers) if _is_all("layers", layers) else [lm.layer(n) for n in as_tuple("layers", layers)]
    return [
        _group(lm, [(p, n, None) for p in ("attn_out", "mlp_out") if has_point(lm, p, n)], f"layer {n}")
        for n in numbers
    ]


def _is_all(what: str, chosen: object) -> bool:
    if isinstance(chosen, str) and chosen != "all":
        raise InvalidInput(f"{what} {chosen!r:.60}", why='it is neither "all" nor a list')
    return isinstance(chosen, str)


def _group(lm: Decoder, targets: Sequence[Target], label: str | None = None) -> Group:
    def one(target: Target) -> str:
        point, layer, index = target
        if index is None:
            return f"{point} {layer}"
        return head_name(layer, index) if point == "z" else lm.memory_name(layer, index)

    joined = " + ".join(map(one, targets[:4])) + (f" + {len(targets) - 4} more" if len(targets) > 4 else "")
    return Group(label or joined, tuple(targets))
