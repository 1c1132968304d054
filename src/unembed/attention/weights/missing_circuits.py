"""Find the attention layers whose heads have no fixed OV or QK circuit, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from unembed.attention.weights.composed_weights import require_ov
from unembed.attention.weights.folded_weights import check_basis, reading_weights
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis


@dataclass(frozen=True)
class MissingCircuits:
    """For each layer without an OV or QK circuit, the reason; other attention layers have both circuits."""

    ov: Mapping[int, str]
    qk: Mapping[int, str]

    def of(self, mode: str) -> Mapping[int, str]:
        """Return the layers that lack the circuit for `mode` (QK for "q" and "k", OV for "v"), each with the reason."""
        return self.ov if mode == "v" else self.qk


def missing_circuits(lm: Decoder, basis: HeadBasis = "raw") -> MissingCircuits:
    """Find the attention layers whose heads have no OV or no QK circuit in a basis, and why.

    To find out, each matrix is computed once; the result is cached for the model and basis.

    Memory: the matrices of one layer.
    """
    check_basis(basis)

    def ov(layer: int) -> None:
        require_ov(lm, layer, basis)
        reading_weights(lm, layer, "v", basis, grouped=True)
        _ = lm.weights.W_O[layer]

    def qk(layer: int) -> None:
        for which in "qk":
            reading_weights(lm, layer, which, basis, grouped=True)

    return lm.once(("missing circuits", basis), lambda: MissingCircuits(_refused(lm, ov), _refused(lm, qk)))


def not_available(what: str, reasons: Mapping[int, str], lm: Decoder) -> list[str]:
    """Write one sentence for each reason, with the layers to which it applies."""
    sentences = []
    for why in dict.fromkeys(reasons.values()):
        layers = [str(layer) for layer, reason in reasons.items() if reason == why]
        some = f"layer{'s' if len(layers) > 1 else ''} {', '.join(layers)}"
        where = "any layer" if len(layers) == len(lm.attention_layers) else some
        sentences.append(f"{what}: not available in {where}, because {why}.")
    return sentences


def _refused(lm: Decoder, read: Callable[[int], None]) -> dict[int, str]:
    found: dict[int, str] = {}
    for layer in lm.attention_layers:
        try:
            read(layer)
        except Unsupported as error:
            found[layer] = error.why
    return found
