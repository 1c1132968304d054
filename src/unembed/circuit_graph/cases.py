"""Cases of a behaviour: a prompt, the token to explain, and optionally a counterfactual prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unembed.circuit_graph.relevance import Aim
from unembed.errors import InvalidInput
from unembed.logit_attribution import pair
from unembed.models.decoder import Decoder
from unembed.stream.run import OnePrompt, prepare

BATCH_TOKENS = 512
"""Largest number of prompt tokens in one batch."""


@dataclass(frozen=True)
class Case:
    """One prompt of a behaviour, as token ids.

    Attributes:
        prompt: the tokens of the prompt.
        counterfactual: the tokens of a prompt without the behaviour, as many as in `prompt`; None for no such prompt.
        token: the token whose logit after the last position is explained.
        against: the token whose logit is subtracted; None for the logit alone.
    """

    prompt: tuple[int, ...]
    counterfactual: tuple[int, ...] | None
    token: int
    against: int | None


GivenPair = Sequence[Any] | Case
"""A tuple of prompt, counterfactual prompt, token, and the token whose logit is subtracted; or a case."""


def read_case(
    lm: Decoder,
    prompt: OnePrompt,
    counterfactual: OnePrompt | None,
    token: str | int,
    against: str | int | None,
) -> Case:
    """Make a case from texts or token ids.

    Raises:
        InvalidInput: an argument contains several prompts, or the counterfactual has another number of tokens.
        NotOneToken: `token` or `against` is not a single token of the vocabulary.
    """
    target, other = pair(lm, token, against)
    own = _one(lm, prompt)
    if counterfactual is None:
        return Case(own, None, target, other)
    changed = _one(lm, counterfactual)
    if len(own) != len(changed):
        raise InvalidInput(
            f"prompts of {len(own)} and {len(changed)} tokens",
            why="a circuit compares activations at the same position",
            instead="Give a counterfactual with as many tokens",
        )
    return Case(own, changed, target, other)


def read_cases(lm: Decoder, pairs: Sequence[GivenPair]) -> tuple[Case, ...]:
    """Make a case from each pair of prompts.

    Raises:
        InvalidInput: there are no pairs; a pair is not (prompt, counterfactual, token, against); or only some pairs
            have a counterfactual.
    """
    if isinstance(pairs, str) or not len(pairs):
        raise InvalidInput("the list of pairs is empty", instead="Give pairs (prompt, counterfactual, token, against)")
    found: list[Case] = []
    for number, given in enumerate(pairs):
        if isinstance(given, Case):
            found.append(given)
            continue
        if isinstance(given, str) or len(given) != 4:
            raise InvalidInput(
                f"pair {number}",
                why="it does not have four elements",
                instead="Give (prompt, counterfactual, token, against) for each",
            )
        found.append(read_case(lm, *given))
    if len({case.counterfactual is None for case in found}) > 1:
        raise InvalidInput(
            "pairs of which only some have a counterfactual",
            instead="Give a counterfactual for each pair, or for no pair",
        )
    return tuple(found)


def _one(lm: Decoder, prompt: OnePrompt) -> tuple[int, ...]:
    ids, _ = prepare(lm, prompt)
    if len(ids) != 1:
        raise InvalidInput(f"{len(ids)} prompts", why="one is expected", instead="Give pairs=[...] for several")
    return tuple(ids[0].tolist())


@dataclass(frozen=True, eq=False)
class CaseBatch:
    """Cases with prompts of equal length, which are run as one batch."""

    cases: tuple[Case, ...]
    tokens: Int[Tensor, "batch pos"]
    counterfactual: Int[Tensor, "batch pos"] | None

    @property
    def aim(self) -> Aim:
        """The metric of each row: the logit, or the difference of logits, that is explained."""
        return Aim([case.token for case in self.cases], [case.against for case in self.cases])


def batches(lm: Decoder, cases: Sequence[Case]) -> Iterator[CaseBatch]:
    """Yield batches of cases of equal prompt length, with at most `BATCH_TOKENS` tokens, but at least one case."""
    by_length: dict[int, list[Case]] = {}
    for case in cases:
        by_length.setdefault(len(case.prompt), []).append(case)
    for length, same in by_length.items():
        rows = max(1, BATCH_TOKENS // length)
        for start in range(0, len(same), rows):
            some = tuple(same[start : start + rows])
            own = torch.tensor([case.prompt for case in some], device=lm.device)
            others = [case.counterfactual for case in some if case.counterfactual is not None]
            yield CaseBatch(some, own, torch.tensor(others, device=lm.device) if others else None)
