"""The two ends of a path: the component whose output is replaced (sender), and the one that receives it (receiver).

Both are given as text. A sender is "L0H3" (a head), "L5M278" (a memory), "attn_out 2", "mlp_out 2" or "layer 2" (both).
A receiver is "L1H4.q", "L1H4.k" or "L1H4.v" (a head's queries, keys or values), "attn_out 2", "mlp_out 2", "layer 2" or
"logits".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from unembed.causality.rerun import layers_with, n_heads_of
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import head_name, head_named, memory_name, parse_memory

PARTS = ("q", "k", "v")
_SENDERS = "L0H3, L5M278, attn_out 2, mlp_out 2, layer 2, or heads for all heads"
_RECEIVERS = "L1H4.q, L1H4.k, L1H4.v, L1H4 (all three), attn_out 2, mlp_out 2, layer 2, logits, or heads for all heads"


@dataclass(frozen=True)
class End:
    """A sender or a receiver of a path.

    Its `kind` is attn_out, mlp_out or layer (both). The kind of a sender may also be z (a head) or coefficients (a
    memory), that of a receiver q, k or v (of a head), or logits.
    """

    kind: str
    layer: int
    index: int | None = None

    def __str__(self) -> str:
        """Return the name as a user types it."""
        if self.index is None:
            return "logits" if self.kind == "logits" else f"{self.kind} {self.layer}"
        name = (memory_name if self.kind == "coefficients" else head_name)(self.layer, self.index)
        return f"{name}.{self.kind}" if self.kind in PARTS else name

    @property
    def points(self) -> tuple[str, ...]:
        """The capture points of the activations to replace, if this is a sender."""
        return ("attn_out", "mlp_out") if self.kind == "layer" else (self.kind,)


def senders_of(lm: Decoder, given: str | Sequence[str]) -> list[End]:
    """Return the senders with these names, each once, in the given order.

    Raises:
        InvalidInput: a name is not that of a sender, or there are no names.
        OutOfRange: the model does not have a layer, head or memory that is named.
        Unsupported: a layer has no heads or no memories.
    """
    return _ends(lm, given, "sender", "writer", ("z",), _SENDERS)


def receivers_of(lm: Decoder, given: str | Sequence[str]) -> list[End]:
    """Return the receivers with these names, each once, in the given order.

    Raises:
        InvalidInput: a name is not that of a receiver, or there are no names.
        OutOfRange: the model does not have a layer or head that is named.
    """
    return _ends(lm, given, "receiver", "reader", PARTS, _RECEIVERS)


def _ends(lm: Decoder, given: str | Sequence[str], what: str, role: str, parts: Sequence[str], forms: str) -> list[End]:
    texts = [given] if isinstance(given, str) else list(given)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"{what}s {given!r:.60}", why="it is not a list of names", instead=f"Use {forms}")
    found: list[End] = []
    for text in map(str.strip, texts):
        name, dot, input_ = text.partition(".")
        if text == "heads":
            found += [End(part, n, h) for n, h in all_heads(lm) for part in parts]
        elif (head := head_named(name)) and (not dot or (input_ in PARTS and input_ in parts)):
            found += [End(part, *lm.layer_and_head(*head)) for part in ([input_] if dot else parts)]
        elif component := re.fullmatch(r"(attn_out|mlp_out|layer) (\d+)", text):
            found.append(End(component[1], lm.layer(int(component[2]))))
        elif what == "receiver" and text == "logits":
            found.append(End("logits", lm.n_layers))
        elif what == "sender" and text.startswith("L") and (memory := parse_memory(text)) is not None:
            found.append(End("coefficients", *lm.memory(*memory)))
        else:
            raise InvalidInput(f"{what} {text!r:.60}", why=f"it is not the name of a {role}", instead=f"Use {forms}")
    return list(dict.fromkeys(found))


def reaches(lm: Decoder, sender: End, receiver: End) -> bool:
    """Tell whether the receiver reads the residual stream after the sender's output has been added to it."""
    if receiver.layer != sender.layer:
        return receiver.layer > sender.layer
    from_mixer = sender.kind in ("z", "attn_out")
    return receiver.kind == "mlp_out" and from_mixer and lm.structure.blocks[sender.layer].is_sequential


def all_heads(lm: Decoder) -> list[tuple[int, int]]:
    """Return (layer, head) for every head of the model, layer by layer.

    Raises:
        Unsupported: the model has no heads.
    """
    return [(layer, head) for layer in layers_with(lm, "z") for head in range(n_heads_of(lm, layer))]
