"""One head, or two heads that act as one: a virtual head has its own pattern and OV circuit.

Source: Elhage et al. 2021, "Virtual attention heads": A_b A_a and W_OV_a W_OV_b.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.paths.linearized import frozen_run
from unembed.attention.weights.copying import OwnToken, Spectra, own_token
from unembed.attention.weights.low_rank import LowRank
from unembed.attention.weights.qk_ov import HeadMatrices, full_ov
from unembed.errors import InvalidInput
from unembed.names import HeadBasis
from unembed.stream.run import Tokens, position_of, run


class HeadCircuit(ABC):
    """Anything that moves information as a head does: a pattern and an OV circuit."""

    def __init__(self, circuits: HeadMatrices, path: tuple[tuple[int, int], ...]) -> None:
        self.circuits = circuits
        self.path = path

    @property
    def label(self) -> str:
        """Such as "L1H3", or "L0H2 > L1H3"."""
        return " > ".join(f"L{layer}H{head}" for layer, head in self.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label} of {self.circuits.lm.name})"

    @abstractmethod
    def ov(self, basis: HeadBasis = "raw") -> LowRank:
        """The map from an attended source to the head's output (d_model, d_model)."""

    @abstractmethod
    def pattern(self, tokens: Tokens) -> Float[Tensor, "batch dst src"]:
        """Which positions it moves information from, and to, on a prompt."""

    def ov_full(
        self,
        basis: HeadBasis = "raw",
        *,
        sources: Tensor | None = None,
        outputs: Tensor | None = None,
        centre: bool = True,
    ) -> LowRank:
        """A source token's effect on every output's logit (d_vocab, d_vocab), or some rows and columns."""
        return full_ov(self.circuits.lm, self.ov(basis), basis, sources, outputs, centre)

    def copying(self, basis: HeadBasis = "raw", *, centre: bool = True) -> Spectra:
        """Eigenvalues of the full OV circuit, with their score and positive fraction."""
        ov = self.ov(basis)
        product = self.circuits.product("ov", basis, centre)
        found = LowRank(product @ ov.left.to(product.dtype), ov.right.to(product.dtype)).eigenvalues()
        return Spectra(found, self.circuits.lm.provenance(basis=basis, notes={"head": self.label}), ())

    def own_token(self, basis: HeadBasis = "raw", *, top: int = 10, n_tokens: int = 512, seed: int = 0) -> OwnToken:
        """How the full OV circuit treats each token's own logit."""
        provenance = self.circuits.lm.provenance(basis=basis, seed=seed, notes={"head": self.label})
        return own_token(self.ov_full(basis), provenance, top, n_tokens, seed)

    @torch.no_grad()
    def effect(self, tokens: Tokens, position: int = -1) -> Float[Tensor, " d_vocab"]:
        """What it adds to every logit at a position through the constants of the stream (see `expansion`).

        Raises:
            InvalidInput: several prompts.
            OutOfRange: there is no such position.
        """
        frozen = frozen_run(self.circuits.lm, tokens)
        if frozen.run.tokens.shape[0] != 1:
            raise InvalidInput(f"{frozen.run.tokens.shape[0]} prompts", why="an effect is computed for one prompt")
        position = position_of(frozen.run, position)
        x = frozen.constants_before(self.path[0][0])
        for layer, head in self.path:
            x = frozen.layers[layer].heads(x)[:, head]
        read = frozen.read(x)[0, position]
        return read @ self.circuits.lm.weights.W_U.to(read.dtype)


class Head(HeadCircuit):
    """One attention head."""

    def ov(self, basis: HeadBasis = "raw") -> LowRank:
        """W_V W_O."""
        return self.circuits.ov(*self.path[0], basis)

    def qk(self, offset: int = 0, basis: HeadBasis = "raw") -> LowRank:
        """W_Q W_K'."""
        return self.circuits.qk(*self.path[0], offset, basis)

    def pattern(self, tokens: Tokens) -> Float[Tensor, "batch dst src"]:
        """The model's own attention weights."""
        layer, head = self.path[0]
        return run(self.circuits.lm, tokens, "pattern", logits=False, layers=[layer])["pattern"][0][:, head]


class VirtualHead(HeadCircuit):
    """A head of an earlier layer and one of a later layer that reads what it wrote."""

    def ov(self, basis: HeadBasis = "raw") -> LowRank:
        """W_OV of the earlier head times W_OV of the later one."""
        first, second = (self.circuits.ov(*head, basis) for head in self.path)
        return first @ second

    @torch.no_grad()
    def pattern(self, tokens: Tokens) -> Float[Tensor, "batch dst src"]:
        """The later head's pattern times the earlier one's: where information that passes both comes from."""
        (a_layer, a), (b_layer, b) = self.path
        patterns = run(self.circuits.lm, tokens, "pattern", logits=False, layers=[a_layer, b_layer])["pattern"]
        return patterns[1][:, b] @ patterns[0][:, a]
