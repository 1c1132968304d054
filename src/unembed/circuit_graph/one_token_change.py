"""Find a counterfactual for a prompt: the change of one token after which another answer is most probable."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from unembed.circuit_graph.cases import Case, batches
from unembed.circuit_graph.node_scores import node_scores
from unembed.models.decoder import Decoder
from unembed.stream.run import run

CANDIDATES = 32
"""Largest number of tokens that are tried at one position."""
_POOL = 256
"""Number of tokens with similar embeddings. The candidates are those of them that are written like the replaced
token."""
LIKELY = 0.5
"""Factor that decides whether a found second answer is accepted.

Let p be the probability of the explained token after the original prompt. After the changed prompt, the second answer
must be more probable than the explained token by at least this factor times p."""
PLACES = 4
"""Largest number of positions at which tokens are tried: those whose tokens have the largest relevance."""


@torch.no_grad()
def with_counterfactual(lm: Decoder, case: Case) -> Case:
    """Return the case with a counterfactual prompt that differs in one token.

    Each of the most relevant tokens is replaced by tokens with similar embeddings, except the two answers. A token must
    be written like the one that it replaces: with or without a leading space, a capital, or characters other than
    letters. The result is the change after which the other answer is most probable.

    If the case names no other answer (`against` is None), one is chosen too: a token that has an embedding similar to
    that of the explained token, and is written like it. The result is then the change and the answer for which the
    answer's probability minus that of the explained token is largest. The case is returned unchanged if this difference
    is below `LIKELY` times the explained token's probability after the original prompt.

    Cost: one pass over all changed prompts.
    """
    with torch.enable_grad():
        scores = node_scores(lm, [case]).tokens.flip(0)
    others = _similar(lm, case.token) if case.against is None else torch.tensor([case.against], device=lm.device)
    answers = {case.token, case.against}
    changed = [
        replace(case, prompt=(*case.prompt[:place], token, *case.prompt[place + 1 :]), counterfactual=None)
        for place in scores.abs().topk(min(PLACES, len(scores))).indices.tolist()
        for token in _similar(lm, case.prompt[place]).tolist()
        if token not in answers
    ]
    found, best = case, float("-inf")
    for batch in batches(lm, changed):
        log_p = run(lm, batch.tokens).logits[:, -1].float().log_softmax(-1)
        chosen, answer = log_p[:, others].max(dim=-1)
        score = chosen if case.against is not None else chosen.exp() - log_p[:, case.token].exp()
        row = int(score.argmax())
        if float(score[row]) > best:
            best, other = float(score[row]), int(others[answer[row]])
            found = replace(case, counterfactual=batch.cases[row].prompt, against=other)
    if case.against is not None:
        return found
    own = run(lm, list(case.prompt)).logits[0, -1].float().softmax(-1)[case.token]
    return found if best >= LIKELY * float(own) else case


def _similar(lm: Decoder, token: int) -> Int[Tensor, " candidate"]:
    """Return the tokens with the embeddings most similar to a token's; only those written alike, if there are any."""
    W_E = lm.weights.W_E
    norms = lm.once(("circuit_graph", "lengths of embeddings"), lambda: torch.linalg.vector_norm(W_E, dim=1))
    closeness = (W_E @ W_E[token]).float() / norms.float().clamp_min(1e-6)
    closeness[token] = -torch.inf
    closeness[lm.unlisted.to(closeness.device)] = -torch.inf
    similar = closeness.topk(min(_POOL, lm.d_vocab - 1)).indices
    own, *shapes = map(_shape, lm.token_strings([token, *similar.tolist()]))
    alike = similar[torch.tensor([shape == own for shape in shapes], device=similar.device)]
    return (alike if len(alike) else similar)[:CANDIDATES]


def _shape(text: str) -> tuple[bool, bool, bool]:
    """Return how a token is written: whether it begins with whitespace, has only letters, and begins with a capital."""
    word = text.strip()
    return text[:1].isspace(), word.isalpha(), word[:1].isupper()
