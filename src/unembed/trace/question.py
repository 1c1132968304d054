"""The question that a trace answers: why is one token predicted and not another?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """Why is `token` predicted and not `against`? If `against` is None, only the logit of `token` is explained."""

    token: int
    against: int | None
