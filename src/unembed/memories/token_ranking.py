"""Find the memories (FFN neurons) whose value vectors promote or suppress a word, and the texts on which they fire.

The coefficient of a memory in a gated layer may be positive or negative. Such a memory is ranked with the sign at which
it promotes (or suppresses) the token, called its pole: at the negative pole, its value vector and score are negated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.jacobian.basis import basis_or_default, fitted_lens, in_basis, lens_identity, mean_unembedding
from unembed.memories.values import Values, memories_at, written_values
from unembed.models.decoder import Decoder, require_decoder
from unembed.models.vocabulary import check_unicode
from unembed.names import Basis, Pole, SignedMemory
from unembed.stream.run import run
from unembed.validation import as_str, as_tuple, positive_int

PREVIEWED, CONTEXT = 8, 8
"""Number of tokens listed for each value vector, and of tokens printed before the one on which a memory fires."""
LISTED = 30
"""A value promotes a word if the word is among its 30 top tokens, as many as the papers show to annotators."""


@dataclass(frozen=True)
class RankedValue:
    """A memory (FFN neuron) whose value vector promotes a word."""

    layer: int
    index: int
    word: str
    token: str
    """The spelling of the word (a single token) that the value vector promotes most."""
    rank: int
    """The rank of that token among all tokens by the value vector's scores, from 1."""
    score: float
    """e_w . v: the score that the value vector gives the token at a coefficient of 1, or of -1 for a negative
    `pole`."""
    top_tokens: tuple[str, ...]
    triggers: tuple[str, ...] = ()
    """Prefixes on which it fires most, the last token in brackets; empty when no text was searched."""
    pole: Pole = "positive"
    """The sign of the coefficient at which it promotes the word; "negative" in gated layers only."""


def word_forms(lm: Decoder, word: str) -> list[int]:
    """Return the ids of all single tokens that spell a word, with or without a space before it.

    The word is tried as given, in lower case, capitalized and in upper case.

    Raises:
        InvalidInput: no spelling of the word is a single token.
    """
    word = word.strip()
    if not word:
        raise InvalidInput("an empty word", instead='Give words separated by commas, such as "safe, thank"')
    spellings = [s + w for w in dict.fromkeys((word, word.lower(), word.capitalize(), word.upper())) for s in (" ", "")]
    found: list[int] = []
    tokenizer = lm.tokenizer
    if tokenizer is None:
        raise InvalidInput(
            "words",
            why=f"{lm.name} was opened without a tokenizer",
            instead="Give one: --tokenizer on the command line, load(tokenizer=) in Python",
        )
    unknown = getattr(tokenizer, "unk_token_id", None)
    for text in spellings:
        check_unicode(text, "word {}")
        ids = tokenizer.encode(text, add_special_tokens=False)
        # Every spelling is tried with and without a leading space. A tokenizer that drops the space returns the same id
        # for both, so repeated ids are skipped. A tokenizer that encodes the space as a separate token returns two
        # ids, so the spelling is skipped.
        if len(ids) == 1 and ids[0] != unknown and ids[0] not in found:
            found.append(ids[0])
    if not found:
        raise InvalidInput(
            f"the word {word!r}",
            why=f"no form of it is a single token of {lm.name}",
            instead="Try a more common word",
        )
    return found


def words_of(text: str) -> list[str]:
    """Split a text at its commas into words without surrounding spaces; empty words are left out."""
    return [word for part in text.split(",") if (word := part.strip())]


@torch.no_grad()
def promoting(lm: Decoder, words: Sequence[str], top: int = 5) -> list[RankedValue]:
    """Return the memories that promote each word most: the word is in v's top 30 tokens, and e_w . v is largest.

    Args:
        words: the words; each counts in every spelling that `word_forms` finds.
        top: number of memories for each word.

    Raises:
        InvalidInput: no spelling of a word is a single token, or no value vector promotes it.

    Memory: one score for each value vector and spelling.
    """
    lm = require_decoder(lm)
    top = positive_int("top", top)
    return [found for word in as_tuple("words", words) for found in _promoting_one(lm, word, top)]


def _promoting_one(lm: Decoder, word: str, top: int) -> list[RankedValue]:
    ids = torch.tensor(word_forms(lm, as_str("word", word)), device=lm.device)
    scores = token_scores_of_values(lm, ids)
    scores, poles = _at_better_pole(lm, scores)
    best, form = scores.max(dim=-1)
    candidates = best.topk(min(40 * top + 200, best.numel())).indices
    found: list[RankedValue] = []
    for chunk in candidates.split(64):
        found += _confirmed(lm, word, chunk, ids, form, best, poles)
        if len(found) >= top:
            return found[:top]
    if not found:
        raise InvalidInput(
            f"no value vector promotes {word!r}",
            why=f"no value vector of {lm.name} has it among its {LISTED} top tokens",
            instead="Try a more common word, or name a memory with --set L.I=3",
        )
    return found


