"""The handle that `unembed.load()` returns: one-line methods, each calling one room."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from unembed.causality.ablation import Ablation, ablate
from unembed.causality.corpus_ablation import CorpusAblation, ablate_over_corpus
from unembed.causality.metrics import Metric, MetricFunction
from unembed.causality.pairs import PatchingPairs, patch_pairs
from unembed.causality.patching import GaussianNoise, Patching, patch
from unembed.causality.paths import Paths, patch_paths
from unembed.memories.values import Values
from unembed.models.decoder import Decoder
from unembed.models.loading import open_model
from unembed.stream.generation import generate
from unembed.stream.hooks import Hook, attach_hooks
from unembed.stream.interventions import Edits
from unembed.stream.run import Run, Tokens, run
from unembed.trace.trace import Trace

if TYPE_CHECKING:
    from unembed.dictionaries.attachment import AttachedDictionary
    from unembed.dictionaries.dictionary import Dictionary


class LanguageModel(Decoder):
    """A decoder with everything that can be asked of it."""

    def run(
        self,
        tokens: Tokens,
        capture: str | Collection[str] = (),
        edits: Edits = (),
        *,
        attention_mask: Tensor | None = None,
        logits: bool = True,
        layers: Sequence[int] | None = None,
        hooks: Mapping[str, Hook] | None = None,
        grad: bool = False,
    ) -> Run:
        """One forward pass with captures, edits, hooks and gradients; see `unembed.stream.run.run`."""
        return run(
            self,
            tokens,
            capture,
            edits,
            attention_mask=attention_mask,
            logits=logits,
            layers=layers,
            hooks=hooks,
            grad=grad,
        )

    def trace(self, prompt: Tokens, *, edits: Edits = (), show_unlearned: bool = False) -> Trace:
        """One prompt seen whole; see `unembed.trace.trace.Trace`."""
        return Trace(self, prompt, edits, show_unlearned=show_unlearned)

    def generate(
        self,
        prompt: str | Sequence[str],
        edits: Edits = (),
        *,
        max_new_tokens: int = 20,
        seed: int | None = None,
        **options: Any,
    ) -> list[str]:
        """The prompts with their continuations, under edits; see `unembed.stream.generation.generate`."""
        return generate(self, prompt, edits, max_new_tokens=max_new_tokens, seed=seed, **options)

    def patch(
        self,
        clean: Tokens,
        corrupted: Tokens | GaussianNoise,
        points: str = "resid_pre",
        metric: Metric | MetricFunction | None = None,
        **options: Any,
    ) -> Patching:
        """Activations of one prompt's run put into another's; see `unembed.causality.patching.patch`."""
        return patch(self, clean, corrupted, points, metric, **options)

    def patch_pairs(
        self,
        clean: Sequence[Tokens],
        corrupted: Sequence[Tokens],
        points: str = "z",
        metric: Metric | MetricFunction | Sequence[Metric | MetricFunction | None] | None = None,
        **options: Any,
    ) -> PatchingPairs:
        """`patch` for several pairs of prompts, with mean and spread; see `unembed.causality.pairs.patch_pairs`."""
        return patch_pairs(self, clean, corrupted, points, metric, **options)

    def patch_paths(
        self,
        clean: Tokens,
        corrupted: Tokens | GaussianNoise,
        senders: str | Sequence[str] = "heads",
        receivers: str | Sequence[str] = "heads",
        metric: Metric | MetricFunction | None = None,
        **options: Any,
    ) -> Paths:
        """Writers replaced for one reader alone; see `unembed.causality.paths.patch_paths`."""
        return patch_paths(self, clean, corrupted, senders, receivers, metric, **options)

    def ablate(
        self,
        prompt: Tokens,
        heads: Any = None,
        memories: Any = None,
        components: Any = None,
        to: Any = "zero",
        metric: Metric | MetricFunction | None = None,
        **options: Any,
    ) -> Ablation:
        """Heads, memories, components or layers taken away one at a time; see `unembed.causality.ablation.ablate`."""
        return ablate(self, prompt, heads, memories, components, to, metric, **options)

    def ablate_over_corpus(self, corpus: Any = None, **options: Any) -> CorpusAblation:
        """By how much the loss rises over a corpus; see `unembed.causality.corpus_ablation.ablate_over_corpus`."""
        return ablate_over_corpus(self, corpus, **options)

    def attach(
        self,
        dictionary: Dictionary | Sequence[Dictionary] | str | Path,
        layer: int | None = None,
        point: str | None = None,
        *,
        folder: str | None = None,
    ) -> AttachedDictionary:
        """A dictionary of features at a layer and point; see `unembed.dictionaries.attachment.attach`."""
        from unembed.dictionaries.attachment import attach

        return attach(self, dictionary, layer, point, folder=folder)

    @property
    def values(self) -> Values:
        """The value vectors read in the vocabulary; see `unembed.memories.values.Values`."""
        return Values(self)

    def edited(self, edits: Edits) -> AbstractContextManager[Any]:
        """While inside, every use of `lm.hf`, generation included, happens under these edits."""
        return attach_hooks(self, {}, edits)


def load(
    model: str | Path | nn.Module | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | str | None = None,
    revision: str | None = None,
    offline: bool = False,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    offload_folder: str | Path | None = None,
    trust_remote_code: bool = False,
) -> LanguageModel:
    """Open a decoder.

    Args:
        model: a shipped name ("wren", the default), a hub id, a saved folder, or a `PreTrainedModel` in memory, which
            may be compiled (`torch.compile`) or a PEFT model, merged or not.
        tokenizer: needed only for a model in memory, or to use another one.
        revision: a branch, tag or commit of the hub.
        offline: use the local cache only.
        dtype: "float32", "bfloat16", ...; the checkpoint's own when not given.
        device: where to put the model.
        device_map: spread the model over devices, main memory ("cpu" beside a GPU) and disk ("disk"), as accelerate
            does: "auto", or a place for each module. What is in memory or on disk is brought in when it is needed.
        offload_folder: where to write weights for the disk that the model's own files do not hold as they are.
        trust_remote_code: run code that the model's repository brings; never by default.

    Raises:
        ModelUnavailable: no such model, folder or network.
        ModelNotUnderstood: the family does something that has no place in the description.
    """
    return LanguageModel(
        open_model(
            model,
            tokenizer=tokenizer,
            revision=revision,
            offline=offline,
            dtype=dtype,
            device=device,
            device_map=device_map,
            offload_folder=offload_folder,
            trust_remote_code=trust_remote_code,
        )
    )
