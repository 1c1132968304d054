"""List the dominant sub-updates of an FFN update, with the tokens that their value vectors promote.

Source: Geva et al. 2022, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from unembed.memories.sub_updates import contributions, dominant, token_scores
from unembed.memories.values import Values
from unembed.models.decoder import Decoder
from unembed.names import memory_name
from unembed.stream.run import Run
from unembed.validation import as_tuple, positive_int

Ends = tuple[list[str], list[str]]
"""The tokens that a value vector promotes most, and those that it suppresses most."""


@dataclass(frozen=True)
class SubUpdate:
    """One term m_i v_i of an FFN update: a memory's (FFN neuron's) coefficient times its value vector."""

    layer: int
    index: int
    coefficient: float
    norm: float
    """The length of the value vector."""
    contribution: float
    """|coefficient| * norm: the length of the sub-update, before a norm that follows the FFN."""
    share: float
    """The contribution divided by the sum of the contributions of all memories of the layer."""
    score: float | None
    """What it adds to the chosen token's logit, or to the difference of two tokens' logits, with the final norm's scale
    of the run; None if no token was chosen."""
    top_tokens: list[str]
    """Tokens to which the value vector gives the highest scores; a negative coefficient suppresses them."""
    bottom_tokens: list[str]
    times_usual: float | None = None
    """|coefficient| divided by the memory's usual |coefficient|; None if the usual one is not known."""
    deviation: float | None = None
    """The score minus the score at the memory's mean coefficient over a corpus (mean ablation); None if not known."""
    always_on: bool = False
    """True if the memory is known to fire on nearly every token."""
    experts: tuple[int, int] | None = None
    """Number of experts in the layer, and of memories in each expert; None in a layer without experts."""

    @property
    def name(self) -> str:
        """The name of the memory: L5M278, or L12E7M345 in a layer of experts."""
        return memory_name(self.layer, self.index, self.experts)

    @property
    def promoted(self) -> list[str]:
        """The tokens that this sub-update promotes; at a negative coefficient, the lowest-scored of v's tokens."""
        return self.top_tokens if self.coefficient >= 0 else self.bottom_tokens

    @property
    def suppressed(self) -> list[str]:
        """The tokens that this sub-update suppresses; at a negative coefficient, the highest-scored of v's tokens."""
        return self.bottom_tokens if self.coefficient >= 0 else self.top_tokens

    @property
    def lowers(self) -> bool:
        """Whether this sub-update lowers the logit of the token for which its score was computed."""
        return self.score is not None and self.score < 0


def top_sub_updates(
    lm: Decoder,
    run: Run,
    layers: Sequence[int],
    position: int,
    top: int,
    token: str | int | None = None,
    *,
    k: int = 10,
    show_unlearned: bool = False,
) -> list[list[SubUpdate]]:
    """Return the dominant sub-updates of each layer at a position, the largest contribution first.

    Args:
        run: a run of one prompt that captured `memory_points(lm)`.
        top: number of sub-updates of each layer.
        token: if given, each sub-update's contribution to this token's logit is computed.
        k: number of tokens to list for each value vector.
        show_unlearned: include tokens that the model never learned; by default they are left out.

    Raises:
        Unsupported: the model has no memories.
        OutOfRange: no such layer.
    """
    if not (layers := [lm.layer(n) for n in as_tuple("layers", layers)]):
        return []
    for n in layers:
        lm.feed_forward(n)
    top = positive_int("top", top)
    target = None if token is None else lm.single_token(token)
    chosen = [(n, dominant(run.at("coefficients", n)[0, position], lm.weights.W_out[n], top).tolist()) for n in layers]
    scores = None
    if target is not None:
        scores = [token_scores(lm, run, n, position, target, index=torch.tensor(index)).tolist() for n, index in chosen]
    return sub_updates_at(lm, run, chosen, position, scores, k=k, show_unlearned=show_unlearned)


def sub_updates_at(
    lm: Decoder,
    run: Run,
    memories: Sequence[tuple[int, Sequence[int]]],
    position: int,
    scores: Sequence[Sequence[float]] | None = None,
    *,
    k: int = 10,
    show_unlearned: bool = False,
    read: dict[tuple[int, int], Ends] | None = None,
) -> list[list[SubUpdate]]:
    """Return the sub-updates of chosen memories at a position, in the order given.

    Args:
        run: a run of one prompt that captured the coefficients.
        memories: pairs of a layer and the indices of memories in it.
        scores: what each sub-update adds to a logit, in the order of `memories`.
        k: number of tokens to list for each value vector.
        show_unlearned: include tokens that the model never learned.
        read: a cache of the tokens of value vectors, by layer and index, for the same `k` and `show_unlearned`; the
            tokens of value vectors that it lacks are added to it.
    """
    if not any(index for _, index in memories):
        return [[] for _ in memories]
    ends = {} if read is None else read
    missing = [(n, [i for i in index if (n, i) not in ends]) for n, index in memories]
    if missing := [(n, index) for n, index in missing if index]:
        token_ids = Values(lm).top_and_bottom(missing, k, show_unlearned=show_unlearned)
        for (n, index), (promoted, suppressed) in zip(missing, token_ids, strict=True):
            for i, high, low in zip(index, promoted, suppressed, strict=True):
                ends[n, i] = lm.token_strings(high), lm.token_strings(low)
    found: list[list[SubUpdate]] = []
    for at, (n, index) in enumerate(memories):
        m, W_out = run.at("coefficients", n)[0, position], lm.weights.W_out[n]
        sizes, rows = contributions(m, W_out), torch.as_tensor(index, dtype=torch.long, device=m.device)
        total = float(sizes.sum().clamp_min(1e-30))
        of_rows = zip(m[rows].tolist(), W_out[rows].norm(dim=-1).tolist(), sizes[rows].tolist(), strict=True)
        found.append(
            [
                SubUpdate(
                    n,
                    index[j],
                    coefficient,
                    norm,
                    size,
                    size / total,
                    None if scores is None else scores[at][j],
                    list(ends[n, index[j]][0]),
                    list(ends[n, index[j]][1]),
                    experts=lm.experts_of(n),
                )
                for j, (coefficient, norm, size) in enumerate(of_rows)
            ]
        )
    return found
