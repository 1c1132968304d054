"""The handle that `unembed.load()` returns: each method is a function of one room."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from unembed.causality import deprecated
from unembed.causality.ablation import ablate
from unembed.causality.estimated_effects import attribution_patching
from unembed.causality.patching import patch
from unembed.memories.values import Values
from unembed.models.decoder import Decoder
from unembed.models.loading import open_model
from unembed.names import Point
from unembed.results import Records
from unembed.stream.generation import generate
from unembed.stream.hooks import ForwardPass, attach_hooks
from unembed.stream.interventions import Edits
from unembed.stream.run import Tokens, are_several, run
from unembed.stream.windows import prompt_windows
from unembed.trace.several_prompts import trace_prompts
from unembed.trace.trace import Trace

if TYPE_CHECKING:
    from unembed.dictionaries.attachment import AttachedDictionary
    from unembed.dictionaries.dictionary import Dictionary


class LanguageModel(Decoder):
    """A decoder with everything that can be done with it; the methods are the rooms' own functions."""

    run = run
    generate = generate
    patch = patch
    ablate = ablate
    attribution_patching = attribution_patching

    patch_pairs = deprecated.patch_pairs
    patch_paths = deprecated.patch_paths
    ablate_prompts = deprecated.ablate_prompts
    ablate_over_corpus = deprecated.ablate_over_corpus

    windows = prompt_windows

    @overload
    def trace(
        self, prompt: str | Sequence[int] | Tensor, *, edits: Edits = (), show_unlearned: bool = False
    ) -> Trace: ...
    @overload
    def trace(
        self, prompt: Sequence[str | Sequence[int] | Tensor], *, edits: Edits = (), show_unlearned: bool = False
    ) -> Records[Trace]: ...
    def trace(
        self, prompt: Tokens | Sequence[Tokens], *, edits: Edits = (), show_unlearned: bool = False
    ) -> Trace | Records[Trace]:
        """The trace of a prompt, or of each of several; see `unembed.trace.trace.Trace`.

        Args:
            prompt: a text or token ids; for a list of them, the traces are a sequence that prints as a table.
            edits: changes to make in the run.
            show_unlearned: also list and rank tokens that the model never learned.
        """
        if are_several(prompt):
            return trace_prompts(self, cast("Sequence[Tokens]", prompt), edits, show_unlearned=show_unlearned)
        return Trace(self, cast("Tokens", prompt), edits, show_unlearned=show_unlearned)

    def attach(
        self,
        dictionary: Dictionary | Sequence[Dictionary] | str | Path,
        layer: int | None = None,
        point: Point | None = None,
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

    def edited(self, edits: Edits) -> AbstractContextManager[ForwardPass]:
        """A context in which every use of `lm.hf`, generation included, happens under these edits."""
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
        device_map: spread the model over devices, main memory ("cpu" next to a GPU) and disk ("disk"), as accelerate
            does: "auto", or a device for each module. Weights in memory or on disk are loaded when they are needed.
        offload_folder: where to write weights that go to disk and that the model's own files do not hold as they are.
        trust_remote_code: run code from the model's repository; never by default.

    Raises:
        ModelUnavailable: no such model, folder or network.
        ModelNotUnderstood: the family does something that a `Structure` cannot describe.
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
