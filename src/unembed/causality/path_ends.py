"""Where a path starts and ends: a head, a memory, a component or a layer that writes, and what reads it.

Ends are written as text: "L0H3" (a head), "L5M278" (a memory), "attn_out 2", "mlp_out 2", "layer 2" (both); as
receivers "L1H4.q", "L1H4.k", "L1H4.v" (what a head reads), "attn_out 2", "mlp_out 2", "layer 2" and "logits".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from unembed.causality.rerun import layers_with, n_heads_of
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import parse_memory

PARTS = ("q", "k", "v")
_SENDERS = "L0H3, L5M278, attn_out 2, mlp_out 2, layer 2, or heads for all heads"
_RECEIVERS = "L1H4.q, L1H4.k, L1H4.v, L1H4 (all three), attn_out 2, mlp_out 2, layer 2, logits, or heads for all heads"


@dataclass(frozen=True)
class Sender:
    """A writer: `kind` is z (a head), coefficients (a memory), attn_out, mlp_out or layer (both)."""

    kind: str
    layer: int
    index: int | None = None

    def __str__(self) -> str:
        """As it is written."""
        return _written(self.kind, self.layer, self.index)

    @property
    def points(self) -> tuple[str, ...]:
        """The activations that are replaced."""
        return ("attn_out", "mlp_out") if self.kind == "layer" else (self.kind,)


@dataclass(frozen=True)
class Receiver:
    """A reader: `kind` is q, k or v (of a head), attn_out, mlp_out, layer (both) or logits."""

    kind: str
    layer: int
    index: int | None = None

    def __str__(self) -> str:
        """As it is written."""
        if self.kind in PARTS:
            return f"L{self.layer}H{self.index}.{self.kind}"
        return "logits" if self.kind == "logits" else _written(self.kind, self.layer, None)


def _written(kind: str, layer: int, index: int | None) -> str:
    letter = {"z": "H", "coefficients": "M"}.get(kind)
    return f"{kind} {layer}" if letter is None else f"L{layer}{letter}{index}"


def senders_of(lm: Decoder, given: str | Sequence[str]) -> list[Sender]:
    """Senders by name, each once, in the order given.

    Raises:
        InvalidInput: a name is not of that form, or there is none.
        OutOfRange: no such layer, head or memory.
        Unsupported: the model has no such heads or memories.
    """
    found: list[Sender] = []
    for text in _texts(given, "sender"):
        if text == "heads":
            found += [Sender("z", n, h) for n, h in all_heads(lm)]
        elif match := re.fullmatch(r"L(\d+)H(\d+)", text):
            layer = lm.layer(int(match[1]))
            found.append(Sender("z", layer, lm.head(int(match[2]), layer)))
        elif text.startswith("L") and (memory := parse_memory(text)) is not None:
            found.append(Sender("coefficients", *lm.memory(*memory)))
        elif match := re.fullmatch(r"(attn_out|mlp_out|layer) (\d+)", text):
            found.append(Sender(match[1], lm.layer(int(match[2]))))
        else:
            raise InvalidInput(f"sender {text!r:.60}", why="it is not the name of a writer", instead=f"Use {_SENDERS}")
    return list(dict.fromkeys(found))


def receivers_of(lm: Decoder, given: str | Sequence[str]) -> list[Receiver]:
    """Receivers by name, each once, in the order given.

    Raises:
        InvalidInput: a name is not of that form, or there is none.
        OutOfRange: no such layer or head.
    """
    found: list[Receiver] = []
    for text in _texts(given, "receiver"):
        if text == "logits":
            found.append(Receiver("logits", lm.n_layers))
        elif text == "heads":
            found += [Receiver(part, n, h) for n, h in all_heads(lm) for part in PARTS]
        elif match := re.fullmatch(r"L(\d+)H(\d+)(?:\.([qkv]))?", text):
            layer = lm.layer(int(match[1]))
            head = lm.head(int(match[2]), layer)
            found += [Receiver(part, layer, head) for part in ([match[3]] if match[3] else PARTS)]
        elif match := re.fullmatch(r"(attn_out|mlp_out|layer) (\d+)", text):
            found.append(Receiver(match[1], lm.layer(int(match[2]))))
        else:
            raise InvalidInput(
                f"receiver {text!r:.60}", why="it is not the name of a reader", instead=f"Use {_RECEIVERS}"
            )
    return list(dict.fromkeys(found))


def reaches(lm: Decoder, sender: Sender, receiver: Receiver) -> bool:
    """Whether the receiver reads the stream after the sender has written to it."""
    if receiver.layer != sender.layer:
        return receiver.layer > sender.layer
    from_mixer = sender.kind in ("z", "attn_out")
    return receiver.kind == "mlp_out" and from_mixer and lm.structure.blocks[sender.layer].is_sequential


def all_heads(lm: Decoder) -> list[tuple[int, int]]:
    """Every head of the model, layer by layer.

    Raises:
        Unsupported: it has none.
    """
    return [(layer, head) for layer in layers_with(lm, "z") for head in range(n_heads_of(lm, layer))]


def _texts(given: str | Sequence[str], what: str) -> list[str]:
    texts = [given] if isinstance(given, str) else list(given)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidInput(
            f"{what}s {given!r:.60}",
            why="they are not names",
            instead=f"Use {_SENDERS if what == 'sender' else _RECEIVERS}",
        )
    return [text.strip() for text in texts]
