"""Test Eq. 2 where it is not exact: add one sub-update to the stream, and read the stream through the model's norm.

Without a norm, adding m v to the stream x multiplies the probability of each token w by exp(e_w . m v), divided by a
factor that is the same for all tokens. A final norm divides the stream by its scale, so the score e_w . m v is then not
the change of a logit. This module measures the score, the change of the token's logit and the change of log p(w), for
the dominant sub-updates of every layer at the ends of text prefixes.

Source: Geva et al. 2022, section 3, Eq. 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.corpus import Segment
from unembed.jacobian.basis import fitted_lens
from unembed.lens import comparable_basis, logits_of
from unembed.memories.event_sample import DOMINANT
from unembed.memories.sub_updates import dominant
from unembed.models.decoder import Decoder
from unembed.names import Basis, StreamPoint
from unembed.stream.decomposition import branch_of_run, memory_points, require_one_stream
from unembed.stream.run import Run, run

_ROWS = 256


@dataclass(frozen=True, eq=False)
class ProbabilityChanges:
    """Scores of the dominant sub-updates, and what each changes when it is added alone.

    The tokens are the model's prediction, and the top token before the layer's FFN.
    """

    score: Float[np.ndarray, "layer example 10 token"]
    """e_w . m v."""
    logit: Float[np.ndarray, "layer example 10 token"]
    """Change of w's logit when m v is added to the stream before the FFN."""
    log_probability: Float[np.ndarray, "layer example 10 token"]
    """The change of log p(w) by the same addition, in nats."""


@torch.no_grad()
def probability_changes(
    lm: Decoder,
    examples: Sequence[Segment],
    hidden: Bool[Tensor, " d_vocab"] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    basis: Basis = "final",
) -> ProbabilityChanges:
    """Measure what each dominant sub-update changes at the last position of each prefix.

    Args:
        basis: "final": the final norm and the unembedding read the stream, as in the paper; or "jacobian": the model's
            fitted lens first maps streams and sub-updates to the end of the model.
        hidden: a mask of tokens that cannot be predictions or candidates, because the model never learned them.
        progress: called with the number of prefixes done and their total.

    Raises:
        Unsupported: the model has no memories, or several streams.

    Memory: the unembedding in float32 for models in half precision, and 256 times the logits of a position.
    """
    require_one_stream(lm, "the effects of single sub-updates")
    readout, rows = _Readout.of(lm), []
    for done, example in enumerate(examples):
        progress(done, len(examples))
        rows.append(_of_prefix(lm, readout, example.tokens, hidden, basis))
    progress(len(examples), len(examples))
    score, logit, log_probability = (torch.stack(column, dim=1).numpy() for column in zip(*rows, strict=True))
    return ProbabilityChanges(score, logit, log_probability)


@dataclass(frozen=True, eq=False)
class _Readout:
    """The final norm and unembedding in at least float32; half precision would round small changes away."""

    lm: Decoder
    W_U: Float[Tensor, "d_model d_vocab"] | None
    """None for an adaptive softmax, whose module is called instead."""

    @classmethod
    def of(cls, lm: Decoder) -> _Readout:
        if comparable_basis(lm) == "final":
            return cls(lm, None)
        return cls(lm, lm.weights.W_U.to(torch.promote_types(lm.dtype, torch.float32)))

    def logits(self, x: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
        lm = self.lm
        if self.W_U is None:
            return logits_of(lm, x.to(lm.dtype)).to(x.dtype)
        norm = lm.structure.final_norm
        if norm is not None:
            x = norm.frozen(x, norm.scale(x)) + (0.0 if norm.bias is None else norm.bias)
        logits = x.to(self.W_U.dtype) @ self.W_U
        return lm.structure.capped(logits if lm.weights.b_U is None else logits + lm.weights.b_U)

    def of_tokens(
        self, x: Float[Tensor, "row d_model"], tokens: Int[Tensor, "row t"]
    ) -> tuple[Float[Tensor, "row t"], Float[Tensor, "row t"]]:
        """Return the logits and the log-probabilities of each row's tokens."""
        parts = []
        for rows, chosen in zip(x.split(_ROWS), tokens.split(_ROWS), strict=True):
            logits = self.logits(rows)
            own = logits.gather(1, chosen)
            parts.append((own, own - logits.logsumexp(dim=-1, keepdim=True)))
        logits, log_probabilities = zip(*parts, strict=True)
        return torch.cat(logits), torch.cat(log_probabilities)

    def first(self, x: Float[Tensor, "row d_model"], hidden: Bool[Tensor, " d_vocab"] | None) -> Int[Tensor, " row"]:
        """Return, for each row, the token with the largest logit."""
        logits = self.logits(x)
        return (logits if hidden is None else logits.masked_fill(hidden, -torch.inf)).argmax(dim=-1)


def _of_prefix(
    lm: Decoder, readout: _Readout, tokens: Int[Tensor, " pos"], hidden: Bool[Tensor, " d_vocab"] | None, basis: Basis
) -> tuple[Float[Tensor, "layer k token"], Float[Tensor, "layer k token"], Float[Tensor, "layer k token"]]:
    """Return scores, changes of the logit, and changes of the log-probability at the last position of a prefix."""
    points: list[StreamPoint] = ["resid_pre" if block.parallel else "resid_mid" for block in lm.structure.blocks]
    result = run(lm, tokens[None], (*dict.fromkeys(points), *memory_points(lm), "resid_post"), logits=False)
    wide = torch.promote_types(lm.dtype, torch.float32)
    before = torch.stack([result.at(point, n)[0, -1].to(lm.device) for n, point in enumerate(points)]).to(wide)
    parts = torch.stack([_sub_updates(lm, result, n) for n in range(lm.n_layers)])  # layer k d_model
    if basis == "jacobian":
        lens = fitted_lens(lm)
        before = torch.stack([lens.carried(before[n], n, point) for n, point in enumerate(points)]).to(wide)
        parts = torch.stack([parts[n] @ lens.jacobian(n, point).to(wide) for n, point in enumerate(points)])
    final = readout.first(result.at("resid_post", lm.n_layers - 1)[0, -1:].to(before), hidden)
    words = torch.stack([final.expand(lm.n_layers), readout.first(before, hidden)], dim=-1)  # final, candidate
    rows = torch.cat([before[:, None], before[:, None] + parts], dim=1)
    logits, log_probabilities = readout.of_tokens(
        rows.flatten(0, 1), words[:, None].expand(-1, rows.shape[1], -1).flatten(0, 1)
    )
    score = torch.einsum("lkd,ltd->lkt", parts, lm.weights.W_U.T[words].to(wide))
    by_row = (t.view(*rows.shape[:2], 2) for t in (logits, log_probabilities))
    logit, log_probability = ((t[:, 1:] - t[:, :1]).cpu() for t in by_row)
    return score.cpu(), logit, log_probability


def _sub_updates(lm: Decoder, result: Run, layer: int) -> Float[Tensor, "k d_model"]:
    """Return the dominant sub-updates of a layer at the last position, as they are added to the stream."""
    wide = torch.promote_types(lm.dtype, torch.float32)
    m, W_out = result.at("coefficients", layer)[0, -1].to(lm.device, wide), lm.weights.W_out[layer].to(wide)
    index = dominant(m, W_out, DOMINANT)
    return branch_of_run(lm, result, layer, -1).written(m[index, None] * W_out[index]).to(wide)
