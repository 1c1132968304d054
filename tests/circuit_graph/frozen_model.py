"""The linear model of a run written out by hand in float64: what the room is compared with.

Constants (norm scales, patterns, c = f(z) / z) come from an ordinary run with captures. Nothing of the room is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from unembed.language_model import LanguageModel
from unembed.stream.run import run

POINTS = ("resid_pre", "resid_mid", "resid_post", "z", "coefficients", "gate", "up", "pattern")

Key = tuple[str, int, int, int]
"""Kind, layer, position, index."""


@dataclass
class Frozen:
    """A sequential model (norm, attention, norm, FFN) with the constants of one run."""

    lm: LanguageModel
    tokens: Tensor
    u: Tensor
    """The direction at the last position of the last stream, before the final norm."""
    is_gated: bool
    seen: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        points = [p for p in POINTS if self.is_gated or p != "gate"]
        taken = run(self.lm, self.tokens, points)
        for layer in range(self.lm.n_layers):
            self.seen |= {(p, layer): taken.at(p, layer)[0].double() for p in points}
        self.start = self.seen["resid_pre", 0]

    def normed(self, norm: object, x: Tensor, of: Tensor) -> Tensor:
        """The norm of x with the scale of another vector."""
        if norm is None:
            return x
        gain, centred, eps = norm.gain.double(), norm.centred, norm.eps  # type: ignore[attr-defined]
        of = of - of.mean(-1, keepdim=True) if centred else of
        scale = (of.square().mean(-1, keepdim=True) + eps).sqrt()
        x = x - x.mean(-1, keepdim=True) if centred else x
        y = x / scale * gain
        return y if norm.bias is None else y + norm.bias.double()  # type: ignore[attr-defined]

    def metric(self, removed: Key | None = None, pinned: bool = False, into: Key | None = None) -> float:
        """The linear model's metric without one node; or, with `into`, what that node reads, in the metric's units.

        Args:
            pinned: all other nodes keep the values of the run: only direct ways remain.
        """
        x = self.start.clone()
        if removed is not None and removed[0] == "token":
            x[removed[2]] = 0
        for layer in range(self.lm.n_layers):
            block, w = self.lm.structure.blocks[layer], self.lm.weights
            own = self.seen["z", layer]
            h = self.normed(block.attention.pre_norm, x, self.seen["resid_pre", layer])
            v = torch.einsum("pd,hde->phe", h, w.W_V[layer].double())
            if (b := w.b_V[layer]) is not None:
                v = v + b.double()
            v = v.repeat_interleave(self.lm.n_heads // self.lm.n_kv_heads, dim=1)
            z = torch.einsum("hqk,khe->qhe", self.seen["pattern", layer], v)
            if into is not None and into[:2] == ("head", layer):
                return float(z[into[2], into[3]] @ self.slope(into))
            z = own.clone() if pinned else z
            if removed is not None and removed[:2] == ("head", layer):
                z[removed[2], removed[3]] = 0
            x = x + torch.einsum("phe,hed->pd", z, w.W_O[layer].double())
            x = x if w.b_O[layer] is None else x + w.b_O[layer].double()
            x = self._ffn(layer, x, removed, pinned, into)
            if isinstance(x, float):
                return x
        return float(x[-1] @ self.u)

    def _ffn(self, layer: int, x: Tensor, removed: Key | None, pinned: bool, into: Key | None) -> Tensor | float:
        w, own = self.lm.weights, self.seen["coefficients", layer]
        h = self.normed(self.lm.feed_forward(layer).pre_norm, x, self.seen["resid_mid", layer])

        def read(which: str, matrix: Tensor, bias: Tensor | None) -> Tensor:
            found = h @ matrix.double() + (0 if bias is None else bias.double())
            return found * (own / self.seen[which, layer])

        m = read("up", w.W_in[layer], w.b_in[layer])
        if self.is_gated:
            m = (m + read("gate", w.W_gate[layer], w.b_gate[layer])) / 2
        if into is not None and into[:2] == ("memory", layer):
            return float(m[into[2], into[3]] * self.slope(into))
        m = own.clone() if pinned else m
        if removed is not None and removed[:2] == ("memory", layer):
            m[removed[2], removed[3]] = 0
        x = x + m @ w.W_out[layer].double()
        return x if w.b_out[layer] is None else x + w.b_out[layer].double()

    def slope(self, node: Key) -> Tensor | float:
        """dm/da of a node in the linear model, by removing a unit at a time."""
        point = "z" if node[0] == "head" else "coefficients"
        own = self.seen[point, node[1]]
        place = (node[2], node[3])
        before, whole = own[place].clone(), self.metric()
        if node[0] == "memory":
            return (whole - self.metric(node)) / float(before)
        found = torch.zeros_like(before)
        for i in range(len(before)):
            found[i] = self._z_slope(node, i, whole)
        return found

    def _z_slope(self, node: Key, i: int, whole: float) -> float:
        """By adding 1 to one channel of a head's z behind its layer."""
        added = self.lm.weights.W_O[node[1]][node[3], i].double()
        return self._with_added(node[1], node[2], added) - whole

    def _with_added(self, layer: int, position: int, vector: Tensor) -> float:
        """The metric with a vector added to the stream behind a layer's attention."""
        x = self.seen["resid_mid", layer].clone()
        x[position] += vector
        rest = self._ffn(layer, x, None, False, None)
        assert isinstance(rest, Tensor)
        kept, self.start = self.start, rest
        try:
            return self._from(layer + 1)
        finally:
            self.start = kept

    def _from(self, first: int) -> float:
        x, n = self.start, self.lm.n_layers
        for layer in range(first, n):
            block, w = self.lm.structure.blocks[layer], self.lm.weights
            h = self.normed(block.attention.pre_norm, x, self.seen["resid_pre", layer])
            v = torch.einsum("pd,hde->phe", h, w.W_V[layer].double())
            v = v if w.b_V[layer] is None else v + w.b_V[layer].double()
            v = v.repeat_interleave(self.lm.n_heads // self.lm.n_kv_heads, dim=1)
            z = torch.einsum("hqk,khe->qhe", self.seen["pattern", layer], v)
            x = x + torch.einsum("phe,hed->pd", z, w.W_O[layer].double())
            x = x if w.b_O[layer] is None else x + w.b_O[layer].double()
            found = self._ffn(layer, x, None, False, None)
            assert isinstance(found, Tensor)
            x = found
        return float(x[-1] @ self.u)
