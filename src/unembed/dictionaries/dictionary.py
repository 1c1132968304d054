"""One dictionary: how it computes features from an activation, and reconstructs an activation from features.

| activation | feature |
|---|---|
| `relu` | max(0, pre) |
| `jumprelu` | max(0, pre) where pre is above the feature's threshold (Rajamanoharan et al. 2024b) |
| `topk` | max(0, pre) of the k largest pre (Gao et al. 2024) |
| `gated` | max(0, magnitude) where the gate is above 0 (Rajamanoharan et al. 2024a, section 3.2) |

`pre` is (x - b_in) W_enc + b_enc.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.validation import one_of

ACTIVATIONS = ("relu", "jumprelu", "topk", "gated")


@dataclass(frozen=True, eq=False)
class Dictionary:
    """A sparse autoencoder or transcoder: encoder, activation function, and a decoder for each layer it writes to."""

    W_enc: Float[Tensor, "d_in feature"]
    b_enc: Float[Tensor, " feature"]
    W_dec: tuple[Float[Tensor, "feature d_out"], ...]
    """One matrix for each layer written to; the first is for the layer that is read."""
    b_dec: Float[Tensor, " d_out"]
    """Added to the reconstruction of the layer that is read."""
    activation: str
    b_in: Float[Tensor, " d_in"] | None = None
    """Subtracted from the encoder's input."""
    threshold: Float[Tensor, " feature"] | None = None
    k: int | None = None
    r_mag: Float[Tensor, " feature"] | None = None
    """Used only with the activation "gated": the magnitude is (x - b_in) W_enc exp(r_mag) + b_mag."""
    b_mag: Float[Tensor, " feature"] | None = None
    reads: str = "resid_post"
    """The capture point that the encoder reads."""
    writes: str = "resid_post"
    """The capture point that is reconstructed; in a transcoder, it differs from `reads`."""
    layer: int | None = None
    """The layer it was trained on; None if its files do not name one."""
    name: str = "dictionary"
    without_gain: bool = False
    """Whether it reads the norm's output before the norm's gain and bias; `for_norm` folds both into the encoder."""
    centred: bool = False
    """Whether it was trained on activations from which their mean over channels was subtracted."""

    def __post_init__(self) -> None:
        if self.W_enc.dim() != 2:
            raise InvalidInput(f"dictionary {self.name}", why=f"its W_enc has {self.W_enc.dim()} dimensions, not 2")
        d_in, n = self.W_enc.shape
        one_of("activation", self.activation, ACTIVATIONS)
        if self.b_dec.dim() != 1 or self.b_enc.dim() != 1:
            raise InvalidInput(f"dictionary {self.name}", why="its biases are not vectors")
        needed = {"jumprelu": "threshold", "topk": "k", "gated": "r_mag"}.get(self.activation)
        if needed is not None and getattr(self, needed) is None:
            raise InvalidInput(f"a dictionary with activation {self.activation}", why=f"it has no {needed}")
        wrong = [tuple(w.shape) for w in self.W_dec if w.shape != (n, self.b_dec.shape[0])]
        if not self.W_dec or wrong or self.b_enc.shape != (n,):
            raise InvalidInput(
                f"dictionary {self.name}",
                why=f"shapes differ: W_enc ({d_in}, {n}), W_dec {wrong or 'missing'}, b_dec ({self.b_dec.shape[0]},)",
            )
        for what, n_wanted in (("threshold", n), ("r_mag", n), ("b_mag", n), ("b_in", d_in)):
            if (vector := getattr(self, what)) is not None and vector.shape != (n_wanted,):
                why = f"its {what} is {tuple(vector.shape)}, not ({n_wanted},)"
                raise InvalidInput(f"dictionary {self.name}", why=why)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.W_enc.shape[1]

    @property
    def is_transcoder(self) -> bool:
        """Whether it reconstructs an activation other than the one that it encodes."""
        return self.reads != self.writes

    def encode(self, x: Float[Tensor, "*pos d_in"]) -> Float[Tensor, "*pos feature"]:
        """Compute the features of an activation, in the dictionary's dtype."""
        x = x.to(self.W_enc)
        x = x - x.mean(dim=-1, keepdim=True) if self.centred else x
        x = x if self.b_in is None else x - self.b_in
        product = x @ self.W_enc
        pre = product + self.b_enc
        if self.activation == "relu":
            return pre.relu()
        if self.activation == "jumprelu":
            assert self.threshold is not None
            return pre.relu() * (pre > self.threshold)
        if self.activation == "topk":
            assert self.k is not None
            best = pre.topk(min(self.k, self.n_features), dim=-1)
            return torch.zeros_like(pre).scatter(-1, best.indices, best.values.relu())
        assert self.r_mag is not None and self.b_mag is not None
        return (product * self.r_mag.exp() + self.b_mag).relu() * (pre > 0)

    def decode(self, features: Float[Tensor, "*pos feature"], offset: int = 0) -> Float[Tensor, "*pos d_out"]:
        """Return the features' contribution to the reconstruction `offset` layers later (plus b_dec for offset 0)."""
        written = features @ self.W_dec[offset]
        return written + self.b_dec if offset == 0 else written

    def for_norm(self, gain: Float[Tensor, " d_in"], bias: Float[Tensor, " d_in"] | None) -> Dictionary:
        """Convert a dictionary of a norm's output before gain and bias into one of its output x after them.

        The new encoder divides by the gain: it encodes (x - bias) / gain.

        Raises:
            InvalidInput: a channel's gain is zero.
        """
        if not bool((gain != 0).all()):
            raise InvalidInput(
                f"dictionary {self.name}",
                why="it was trained on a norm's output before the gain, so its input must be divided by the gain, "
                "which is zero in at least one channel",
            )
        scale = gain.to(self.W_enc)
        shift = torch.zeros_like(scale) if bias is None else bias.to(self.W_enc)
        start = shift if self.b_in is None else shift + scale * self.b_in
        return replace(self, W_enc=self.W_enc / scale[:, None], b_in=start, without_gain=False)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Dictionary:
        """Return the same dictionary on another device, or in another dtype."""

        def moved(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype or t.dtype)

        tensors = {name: moved(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors, W_dec=tuple(map(moved, self.W_dec)))
