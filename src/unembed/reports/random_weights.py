"""The control of a study: the same measurements on a model with random initial weights.

A published finding that also holds for random weights shows nothing that was learned. The control uses a small sample.
Its judgements are cached for later reports with the same architecture, tokenizer, text and settings.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.models.loading import Opened
from unembed.models.vocabulary import RARE
from unembed.reports.quantities import Judgement, Quantity
from unembed.reports.stages import Work
from unembed.results.cache import cache_folder
from unembed.results.result_files import open_result, save_result
from unembed.version import __version__

M = TypeVar("M")
SEED = 20_210_905
"""Seed of the control's weights; a large number, because people use small seeds for their own random models."""


def with_random_weights(lm: Decoder, seed: int = SEED) -> Decoder:
    """Return a model with the same configuration, tokenizer, dtype and device, initialised at random.

    Tokens that `lm` never learned count as never learned here too, so that both models leave out the same ones.

    Memory: a second model of the same size.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        architecture: Any = type(lm.hf)
        hf = architecture(copy.deepcopy(lm.hf.config)).to(device=lm.device, dtype=lm.dtype).eval()
    counts = torch.where(lm.unlearned, 0, RARE)
    return Decoder(Opened(hf, lm.tokenizer, f"{lm.name} with random weights", None, counts))


def control_judgements(
    study: str,
    quantities: Sequence[Quantity[M]],
    lm: Decoder,
    work: Work,
    settings: Mapping[str, Any],
    measure: Callable[[Decoder, Work], M],
) -> dict[str, Judgement]:
    """Return the judgement of each quantity on a model with random weights, by name, from the cache where possible.

    Args:
        lm: the model whose architecture and tokenizer the control has.
        settings: the text and the options of the control, which its numbers depend on.
        measure: runs the study's measurements.
    """
    config = {k: v for k, v in lm.hf.config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}
    tests = [(q.name, q.test) for q in quantities]
    # Tokenizers count as the same if they have the same token string for every id.
    vocabulary = hashlib.sha256("\0".join(lm.token_strings(range(lm.d_vocab))).encode(errors="replace")).hexdigest()
    key = [study, __version__, config, vocabulary, str(lm.dtype), int(lm.unlearned.sum()), tests, dict(settings), SEED]
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:16]
    path = cache_folder() / "controls" / f"{study}-{digest}.safetensors"
    with suppress(InvalidInput, ValueError):  # no complete file in the cache
        return open_result(path)
    work.progress("random weights", 0, 1)
    own = replace(
        work,
        key={**work.key, "control": digest},
        lens=None,  # the lens was fitted on the trained weights
        progress=lambda what, done, total: work.progress(f"random weights: {what}", done, total),
    )
    m = measure(with_random_weights(lm), own)
    found: dict[str, Judgement] = {}
    for done, quantity in enumerate(quantities):
        own.progress(quantity.name, done, len(quantities))
        judged = own.stage(f"judgement of {quantity.name}", partial(quantity.judgement, m))
        if judged is not None:
            found[quantity.name] = judged
    path.parent.mkdir(parents=True, exist_ok=True)
    save_result(found, path)
    return found
