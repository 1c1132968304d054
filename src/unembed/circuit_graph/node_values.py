"""Get the activations of nodes in a run, and run the model with some of them changed.

The activation of a head is its mixed values z, that of a memory (FFN neuron) its coefficient, that of a feature its
activation in an attached dictionary. If a feature is changed, its change times its decoder vector is added to what the
dictionary reconstructs; the reconstruction error stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jaxtyping import Float, Int
from torch import Tensor

from unembed.causality.rerun import n_heads_of
from unembed.dictionaries import AttachedDictionary
from unembed.linear_model.pass_tensors import PartKind
from unembed.models.decoder import Decoder
from unembed.stream.capture_points import has_point
from unembed.stream.run import Run, run

Place = tuple[PartKind, int]
"""A kind of node, and a layer."""
Values = Mapping[Place, Float[Tensor, "_batch pos _node ..."]]
Change = Callable[[Tensor, Place], Tensor]
"""Function from the activations of a layer's nodes of one kind, (batch, pos, node, ...), to new activations."""
POINTS: dict[PartKind, str] = {"head": "z", "memory": "coefficients"}


def places(lm: Decoder, dictionary: AttachedDictionary | None, kinds: Sequence[PartKind]) -> dict[Place, int]:
    """Return the number of nodes at each position, by kind and layer, for some kinds of nodes."""
    found: dict[Place, int] = {}
    replaced = replaced_layers(dictionary)
    if "memory" in kinds:
        found |= {("memory", n): lm.n_memories_of(n) for n in lm.memory_layers if n not in replaced}
    if "head" in kinds:
        found |= {("head", n): n_heads_of(lm, n) for n in range(lm.n_layers) if has_point(lm, "z", n)}
    if "feature" in kinds and dictionary is not None:
        found |= {("feature", n): part.n_features for n, part in dictionary.parts}
    return found


def replaced_layers(dictionary: AttachedDictionary | None) -> set[int]:
    """Return the layers whose memories are replaced by features, because the dictionary reconstructs mlp_out."""
    parts = () if dictionary is None else dictionary.parts
    return {layer for layer, part in parts if part.writes == "mlp_out"}


def capture_points(dictionary: AttachedDictionary | None, where: Sequence[Place]) -> list[str]:
    """Return the capture points that a run needs for the activations of nodes of some kinds and layers."""
    found = [POINTS[kind] for kind in POINTS if any(place[0] == kind for place in where)]
    if dictionary is not None and any(kind == "feature" for kind, _ in where):
        found += [part.reads for _, part in dictionary.parts]
    return list(dict.fromkeys(found))


def values(seen: Run, dictionary: AttachedDictionary | None, where: Sequence[Place]) -> Values:
    """Return the activations of nodes of some kinds and layers, from a run that captured `capture_points`."""
    found: dict[Place, Tensor] = {}
    for kind, layer in where:
        if kind == "feature":
            assert dictionary is not None
            found[kind, layer] = dictionary.features(seen, layer)
        else:
            found[kind, layer] = seen.at(POINTS[kind], layer)
    return found


def run_changed(
    lm: Decoder,
    tokens: Int[Tensor, "batch pos"],
    dictionary: AttachedDictionary | None,
    where: Sequence[Place],
    change: Change,
) -> Run:
    """Run the model with the activations of nodes of some kinds and layers changed."""
    hooks: dict[str, Callable[[Tensor, int], Tensor | None]] = {}
    wanted = set(where)

    def of_kind(kind: PartKind) -> Callable[[Tensor, int], Tensor | None]:
        return lambda t, layer: change(t, (kind, layer)) if (kind, layer) in wanted else None

    for kind, point in POINTS.items():
        if any(place[0] == kind for place in where):
            hooks[point] = of_kind(kind)
    if dictionary is not None and any(kind == "feature" for kind, _ in where):
        hooks |= _feature_hooks(dictionary, wanted, change)
    return run(lm, tokens, hooks=hooks)


def _feature_hooks(
    dictionary: AttachedDictionary, wanted: set[Place], change: Change
) -> dict[str, Callable[[Tensor, int], Tensor | None]]:
    added: dict[int, Tensor] = {}
    parts = {layer: part for layer, part in dictionary.parts if ("feature", layer) in wanted}

    def read(x: Tensor, layer: int) -> None:
        if layer in parts:
            part = parts[layer]
            features = part.encode(x)
            added[layer] = (change(features, ("feature", layer)) - features) @ part.W_dec[0]

    def write(x: Tensor, layer: int) -> Tensor | None:
        return x + added.pop(layer).to(x) if layer in added else None

    def both(x: Tensor, layer: int) -> Tensor | None:
        read(x, layer)
        return write(x, layer)

    first = dictionary.parts[0][1]
    return {first.reads: read, first.writes: write} if first.is_transcoder else {first.writes: both}