def _confirmed(
    lm: Decoder,
    word: str,
    chunk: Int[Tensor, " candidate"],
    ids: Tensor,
    form: Tensor,
    best: Tensor,
    negative: Bool[Tensor, "memory token"],
) -> list[RankedValue]:
    """Return those candidates whose value vector has the word among its top tokens, in the order given."""
    places = memories_at(lm, chunk.cpu()).tolist()
    below: list[bool] = negative[chunk, form[chunk]].tolist()
    read_together: dict[tuple[int, bool], list[int]] = {}
    for i, (layer, _) in enumerate(places):
        read_together.setdefault((layer, below[i]), []).append(i)
    tops: dict[int, list[int]] = {}
    for (layer, bottom), members in read_together.items():
        top = Values(lm).top(layer, [places[i][1] for i in members], LISTED, bottom=bottom)[0].tolist()
        tops |= zip(members, top, strict=True)
    found: list[RankedValue] = []
    for i, at in enumerate(chunk.tolist()):
        (layer, index), token, listed = places[i], int(ids[form[at]]), tops[i]
        if token in listed:
            text, *top_tokens = lm.token_strings([token, *listed[:PREVIEWED]])
            rank, score = listed.index(token) + 1, float(best[at])
            pole = "negative" if below[i] else "positive"
            found.append(RankedValue(layer, index, word, text, rank, score, tuple(top_tokens), pole=pole))
    return found


def token_scores_of_values(lm: Decoder, ids: Int[Tensor, " token"]) -> Float[Tensor, "memory token"]:
    """Return the score v . e_w that every value vector v gives to each token in `ids`, sorted by layer and index.

    If the model has a fitted lens, v is mapped to the final stream by the lens, and the mean of its scores over the
    vocabulary is subtracted.

    Raises:
        Unsupported: the model has no memories.
    """
    if not lm.memory_layers:
        lm.feed_forward(0)  # raises an error that gives the reason
    columns = lm.weights.W_U[:, ids]
    if basis_or_default(lm, None, "raw") == "raw":
        return torch.cat([(written_values(lm, n).to(columns) @ columns).float() for n in lm.memory_layers])
    lens, centred = fitted_lens(lm), columns.float() - mean_unembedding(lm)[:, None]
    return torch.cat([written_values(lm, n).float() @ lens.read_as(centred, n).float() for n in lm.memory_layers])


@torch.no_grad()
def score_spreads(lm: Decoder) -> Float[Tensor, " memory"]:
    """Return the standard deviation over the vocabulary of every value vector's scores, sorted by layer and index.

    Scores are those of `token_scores_of_values`. Scores divided by this number can be compared between value vectors of
    different lengths.

    Raises:
        Unsupported: the model has no memories.

    Memory: d_model^2, and one layer's values.
    """
    basis = basis_or_default(lm, None, "raw")
    return lm.once((__name__, "spreads", lens_identity(lm)), lambda: _score_spreads(lm, basis))


def _score_spreads(lm: Decoder, basis: Basis) -> Float[Tensor, " memory"]:
    width, n = lm.weights.W_U.shape
    mean = lm.weights.W_U.mean(dim=1, dtype=torch.float32)
    covariance = torch.zeros(width, width, device=mean.device)
    for columns in lm.weights.W_U.split(8192, dim=1):
        centred = columns.float() - mean[:, None]
        covariance += centred @ centred.T / n
    found: list[Tensor] = []
    for layer in lm.memory_layers:
        values = in_basis(lm, written_values(lm, layer), layer, basis)[0].float().to(mean.device)
        found.append(((values @ covariance) * values).sum(dim=-1).clamp_min(0).sqrt())
    return torch.cat(found)


def _at_better_pole(
    lm: Decoder, scores: Float[Tensor, "memory token"]
) -> tuple[Float[Tensor, "memory token"], Bool[Tensor, "memory token"]]:
    """Negate the negative scores of memories whose coefficient can have either sign; return scores and a mask.

    The mask is True for negated scores. A negated score is the score at a coefficient of -1.
    """
    signed = torch.cat([torch.full((lm.n_memories_of(n),), lm.is_signed(n)) for n in lm.memory_layers])
    negative = (scores < 0) & signed[:, None].to(scores.device)
    return torch.where(negative, -scores, scores), negative


@torch.no_grad()
def firing(
    lm: Decoder, memories: Sequence[tuple[int, int] | SignedMemory], texts: Sequence[str], top: int = 3
) -> dict[tuple[int, int] | SignedMemory, tuple[str, ...]]:
    """Return for each memory the text passages on which its coefficient is largest, at most one from each text.

    Args:
        memories: layer and index of each memory; or a `SignedMemory`, for which only coefficients of its sign count.
        texts: the texts to search.
        top: number of passages for each memory.

    Returns:
        The passages of each memory, the largest coefficient first; keys are the memories as they were given. A passage
        ends with the token on which the memory fires, in brackets, after at most `CONTEXT` tokens.
    """
    given = [
        SignedMemory(*lm.memory(*one.address), one.pole) if isinstance(one, SignedMemory) else lm.memory(*one)
        for one in memories
    ]
    layers = sorted({one[0] for one in given})
    seen: dict[tuple[int, int] | SignedMemory, list[tuple[float, str]]] = {one: [] for one in given}
    limit = lm.n_ctx or 512
    for text in texts:
        ids = lm.encode(text)[:, :limit]
        m = run(lm, ids, "coefficients", logits=False, layers=layers)
        for one, found in seen.items():
            signed = one if isinstance(one, SignedMemory) else SignedMemory(*one)
            value, at = (signed.sign * m.at("coefficients", signed.layer)[0, :, signed.index]).max(dim=0)
            tokens = lm.token_strings(ids[0, max(0, int(at) - CONTEXT) : int(at) + 1])
            found.append((float(value), "".join(tokens[:-1]) + f"[{tokens[-1]}]"))
    return {
        one: tuple(text for value, text in sorted(found, reverse=True)[:top] if value > 0)
        for one, found in seen.items()
    }
