"""Rerun the last position of a prompt with replaced activations, using keys and values of the unchanged run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.replaced_pass import Replacement, replaced_pass
from unembed.causality.rerun import Rerun, Row
from unembed.errors import UnembedError
from unembed.names import SUM_TOLERANCE
from unembed.stream.attention_keys import Attended, attending_to
from unembed.stream.hooks import memory_guard
from unembed.stream.run import cache_argument

KEYS_AT_ONCE = 32_768
"""A batch has at most this many keys: its number of rows times the prompt's positions. This limits the memory used."""


class LastPosition:
    """Reruns of one prompt in which only activations at its last position are replaced."""

    def __init__(self, rerun: Rerun, keys: Mapping[int, Attended]) -> None:
        """Prepare reruns of the prompt's last position.

        Args:
            rerun: the unchanged run.
            keys: the keys and values of that run, or of a run of a longer text that begins with these tokens.
        """
        self._rerun, self._keys, self._position = rerun, dict(keys), rerun.n_pos - 1

    @torch.no_grad()
    def logits(self, rows: Sequence[Row]) -> tuple[Float[Tensor, " d_vocab"], Float[Tensor, "row d_vocab"]] | None:
        """Return the logits after the last position: of the unchanged prompt, and of every row of replacements.

        Both are computed by the same kernels, so that rounding does not add to their difference.

        Returns:
            Both tensors; None if the model cannot run one position by itself, or if such a pass without replacements
            does not give the logits of the unchanged run.

        Raises:
            UnembedError: an activation cannot be replaced in this model.

        Memory: one layer's keys and values of `KEYS_AT_ONCE` positions, and the result.
        """
        size = max(2, KEYS_AT_ONCE // (self._position + 1))
        reference = self._rerun.reference
        unchanged: Tensor | None = None
        found: list[Tensor] = []
        for start in range(0, len(rows), size - 1):
            try:
                logits = self._batch([(), *rows[start : start + size - 1]])
            except UnembedError:
                raise
            except Exception:  # the model's own code cannot run one position by itself
                return None
            if float((logits[0].double() - reference.double()).abs().max()) > self._tolerance():
                return None
            unchanged = logits[0]
            found.append(logits[1:])
        return None if unchanged is None else (unchanged, torch.cat(found))

    def _tolerance(self) -> float:
        lm, largest = self._rerun.lm, float(self._rerun.reference.double().abs().max())
        return (1e-5 if lm.dtype_name == "float32" else SUM_TOLERANCE[lm.dtype_name]) * max(1.0, largest)

    def _batch(self, rows: Sequence[Row]) -> Float[Tensor, "row d_vocab"]:
        rerun, n = self._rerun, len(rows)
        lm, here = rerun.lm, torch.tensor([0])
        start = min((change.layer for row in rows for change in row), default=0)
        changes: list[tuple[int, Replacement]] = [
            (i, replace(change, positions=here)) for i, row in enumerate(rows) for change in row
        ]
        stream = rerun.activation("resid_pre", start)[self._position]
        passes = replaced_pass(
            lm,
            changes,
            rerun.edits,
            skipped=rerun.block_outputs[:start],
            entering=lambda t: stream.to(t).expand_as(t).clone(),
        )
        ids = rerun.ids[:, self._position :].expand(n, 1)
        places = torch.full_like(ids, self._position)
        guard = memory_guard(f"{n} rows of one token after {self._position}")
        with guard, passes as current, attending_to(lm, self._keys, self._position):
            current.starts_at = self._position
            return lm.hf(ids, position_ids=places, **cache_argument(lm), **current.arguments).logits[:, 0]
