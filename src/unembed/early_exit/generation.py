"""Generate text with early exit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

from unembed.early_exit.layer_skipping import skip_layers
from unembed.early_exit.protocols import Exit
from unembed.errors import InvalidInput
from unembed.results import Displayed, Provenance, Table
from unembed.stream.generation import generate_ids


@dataclass(frozen=True, eq=False, repr=False)
class Generated(Displayed):
    """A text generated with early exit."""

    text: str
    """The text of prompt and continuation."""
    prompt: str
    ids: Int[Tensor, "1 pos"]
    """The tokens of prompt and continuation."""
    start: int
    """The position of the first new token."""
    layers: tuple[int, ...]
    """For each new token but the first, the last block that was computed. The first comes from the pass over the
    prompt, which computes all blocks."""
    n_layers: int
    seconds: float
    new_tokens: tuple[str, ...]
    provenance: Provenance

    def to_table(self) -> Table:
        """Return one row for each new token, with the last block that was computed for it."""
        layers = [self.n_layers - 1, *self.layers][: len(self.new_tokens)]
        columns = {"token": list(self.new_tokens), "layer": layers}
        return Table("Generated with early exit", columns, self.provenance)

    @property
    def saved_layers(self) -> float:
        """The number of blocks that were skipped, averaged over tokens."""
        return sum(self.n_layers - 1 - n for n in self.layers) / max(len(self.layers), 1)


def generate(
    rule: Exit, prompt: str, *, max_new_tokens: int = 20, seed: int | None = None, **options: Any
) -> Generated:
    """Continue a prompt with early exit.

    Args:
        rule: decides after which layer a token exits.
        max_new_tokens: largest number of tokens to add.
        seed: the seed of sampling; decoding is greedy when None.
        options: further arguments of transformers' `generate`; beam search is not supported.

    Raises:
        InvalidInput: beam search or several prompts are requested, or the prompt is too long for the model.
        Unsupported: the model has no ordinary KV cache.
    """
    why = "the tokens of a batch would exit at different layers"
    if options.get("num_beams", 1) != 1 or options.get("num_return_sequences", 1) != 1:
        raise InvalidInput("beams and early exit", why=why, instead="Generate greedily or sample")
    if not isinstance(prompt, str):
        raise InvalidInput("several prompts", why=why, instead="Call it once for each prompt")
    with skip_layers(rule) as exits:
        began = time.perf_counter()
        ids, start = generate_ids(
            rule.lm, [prompt], max_new_tokens=max_new_tokens, seed=seed, use_cache=True, **options
        )
        seconds = time.perf_counter() - began
    text = prompt + rule.lm.vocabulary.continuations(ids, start)[0]
    tokens = tuple(rule.lm.token_strings(ids[0, start:]))
    provenance = rule.lm.provenance(seed=seed)
    return Generated(text, prompt, ids, start, tuple(exits), rule.lm.n_layers, seconds, tokens, provenance)
