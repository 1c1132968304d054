"""Make the features of an attached dictionary nodes of a linear pass, in place of memories (FFN neurons).

The activation that a dictionary reconstructs is the sum of its features times their decoder vectors, its bias, and its
error. A feature f(z) = z * c, with c constant, is linear in the input of the dictionary. The error is a node without
incoming edges.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.circuit_graph.node_values import replaced_layers
from unembed.dictionaries import AttachedDictionary, Dictionary
from unembed.errors import Unsupported
from unembed.linear_model.linear_rules import linearized, ratio
from unembed.linear_model.pass_tensors import Closed, LinearPass, OtherNodes, Part, bias_term
from unembed.stream.hooks import Hook

WRITES = ("mlp_out", "attn_out", "resid_post")
READS = ("mlp_in", "attn_in", "resid_pre", "resid_mid", *WRITES)
ERROR = "dictionary error"


def require_nodes(dictionary: AttachedDictionary) -> None:
    """Refuse dictionaries whose features cannot be nodes.

    Raises:
        Unsupported: the features write to several layers, the dictionaries have different capture points, or a capture
            point is not in `READS` or `WRITES`.
    """
    parts = [part for _, part in dictionary.parts]
    what = f"a circuit with the features of {parts[0].name}"
    if any(len(part.W_dec) > 1 for part in parts):
        raise Unsupported(what, why="each feature writes to several layers", instead="Give a transcoder for each layer")
    if len({(part.reads, part.writes) for part in parts}) > 1 or len(dict(dictionary.parts)) < len(parts):
        raise Unsupported(
            what, why="its dictionaries have different capture points", instead="Attach dictionaries of one kind"
        )
    if parts[0].writes not in WRITES or parts[0].reads not in READS:
        points = f"{parts[0].reads} -> {parts[0].writes}"
        raise Unsupported(
            what, why=f"their capture points are {points}", instead=f"Use a dictionary that writes {', '.join(WRITES)}"
        )


def in_place_of_memories(dictionary: AttachedDictionary | None) -> OtherNodes | None:
    """Return the features of a dictionary, for use as nodes of a linear pass.

    In layers whose mlp_out the dictionary reconstructs, its features replace the memories.
    """
    if dictionary is None:
        return None
    return OtherNodes(replaced_layers(dictionary), lambda made: feature_hooks(made, dictionary))


def feature_hooks(
    made: LinearPass, dictionary: AttachedDictionary
) -> tuple[dict[tuple[str, int], Callable[[Tensor], None]], dict[tuple[str, int], Hook]]:
    """Return the capture callbacks and the hooks that make a dictionary's features nodes of a linear pass."""
    waiting: dict[int, Tensor] = {}
    captures: dict[tuple[str, int], Callable[[Tensor], None]] = {}
    hooks: dict[tuple[str, int], Hook] = {}

    def reader(layer: int, part: Dictionary) -> Callable[[Tensor], None]:
        return lambda x: waiting.__setitem__(layer, _nodes(made, layer, part, x))

    def writer(layer: int, part: Dictionary) -> Hook:
        def change(x: Tensor, _layer: int) -> Tensor:
            if not part.is_transcoder:
                waiting[layer] = _nodes(made, layer, part, x)
            return _written(made, layer, part, waiting.pop(layer), x)

        return change

    for layer, part in dictionary.parts:
        hooks[part.writes, layer] = writer(layer, part)
        if part.is_transcoder:
            captures[part.reads, layer] = reader(layer, part)
    return captures, hooks


def _as_wide(part: Dictionary, x: Tensor) -> Dictionary:
    """Return the dictionary in its own dtype or the model's, whichever is more precise, so that sums stay accurate."""
    dtype = torch.promote_types(part.W_enc.dtype, x.dtype)
    return part if dtype == part.W_enc.dtype else part.to(x.device, dtype)


def _nodes(made: LinearPass, layer: int, part: Dictionary, x: Tensor) -> Float[Tensor, "batch pos feature"]:
    """Return the features of a layer as nodes that are linear in the input of the dictionary."""
    part = _as_wide(part, x)
    own = part.encode(x.detach())
    read = x.to(own)
    read = read - read.mean(-1, keepdim=True) if part.centred else read
    scale, bias = torch.ones_like(part.b_enc), part.b_enc
    if part.activation == "gated":
        assert part.r_mag is not None and part.b_mag is not None
        scale, bias = part.r_mag.exp(), part.b_mag
    if part.b_in is not None:
        bias = bias - (part.b_in @ part.W_enc) * scale
    factor = made.bias(layer, "dictionary keys")
    before = (read @ part.W_enc) * scale + bias
    before = before + bias_term(factor, bias, before)
    linear = before * ratio(own, before).to(before)
    node = made.node(own, linear)
    made.parts["feature", layer] = Part("feature", layer, node, linear)
    return node


def _written(made: LinearPass, layer: int, part: Dictionary, node: Tensor, x: Tensor) -> Tensor:
    """Return the reconstructed activation with its value unchanged, and connect it to the features in the graph.

    In the backward pass, its gradient goes to the features, bias and error of the dictionary, whose sum it is.
    """
    part = _as_wide(part, x)
    written = node @ part.W_dec[0]
    rest = x.detach().to(written) - written.detach() - part.b_dec
    error = rest.clone().requires_grad_()
    made.closed.append(Closed(layer, ERROR, error))
    factor = made.bias(layer, "dictionary")
    return linearized(x, written + error + bias_term(factor, part.b_dec, written))
