"""Split an FFN update into its sub-updates m_i v_i: find the dominant ones, and how each changes a token's score.

Source: Geva et al. 2022, section 3 (sub-updates, Eq. 2) and appendix A.3 (contribution).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.lens import final_scale, logit_direction
from unembed.models.decoder import Decoder
from unembed.names import Basis
from unembed.stream.decomposition import branch_of_run
from unembed.stream.run import Run
from unembed.validation import positive_int


def contributions(
    coefficients: Float[Tensor, "*pos d_mlp"], W_out: Float[Tensor, "d_mlp d_model"]
) -> Float[Tensor, "*pos d_mlp"]:
    """Return the norm of each memory's (FFN neuron's) sub-update m_i v_i: |m_i| times the norm of v_i.

    If a norm layer or a gate per channel follows the FFN, this is the norm before that layer or gate.

    Source: Geva et al. 2022, the contribution by which sub-updates are ranked.
    """
    return coefficients.abs() * W_out.norm(dim=-1)


def dominant(
    coefficients: Float[Tensor, "*pos d_mlp"], W_out: Float[Tensor, "d_mlp d_model"], top: int = 10
) -> Int[Tensor, "*pos k"]:
    """Return the indices of the `top` memories with the largest |m| * |v| at each position, the largest first."""
    sizes = contributions(coefficients, W_out)
    return sizes.topk(min(positive_int("top", top), sizes.shape[-1]), dim=-1).indices


@torch.no_grad()
def token_scores(
    lm: Decoder,
    run: Run,
    layer: int,
    position: int,
    token: int,
    basis: Basis = "frozen",
    index: Int[Tensor, " memory"] | None = None,
) -> Float[Tensor, " memory"]:
    """Return what each sub-update of a layer at one position adds to a token's score.

    Args:
        run: a run that captured `memory_points(lm)` and, for "frozen", the resid_post of the last layer.
        basis: "raw" for e_w . m_i v_i as in the paper; "frozen" for the contribution to the logit, through the FFN's
            output norm (if it has one) and the final norm, each with its scale in this run.
        index: indices of the memories to score; all when None.

    Returns:
        One score for each memory; the scores of all memories and of the bias add up to the score of the FFN update.

    Source: Geva et al. 2022, Eq. 2.
    """
    m = run.at("coefficients", layer)[0, position]
    branch = branch_of_run(lm, run, layer, position)
    if basis == "raw":
        u = lm.weights.W_U[:, token]
    else:
        u = logit_direction(lm, token) / final_scale(lm, run.at("resid_post", lm.n_layers - 1)[0, position])
    wide = torch.promote_types(m.dtype, torch.float32)
    rows = slice(None) if index is None else index
    return m[rows].to(wide) * (lm.weights.W_out[layer][rows].to(wide) @ branch.direction(u.to(wide))) * branch.factor
