"""Generate a continuation of a prompt while one activation in the prompt is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from unembed.causality.prompt_pair import Alignment, Direction, align, taken_from
from unembed.causality.rerun import Rerun
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.stream.generation import end_tokens
from unembed.stream.run import Tokens
from unembed.validation import positive_int


@dataclass(frozen=True)
class PatchedToken:
    """One generated token, with its probability."""

    id: int
    probability: float


def continue_patched(
    lm: Decoder,
    clean: Tokens,
    corrupted: Tokens,
    point: str,
    layer: int,
    position: int | None,
    index: int | None = None,
    *,
    direction: Direction = "denoising",
    alignment: Alignment | None = None,
    max_new_tokens: int = 20,
) -> Iterator[PatchedToken]:
    """Yield the most probable next tokens one by one, while an activation at the prompt's positions is replaced.

    Args:
        clean, corrupted, point, direction, alignment: as in `patch`.
        position: the position in the patched run; by default, all that have a corresponding token.
        index: the head (for z) or the memory (for coefficients).

    Raises:
        InvalidInput: the position has no corresponding token, or `point` is z or coefficients and there is no index.
        OutOfRange: the model does not have this layer, head or memory.
        PointMissing: the layer does not have this activation.

    Cost: two passes over the whole text for each new token; nothing is cached.
    """
    if point in ("z", "coefficients") and index is None:
        raise InvalidInput(
            f"a patch of {point}", why="a continuation patches a single head or memory", instead="Give the index of one"
        )
    if point == "pattern":
        raise InvalidInput(
            "a continuation of a patched pattern", why="the clean run's pattern has no rows for new tokens"
        )
    layer = lm.layer(layer)
    if point == "z":
        index = lm.head(index)  # type: ignore[arg-type]
    elif point == "coefficients":
        layer, index = lm.memory(layer, index)  # type: ignore[arg-type]
    new_tokens = positive_int("max_new_tokens", max_new_tokens)
    first, second = Rerun(lm, clean, (point,)), Rerun(lm, corrupted)
    pairs, _ = align(lm, first.ids[0], second.ids[0], alignment)
    if direction == "noising":
        first, second = Rerun(lm, corrupted, (point,)), first
        pairs = [(c, a) for a, c in pairs]
    if position is not None:
        pairs = [(a, c) for a, c in pairs if c == position]
        if not pairs:
            raise InvalidInput(f"position {position}", why="no token of the first prompt is aligned with it")
    replacement = taken_from(first, point, layer, pairs, index)
    ids = second.ids
    start, ends = ids.shape[1], end_tokens(lm)
    for _ in range(new_tokens):
        if lm.n_ctx is not None and ids.shape[1] >= lm.n_ctx:
            return
        run = second if ids.shape[1] == start else Rerun(lm, ids)
        probabilities = run.logits([[replacement]])[0].float().softmax(-1)
        token = int(probabilities.argmax())
        ids = torch.cat([ids, torch.tensor([[token]], device=ids.device)], dim=1)
        yield PatchedToken(token, float(probabilities[token]))
        if token in ends:
            return
