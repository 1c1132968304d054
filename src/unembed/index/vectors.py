"""Find the value vectors or keys with the largest cosine similarity, computed exactly from the model's weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder

_ROWS = 4096


class Vectors:
    """The value vectors or the keys of a model, for cosine similarities."""

    def __init__(self, lm: Decoder, among: str = "values", layers: Sequence[int] | None = None) -> None:
        """Store the arguments; nothing is computed yet.

        Args:
            among: "values" or "keys".
            layers: the layers to search; all that have memories (FFN neurons) when None.

        Raises:
            InvalidInput: `among` is neither "values" nor "keys".
        """
        if among not in ("values", "keys"):
            raise InvalidInput(f"similar among {among!r}", why="it must be 'values' or 'keys'")
        self._lm, self._among = lm, among
        self._layers = lm.memory_layers if layers is None else tuple(layers)
        self._lengths: list[Tensor | None] = [None] * lm.n_layers

    def row(self, layer: int, index: int) -> Float[Tensor, " d_model"]:
        """Return the value vector or key of one memory."""
        return self._rows(layer, slice(index, index + 1))[0].float()

    @torch.no_grad()
    def cosines(self, vector: Float[Tensor, " d_model"]) -> Float[Tensor, " keys"]:
        """Return the cosine of a vector with every value vector or key, by layer and index; 0 for those of length 0."""
        unit = vector / vector.norm().clamp_min(1e-30)
        found = []
        for layer in self._layers:
            blocks = self._rows(layer, slice(None)).split(_ROWS)
            dots = torch.cat([block @ unit.to(block.dtype) for block in blocks]).float()
            if (lengths := self._lengths[layer]) is None:
                lengths = torch.cat([block.float().norm(dim=-1) for block in blocks]).clamp_min(1e-30)
                self._lengths[layer] = lengths
            found.append(dots / lengths)
        return torch.cat(found)

    def _rows(self, layer: int, rows: slice) -> Tensor:
        if self._among == "values":
            return written_values(self._lm, layer, rows).detach()
        gate = self._lm.weights.W_gate[layer]  # the gate decides whether a gated memory fires
        return (self._lm.weights.W_in[layer] if gate is None else gate)[:, rows].T.detach()
