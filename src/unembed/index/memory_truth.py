"""Look up or measure whether adding a memory's (FFN neuron's) value vector raises the tokens listed for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from unembed.gallery import memory_gallery, reader
from unembed.jacobian import basis_or_default, lens_identity
from unembed.names import Pole, SignedMemory

if TYPE_CHECKING:
    from unembed.index.index import Index
    from unembed.models.decoder import Decoder

SCHEMA = "unembed.truth-of-memory/1"


@dataclass(frozen=True)
class TruthView:
    """How well a value vector's token scores correlate with the change of the logits when it is added."""

    schema: str
    of: Literal["memory", "layer"] | None
    """What was measured: "memory" for this memory itself, "layer" for a sample of its layer, of which the median is
    given; None for neither."""
    correlation: float | None
    control: float | None
    """99 % quantile of the absolute correlations of token scores with the changes that other value vectors cause."""
    borne_out: bool | None
    """Whether the correlation is at least the control."""
    words: str
    """The numbers, their meaning, and the lens that computed the scores, in sentences."""


_UNKNOWN = TruthView(
    SCHEMA, None, None, None, None, "Whether adding the value raises the tokens listed as promoted was not measured."
)


def truth_view(lm: Decoder, index: Index | None, layer: int, number: int, pole: Pole = "positive") -> TruthView:
    """Return a stored result: the memory's own from the gallery, else its layer's median from the index.

    Args:
        index: an index of the model; its results are used only if they were measured with the lens that the model has
            now.
        layer: counted from 0.
        number: the memory's index in its layer.
        pole: the sign of the coefficient.

    Raises:
        OutOfRange: there is no such memory.
    """
    memory = SignedMemory(*lm.memory(layer, number), pole)
    return _of_gallery(lm, index, memory) or _of_layer(lm, index, memory.layer) or _UNKNOWN


def measured_truth_view(lm: Decoder, layer: int, number: int, pole: Pole = "positive") -> TruthView:
    """Measure whether adding a memory's value vector raises the tokens listed for it, as `unembed value --truth` does.

    Raises:
        OutOfRange: there is no such memory.
        Unsupported: the model has several streams.

    Memory: see `unembed.memories.reading_truth`.
    """
    from unembed.memories import reading_truth

    memory = SignedMemory(*lm.memory(layer, number), pole)
    found = reading_truth(lm, [memory])
    numbers = float(found.correlation[0]), found.bound(memory.layer)
    return TruthView(SCHEMA, "memory", *numbers, found.borne_out[0], _sentences(lm, found.in_words()))


def _of_gallery(lm: Decoder, index: Index | None, memory: SignedMemory) -> TruthView | None:
    """Return the result for this memory that is saved in the gallery, if it was measured with the model's lens."""
    gallery = memory_gallery(lm, None if index is None else index.path)
    if gallery is None or not gallery.is_read_by(lens_identity(lm)):
        return None
    row = gallery.row_of(*lm.memory(*memory.address), memory.pole)
    if row is None or row.truth is None or (words := row.truth_in_words) is None:
        return None
    numbers = row.truth.correlation, row.truth.control
    return TruthView(SCHEMA, "memory", *numbers, row.is_borne_out, _sentences(lm, words))


def _of_layer(lm: Decoder, index: Index | None, layer: int) -> TruthView | None:
    """Return the layer's median from the index, if it was measured with the lens that the model has now."""
    known = None if index is None else index.truth
    basis = basis_or_default(lm, None, "raw")
    if known is None or known.provenance.basis != basis or (basis == "jacobian" and known.lens != lens_identity(lm)):
        return None
    row, words = known.of(layer), known.in_words(layer)
    if row is None or words is None:
        return None
    numbers = row["correlation"], row["control_99"]
    return TruthView(SCHEMA, "layer", *numbers, known.is_above_control(layer), _sentences(lm, words))


def _sentences(lm: Decoder, words: str) -> str:
    """Return the result as a sentence, and another that names the lens that computed the scores."""
    lens = lens_identity(lm)
    return f"{words[0].upper()}{words[1:]}. Scores are those of {reader(lens, fitted=lens is not None)}."
