"""Deprecated names from the previous release, which work until the next release."""

from __future__ import annotations

import warnings
from typing import Any, cast

from unembed.causality.ablation import PromptAblations, ablate
from unembed.causality.corpus_ablation import CorpusAblation
from unembed.causality.patching import PatchingPairs, patch
from unembed.causality.paths import Paths
from unembed.corpus import CorpusSource, open_corpus
from unembed.models.decoder import Decoder
from unembed.names import PatchPoint
from unembed.stream.run import unpadded


def patch_pairs(
    lm: Decoder, clean: Any, corrupted: Any, points: PatchPoint = "z", *args: Any, **options: Any
) -> PatchingPairs:
    """Patch several pairs of prompts. Deprecated: use `patch` with lists of clean and corrupted prompts."""
    _warn("patch_pairs", "patch")
    masks = options.pop("attention_mask", None) or (None, None)
    first, second = cast(Any, [unpadded(lm, one, mask) for one, mask in zip((clean, corrupted), masks, strict=True)])
    return patch(lm, first, second, points, *args, **options)


def patch_paths(
    lm: Decoder,
    clean: Any,
    corrupted: Any,
    senders: Any = "heads",
    receivers: Any = "heads",
    *args: Any,
    **options: Any,
) -> Paths:
    """Patch paths. Deprecated: use `patch` with `through`."""
    _warn("patch_paths", "patch(..., through=)")
    return patch(lm, clean, corrupted, senders, *args, through=receivers, **options)


def ablate_prompts(lm: Decoder, prompts: Any, *args: Any, **options: Any) -> PromptAblations:
    """Ablate in several prompts. Deprecated: use `ablate` with a list of prompts."""
    _warn("ablate_prompts", "ablate")
    several: Any = unpadded(lm, prompts, options.pop("attention_mask", None))
    return ablate(lm, several, *args, **options)


def ablate_over_corpus(lm: Decoder, corpus: CorpusSource = None, *args: Any, **options: Any) -> CorpusAblation:
    """Ablate over a corpus. Deprecated: use `ablate` with a corpus from `open_corpus`."""
    _warn("ablate_over_corpus", "ablate(unembed.open_corpus(...))")
    names = ("heads", "memories", "components", "layers", "to")
    return ablate(lm, open_corpus(corpus), **dict(zip(names, args, strict=False)), **options)


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
