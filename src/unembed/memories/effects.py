"""Measure the effects of single sub-updates on a token: static score, effective score, and change of probability.

For a value vector v_i with coefficient m_i and a token w with unembedding e_w (Geva et al. 2022, section 3):

- static score r_i = e_w . v_i, the same in every run;
- effective score e_w . m_i v_i; the effective scores of all sub-updates and of the bias add up to the FFN update's;
- Eq. 2: p(w | x + m_i v_i) is p(w | x) exp(e_w . m_i v_i), up to the normaliser. Two changes of probability are
  measured: one sub-update added to the stream x before the FFN, and one removed from the stream after the FFN.

In the basis "frozen", the final norm is applied with its scale in this run, so scores still add up. In the basis
"final", the norm is applied as in the model; a score is then the change of the logit, and scores need not add up. If a
norm, or a gate that multiplies each channel, follows the FFN, it is applied to v_i as in this run, because its output
is what is added to the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.lens import final_scale, logits_of
from unembed.memories.sub_updates import contributions
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import LOGIT_LENS_BASES, Basis
from unembed.results import Displayed, Table, format_number, quoted
from unembed.stream.decomposition import branch_of_run, memory_points, require_one_stream
from unembed.stream.run import Run, Tokens, prepare, run
from unembed.validation import as_tuple, one_of, positive_int


@dataclass(frozen=True, eq=False, repr=False)
class SubUpdateEffects(Displayed):
    """Sub-updates at one position, and the effect of each on one token."""

    lm: Decoder
    layer: int
    token: int
    basis: Basis
    index: Int[Tensor, " k"]
    coefficient: Float[Tensor, " k"]
    contribution: Float[Tensor, " k"]
    """|m| times the length of the value vector."""
    static_score: Float[Tensor, " k"]
    """e_w . v, the score that the value vector gives the token; the final norm's gain is applied, but not its scale."""
    score: Float[Tensor, " k"]
    """Contribution of the sub-update to the token's logit in this basis."""
    probability_before: float
    """Probability of the token if the final norm and W_U were applied to the stream before the FFN."""
    probability_after: float
    """Probability of the token if the final norm and W_U were applied to the stream after the FFN."""
    change_alone: Float[Tensor, " k"]
    """Probability change when only this sub-update is added to the stream before the FFN (Eq. 2)."""
    change_removed: Float[Tensor, " k"]
    """Probability change when only this sub-update is removed from the stream after the FFN."""

    def to_table(self) -> Table:
        """Return a table with one row for each sub-update."""
        lm = self.lm
        columns = {
            "index": self.index,
            "coefficient": self.coefficient,
            "contribution": self.contribution,
            "static_score": self.static_score,
            "score": self.score,
            "probability_change_alone": self.change_alone,
            "probability_change_removed": self.change_removed,
        }
        token = lm.token_strings([self.token])[0]
        title = (
            f"Layer {self.layer}: {quoted(token)} goes from {format_number(self.probability_before)} to "
            f"{format_number(self.probability_after)}"
        )
        return Table(title, columns, lm.provenance(basis=self.basis))


@torch.no_grad()
def sub_update_effects(
    lm: Decoder,
    tokens: Tokens,
    layer: int,
    token: str | int,
    *,
    position: int = -1,
    indices: Sequence[int] | None = None,
    top: int = 10,
    basis: Basis = "raw",
) -> SubUpdateEffects:
    """Measure the effects of an FFN's sub-updates at one position on one token.

    Args:
        tokens: one prompt, text or ids.
        token: the token w, as text or id.
        position: the token position; the last by default.
        indices: indices of the memories (FFN neurons) to measure; the `top` dominant ones when None.
        top: number of memories measured when `indices` is None: those with the largest |m| times the length of v.
        basis: "raw" (the papers), "frozen" or "final".

    Raises:
        InvalidInput: an unknown basis, or more than one prompt.
        OutOfRange: a layer, position or memory that the model does not have.
        NotOneToken: the text is not a single token.
        Unsupported: the model has no memories.

    Source: Geva et al. 2022, section 3, Eq. 2.
    """
    one_of("basis", basis, LOGIT_LENS_BASES)
    lm, top = require_decoder(lm), positive_int("top", top)
    layer = lm.layer(layer)
    lm.feed_forward(layer)
    ids, mask = prepare(lm, tokens)
    if ids.shape[0] != 1:
        raise InvalidInput(
            f"{ids.shape[0]} prompts", why="effects are measured on a single prompt", instead="Give one prompt"
        )
    require_one_stream(lm, "the effects of single sub-updates")
    position = lm._within("position", position, ids.shape[1])
    w = lm.single_token(token)
    before = "resid_pre" if lm.structure.blocks[layer].parallel else "resid_mid"
    result = run(lm, ids, (before, "resid_post", *memory_points(lm)), attention_mask=mask, logits=False)
    return _effects(lm, result, layer, position, w, before, indices, top, basis)


def _effects(
    lm: Decoder,
    result: Run,
    layer: int,
    position: int,
    token: int,
    before: str,
    indices: Sequence[int] | None,
    top: int,
    basis: Basis,
) -> SubUpdateEffects:
    m = result.at("coefficients", layer)[0, position]
    W_out = lm.weights.W_out[layer]
    sizes = contributions(m, W_out)
    if indices is None:
        index = sizes.topk(min(top, len(sizes))).indices
    else:
        index = torch.tensor(
            [lm.memory(layer, i)[1] for i in as_tuple("indices", indices)], dtype=torch.long, device=m.device
        )
    branch = branch_of_run(lm, result, layer, position)
    values = branch.written(W_out[index])
    parts = m[index, None] * values
    x, after = result.at(before, layer)[0, position], result.at("resid_post", layer)[0, position]
    block = lm.structure.blocks[layer]
    behind = parts * block.exit_gain * block.handover  # the sub-updates, scaled as in the stream after the block
    scale = final_scale(lm, result.at("resid_post", lm.n_layers - 1)[0, position])
    first, alone, last, removed = (
        _logits(lm, rows, basis, scale) for rows in (x[None], x + parts, after[None], after - behind)
    )
    linear = _logits(lm, parts, basis, scale)[:, token] if basis != "final" else None
    score = alone[:, token] - first[0, token] if linear is None else linear
    # The static score uses the value vector alone, without the norm scales and gates of the run. The basis "final"
    # applies the final norm, which is not linear, because it divides by a scale computed from its input. The static
    # score needs a linear basis, so it uses "frozen" in place of "final": the same norm with this scale fixed at 1.
    own = lm.weights.W_out[layer][index]
    site = lm.feed_forward(layer)
    one = torch.ones(1, dtype=own.dtype, device=own.device)
    own = (own if site.branch_norm is None else site.branch_norm.frozen(own, one)) * site.multiplier
    static = _logits(lm, own, "raw" if basis == "raw" else "frozen", one)[:, token]
    p_first, p_alone, p_last, p_removed = (t.softmax(dim=-1)[:, token] for t in (first, alone, last, removed))
    return SubUpdateEffects(
        lm,
        layer,
        token,
        basis,
        index,
        m[index],
        sizes[index],
        static,
        score,
        float(p_first),
        float(p_last),
        p_alone - p_first,
        p_removed - p_last,
    )


def _logits(lm: Decoder, rows: Tensor, basis: Basis, scale: Tensor) -> Float[Tensor, "row d_vocab"]:
    out = logits_of(lm, rows.to(lm.dtype), basis, scale.expand(len(rows), 1) if basis == "frozen" else None)
    return out.to(torch.promote_types(out.dtype, torch.float32))
