"""Compare the top token of each value vector with the tokens that follow its key's triggers (Figs. 4 to 6, Table 2).

Source: Geva et al. 2021, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from unembed.corpus.token_stream import TokenStream
from unembed.jacobian.basis import in_basis
from unembed.lens import read
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder
from unembed.names import Basis
from unembed.reports.geva2021.triggers import KeyTriggers


@dataclass(frozen=True, eq=False)
class Agreement:
    """The top token of each key's value vector, and the token that follows the key's first trigger.

    The rows (keys) of all layers are concatenated, as in `KeyTriggers`.
    """

    bounds: Int[np.ndarray, " layers_and_one"]
    top: Int[np.ndarray, " key"]
    """The top token of the value vector."""
    probability: Float[np.ndarray, " key"]
    """The probability of that token, max(p)."""
    target: Int[np.ndarray, " key"]
    """The token that follows the key's first trigger that has a next token; -1 if there is none."""
    rank: Int[np.ndarray, " key"]
    """The rank of the target (from 1) in the logits of the value vector; -1 where there is no target."""
    hits: Int[np.ndarray, " key"]
    """Number of the key's triggers that are followed by `top`."""
    followed: Int[np.ndarray, " key"]
    """Number of the key's triggers that are followed by any token."""
    signed: Bool[np.ndarray, " layer"]
    """Whether a layer has two keys for each memory, one for each sign of its coefficient; see `KeyTriggers`."""

    @property
    def agrees(self) -> Bool[np.ndarray, " key"]:
        """Whether the top token of each value vector is the target."""
        return (self.target >= 0) & (self.top == self.target)

    def layer(self, layer: int) -> slice:
        """Return the slice of the rows that belong to a layer."""
        return slice(int(self.bounds[layer]), int(self.bounds[layer + 1]))

    def of_memories(self, layer: int) -> tuple[Bool[np.ndarray, " memory"], Bool[np.ndarray, " memory"]]:
        """Return two masks of a layer's memories: those that agree, and those that have a target.

        For a gated memory, it is enough if this holds for one of its two signs.
        """
        signs = 2 if self.signed[layer] else 1
        rows = self.layer(layer)
        agrees, known = self.agrees[rows].reshape(signs, -1), (self.target[rows] >= 0).reshape(signs, -1)
        return np.asarray(agrees.any(axis=0)), np.asarray(known.any(axis=0))

    def by_chance(self, layer: int) -> float:
        """Return the agreement rate if the targets of a layer were paired with its value vectors at random.

        A gated memory agrees if either of its two keys does, which about doubles the rate. NaN without targets.
        """
        rows = self.layer(layer)
        known = self.target[rows] >= 0
        if not known.any():
            return float("nan")
        size = int(max(self.top[rows].max(), self.target[rows].max())) + 1
        tops = np.bincount(self.top[rows][known], minlength=size) / known.sum()
        targets = np.bincount(self.target[rows][known], minlength=size) / known.sum()
        one = float(tops @ targets)
        return 1 - (1 - one) ** 2 if self.signed[layer] else one


def targets_of(text: TokenStream, triggers: KeyTriggers, target: str = "next") -> Int[np.ndarray, "key top"]:
    """Return the token that each trigger's value vector should predict; -1 if there is none.

    Args:
        target: "next", the token after the trigger, as in the paper; or "last", the last token of the trigger, as in
            the released code.
    """
    flat = triggers.positions.ravel()
    found = text.next_tokens(flat) if target == "next" else text.tokens_at(flat)
    return found.reshape(triggers.positions.shape)


@torch.no_grad()
def agreement(
    lm: Decoder,
    text: TokenStream,
    triggers: KeyTriggers,
    *,
    basis: Basis = "raw",
    target: str = "next",
    hidden: Bool[torch.Tensor, " d_vocab"] | None = None,
) -> Agreement:
    """Return the top token of every value vector, its probability, and the rank of the token after the first trigger.

    The first trigger is the one with the largest coefficient among those with a next token. A prefix that ends where
    the text ends has no next token.

    Args:
        triggers: the triggers of all keys. For a key of negative coefficients, -v replaces the value vector v.
        basis: how value vectors are decoded to tokens.
        target: see `targets_of`.
        hidden: mask of tokens to leave out of rankings (tokens that the model never learned).

    Memory: `lens.ROWS * lens.COLUMNS` logits at a time.
    """
    paired = targets_of(text, triggers, target)
    has = paired >= 0
    first = np.where(has.any(axis=1), paired[np.arange(len(paired)), has.argmax(axis=1)], -1)
    tops, probabilities, ranks = [], [], []
    for layer in range(triggers.n_layers):
        rows = triggers.layer(layer)
        track = torch.from_numpy(np.maximum(first[rows], 0).astype(np.int64))[:, None]
        vectors, plain = in_basis(lm, written_values(lm, layer), layer, basis)
        if triggers.signed[layer]:
            sign = torch.from_numpy(triggers.sign[rows]).to(vectors)
            vectors = torch.cat([vectors, vectors]) * sign[:, None]
        reading = read(lm, vectors, 1, basis=plain, track=track, hidden=hidden)
        tops.append(reading.ids[:, 0].cpu().numpy())
        probabilities.append(reading.probabilities[:, 0].float().cpu().numpy())
        ranks.append(reading.tracked_ranks[:, 0].cpu().numpy())
    top, rank = np.concatenate(tops).astype(np.int64), np.concatenate(ranks).astype(np.int64)
    hits = (paired == top[:, None]).sum(axis=1)
    return Agreement(
        triggers.bounds.astype(np.int64),
        top,
        np.concatenate(probabilities).astype(np.float64),
        first.astype(np.int64),
        np.where(first >= 0, rank, -1),
        hits.astype(np.int64),
        has.sum(axis=1).astype(np.int64),
        triggers.signed,
    )
