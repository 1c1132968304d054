"""Find and remove the settings with which `generate` does not choose the most probable token.

`generation_config.json` in a model's folder may set a repetition penalty, suppressed tokens or beam search. By default,
generation ignores these settings ("rules"), so that greedy text is the argmax of the model's probabilities.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig

from unembed.errors import UnembedWarning
from unembed.models.decoder import Decoder

SAMPLING = frozenset({"temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"})
"""Settings of the distribution that tokens are sampled from; they have no effect on greedy text."""
_WITHOUT_EFFECT = re.compile(
    "do_sample|max_(length|new_tokens|cache_len)|(pad|bos|eos|decoder_start)_token_id|transformers_version|use_cache|"
    "use_mtp|cache_.*|prefill_chunk_size|.*compile.*|low_memory|continuous_batching_config|output_.*|return_dict.*|"
    # These settings are for assisted generation: an assistant model proposes tokens, and the model accepts only those
    # that it would choose itself.
    "is_assistant|.*assistant.*|target_lookbehind|speculation_type|prompt_lookup_num_tokens|max_matching_ngram_size|"
    # These settings matter only in beam search, or do not change the order of tokens.
    "early_stopping|length_penalty|num_beam_groups|diversity_penalty|renormalize_logits|remove_invalid_values"
)
_NEUTRAL: tuple[Any, ...] = (None, False, 0, 1, [], {})
"""Values with which a setting changes nothing: None, 0, or 1 (a factor, or the number of beams)."""


def rules_of(config: GenerationConfig | None) -> dict[str, Any]:
    """Return the settings of a configuration that can change greedy text, by name."""
    if config is None:
        return {}
    stored = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    return {
        name: value
        for name, value in stored.items()
        if name not in SAMPLING and not _WITHOUT_EFFECT.fullmatch(name) and value not in _NEUTRAL
    }


def warn_of_rules(lm: Decoder, settings: Mapping[str, Any]) -> None:
    """Warn in one line of the settings in the model's own configuration that a generation ignores.

    Args:
        settings: the caller's arguments for `generate`; a setting that they contain is not ignored.
    """
    left = {name: value for name, value in rules_of(lm.hf.generation_config).items() if name not in settings}
    if left:
        named = ", ".join(f"{name} {value!r:.40}" for name, value in left.items())
        warnings.warn(
            f"the generation configuration of {lm.name} sets {named}; here the model's own probabilities decide. To "
            "follow it: generation_config=lm.hf.generation_config, --generation-config in steer",
            UnembedWarning,
            stacklevel=4,
        )


@contextmanager
def without_rules(lm: Decoder, *, is_sampled: bool) -> Iterator[None]:
    """A context in which the model's own generation configuration has no rules (settings that change greedy text).

    `generate` takes settings that the caller does not give from that configuration, so the rules must be removed there.

    Args:
        is_sampled: whether tokens are sampled; if so, the configuration's temperature, top_k and top_p stay.
    """
    model: Any = lm.hf
    own = model.generation_config
    plain = copy.deepcopy(own)
    for name in [*rules_of(own), *(() if is_sampled else SAMPLING)]:
        setattr(plain, name, None)
    model.generation_config = plain
    try:
        yield
    finally:
        model.generation_config = own


def merged(config: GenerationConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for `generate`: a copy of `config` with those `settings` that belong in it, and the others.

    transformers would do the same, but warns if both are given.
    """
    whole = copy.deepcopy(config)
    return {"generation_config": whole, **whole.update(**settings)}
