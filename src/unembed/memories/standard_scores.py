"""Tokens that distinguish a value vector from the others of its layer: scores standardised over the layer.

The top tokens of many value vectors are the same, because the unembedding gives some tokens high scores for any vector.
Here each token's score is expressed in standard deviations above its mean over all value vectors of the layer, which
removes what they share. Such a list shows what is special about a value vector, not what it raises most: on SmolLM2,
fewer of the first 20 tokens rise when the value vector is added than with plain scores.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.jacobian.basis import basis_or_default, in_basis
from unembed.lens import COLUMNS
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import Basis, MemoryIndex
from unembed.validation import positive_int


@torch.no_grad()
def distinctive_tokens(
    lm: Decoder,
    layer: int,
    index: MemoryIndex,
    top: int = 30,
    *,
    basis: Basis | None = None,
    bottom: bool = False,
    show_unlearned: bool = False,
) -> tuple[Int[Tensor, " k"], Float[Tensor, " k"]]:
    """Return the tokens by which a value vector differs most from others of its layer: ids and standardised scores.

    Args:
        top: number of tokens.
        basis: "raw" or "jacobian"; when None, "jacobian" where a lens is fitted, else "raw".
        bottom: return the tokens with the lowest scores instead of the highest.
        show_unlearned: include tokens that the model never learned.

    Raises:
        OutOfRange: there is no such memory.
        InvalidInput: another basis.

    Memory: a matrix of d_model by d_model, and d_model * COLUMNS numbers.
    """
    lm = require_decoder(lm)
    layer, number = lm.memory(layer, index)
    chosen = basis_or_default(lm, basis, "raw")
    if chosen not in ("raw", "jacobian"):
        raise InvalidInput(
            f"standardised scores in the basis {chosen!r}",
            why="they need scores that are linear in the value vector",
            instead="Use raw or jacobian",
        )
    values, _ = in_basis(lm, written_values(lm, layer), layer, chosen)
    values = values.float()
    mean = values.mean(dim=0)
    centred = values - mean
    covariance = centred.T @ centred / len(values)
    scores: list[Tensor] = []
    for start in range(0, lm.d_vocab, COLUMNS):
        columns = lm.weights.W_U[:, start : start + COLUMNS].float()
        deviation = ((covariance @ columns) * columns).sum(dim=0).clamp_min(1e-30).sqrt()
        scores.append(centred[number] @ columns / deviation)
    whole = torch.cat(scores)
    if lm.unlisted is not None and not show_unlearned:
        whole[lm.unlisted.to(whole.device)] = torch.inf if bottom else -torch.inf
    found = whole.topk(min(positive_int("top", top), lm.d_vocab), largest=not bottom)
    return found.indices, found.values
