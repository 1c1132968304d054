"""List the tokens that a head raises for each source token, represented by its vector after the layers below.

A head in a deep layer reads a stream that earlier layers have written to. The full OV circuit uses a token's embedding
instead, and its largest entries are those of rare tokens. Here each token that is common in a text is run alone through
the layers below, and only common tokens are listed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.text.skip_trigrams import frequent_tokens
from unembed.attention.text.token_vectors import token_vectors
from unembed.attention.weights.folded_weights import at_least_float32, through_unembedding
from unembed.attention.weights.one_head import numbered_words
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.names import HeadAddress, HeadBasis
from unembed.results import visible

MIN_COUNT = 30
"""A token is common if it occurs at least this often in the shipped text."""
RAISED = 3
"""Number of raised tokens that are listed for each source token."""


@dataclass(frozen=True)
class RaisedTokens:
    """The source tokens for which a head most raises a word other than the source itself, strongest first."""

    sources: list[str]
    raises: list[str]
    """For each source token, the words that the head raises most, without the word of the source token itself."""
    entries: list[float]
    """What the head adds to the logit of the first of these words, above the mean over the sources."""
    text: str
    """How the entries are computed."""


@torch.no_grad()
def raised_tokens(circuits: HeadMatrices, place: HeadAddress, basis: HeadBasis, top: int) -> RaisedTokens | None:
    """List the source tokens for which a head most raises a word other than the source itself, and the raised words.

    An entry is the logit that the OV circuit adds to a token for a source, minus the mean over all listed sources. So
    tokens that the head raises for every source are not listed. None if the model has no tokenizer or fewer than
    two tokens are common.

    Raises:
        Unsupported: the head has no OV circuit, or blocks rescale the stream (see `token_vectors`).

    Memory: an entry for each pair of common tokens. Cost: a pass through the layers below over each common token.
    """
    lm, layer = circuits.lm, place.layer
    if lm.tokenizer is None:
        return None
    ids = frequent_tokens(lm, None, MIN_COUNT)
    ids = ids[~lm.unlisted.to(ids.device)[ids]]
    if len(ids) < 2:
        return None
    ov = circuits.ov(*place, basis)
    read = token_vectors(lm, ids, [layer], basis)[layer] @ at_least_float32(ov.left)
    entries = read @ at_least_float32(through_unembedding(lm, ov.right, basis, ids.to(ov.right.device), centre=True))
    words = numbered_words(lm, ids).to(entries.device)
    best = between_words(entries, words).topk(min(RAISED, len(ids)))
    rows = best.values[:, 0].argsort(descending=True, stable=True)[:top].cpu()
    found, values = best.indices.cpu()[rows], best.values.cpu()[rows]
    text = (
        f"Sources are the {len(ids):,} tokens that occur at least {MIN_COUNT} times in the shipped text; only these "
        "tokens are listed. Each is represented by its vector after the layers below, when the model runs on this "
        "token alone. An entry is what the head's OV circuit adds to the first token's logit, above the mean over the "
        "sources."
    )
    return RaisedTokens(
        lm.token_strings(ids[rows]),
        [" ".join(map(visible, lm.token_strings(ids[one]))) for one in found],
        values[:, 0].tolist(),
        text,
    )


def between_words(entries: Float[Tensor, "token token"], words: Int[Tensor, " token"]) -> Float[Tensor, "token token"]:
    """Subtract each column's mean, and set entries between two tokens of one word to minus infinity."""
    return (entries - entries.mean(0)).masked_fill(words[:, None] == words[None], -torch.inf)
