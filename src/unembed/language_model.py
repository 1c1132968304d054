"""Define `LanguageModel`, which `unembed.load()` returns; each of its methods calls a function of one subpackage."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from unembed.causality import old_names
from unembed.causality.ablation import ablate
from unembed.causality.estimated_effects import attribution_patching
from unembed.causality.patching import patch
from unembed.circuit_graph.build import circuit
from unembed.concepts.value_concepts import value_concepts
from unembed.gallery.ranking import rank_memories
from unembed.lazy import offers
from unembed.memories.effects import sub_update_effects
from unembed.memories.event_sample import event_sample
from unembed.memories.truth_of_values import reading_truth
from unembed.memories.values import Values
from unembed.models.decoder import Decoder
from unembed.models.loading import open_model
from unembed.names import By, Point
from unembed.results import Records
from unembed.steering.continuations import steer
from unembed.stream.generation import generate
from unembed.stream.hooks import ForwardPass, attach_hooks
from unembed.stream.interventions import Edits
from unembed.stream.run import Tokens, are_several, run
from unembed.stream.windows import prompt_windows
from unembed.sweeps.sweep import sweep
from unembed.trace.several_prompts import trace_prompts
from unembed.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from unembed.attention.circuits import Circuits
    from unembed.corpus import CorpusSource
    from unembed.dictionaries.attachment import AttachedDictionary
    from unembed.dictionaries.dictionary import Dictionary
    from unembed.index import Index
    from unembed.jacobian.lens import JacobianLens
    from unembed.logit_attribution import Attribution
    from unembed.reports import Report


@offers(
    "name revision hf tokenizer weights device dtype n_layers n_heads n_memories d_model d_head "
    "d_vocab encode chat decode token_strings single_token run generate edited windows trace attribute patch ablate "
    "attribution_patching steer attach train_dictionary sweep index report values value_concepts event_sample "
    "sub_update_effects rank_memories circuit circuits fit_lens use_lens lens"
)
class LanguageModel(Decoder):
    """A transformer decoder, with all analyses of this package as methods.

    Attributes:
        name: the name by which the model was opened: a name from `unembed models`, a Hugging Face id, or its folder's
            name.
        revision: the commit on the Hugging Face hub from which the model was loaded; None for other models.
        hf: the `transformers` model, which runs the forward passes.
        weights: views of the weight matrices (`W_Q`, `W_out`, `W_U`, ...), with the same axis order in all families.
        n_layers: number of layers.
        n_heads: number of attention heads in a layer.
        n_kv_heads: number of key-value heads in a layer; less than `n_heads` in grouped-query attention.
        d_model: width of the residual stream.
        d_head: width of a head.
        d_vocab: size of the vocabulary.
        lens: the fitted lens that `fit_lens` or `use_lens` set, which maps vectors to tokens by default; None to use
            the logit lens.
    """

    lens: JacobianLens | None = None
    on_logit_lens: Callable[[], object] | None = None
    """Called once, before tokens are first read by the logit lens because no lens is fitted."""

    run = run
    generate = generate
    patch = patch
    ablate = ablate
    attribution_patching = attribution_patching
    circuit = circuit

    patch_pairs = old_names.patch_pairs
    patch_paths = old_names.patch_paths
    ablate_prompts = old_names.ablate_prompts
    ablate_over_corpus = old_names.ablate_over_corpus

    steer = steer
    sweep = sweep
    value_concepts = value_concepts
    event_sample = event_sample
    sub_update_effects = sub_update_effects
    rank_memories = rank_memories
    reading_truth = reading_truth
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
        """Trace one prompt or several: all activations of a forward pass; see `unembed.trace.trace.Trace`.

        Args:
            prompt: a text or token ids; a list of prompts gives a sequence of traces, which prints as a table.
            edits: changes to make during the forward pass.
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
        """Attach a dictionary of features at a layer and point; see `unembed.dictionaries.attachment.attach`."""
        from unembed.dictionaries.attachment import attach

        return attach(self, dictionary, layer, point, folder=folder)

    @property
    def values(self) -> Values:
        """The FFN value vectors and the tokens that they promote; see `unembed.memories.values.Values`."""
        return Values(self)

    def fit_lens(
        self, corpus: CorpusSource = None, contexts: int = 64, length: int = 64, **options: Any
    ) -> JacobianLens:
        """Fit a Jacobian lens on text, and use it; see `unembed.jacobian.fit.fit_lens`."""
        from unembed.jacobian.fit import fit_lens

        return self.use_lens(fit_lens(self, corpus, contexts, length, **options))

    def use_lens(self, lens: JacobianLens | None = None) -> JacobianLens:
        """Set `lm.lens`, the lens that maps the residual stream and value vectors to tokens by default.

        Args:
            lens: a lens that was fitted on this model. None: the lens that commands use, which is the one that `unembed
                fit-lens` wrote to the cache folder, else the one that ships with the model; for a model in half
                precision, the lens of its float32 weights.

        Raises:
            InvalidInput: the lens was fitted on other weights; or `lens` is None, and no lens is stored for this model.
        """
        from unembed.jacobian.lens_cache import own_lens

        self.lens = (own_lens(self) if lens is None else lens).bound_to(self)
        return self.lens

    @cached_property
    def circuits(self) -> Circuits:
        """The heads as QK and OV circuits; see `unembed.attention.circuits.Circuits`."""
        from unembed.attention.circuits import Circuits

        return Circuits(self)

    def attribute(
        self,
        prompt: Tokens,
        token: str | int | None = None,
        *,
        against: str | int | None = None,
        position: int = -1,
        by: By = "component",
        edits: Edits = (),
    ) -> Attribution:
        """Decompose a token's logit, or the difference of two logits, into the contributions of the model's components.

        Args:
            token: the token to explain; None for the model's prediction.
            against: the token whose logit is subtracted; None to explain the logit of `token` alone.
            position: the position at which the token is predicted; negative positions count from the end.
            by: the components: "component" for the attention and FFN of each layer, "head", "source" for each head
                split by source token, or "memory".
            edits: changes to make during the forward pass.
        """
        trace = Trace(self, prompt, edits)
        target = int(trace.logits(position).argmax()) if token is None else token
        return trace.attribution(target, position, against, by)

    def index(
        self, corpus: CorpusSource = None, path: str | Path | None = None, *, build: bool = True, **options: Any
    ) -> Index | None:
        """Build, resume or open an index: the texts on which each memory fires most.

        See `unembed.index.index.Index.build`.

        Args:
            corpus: text that `unembed.open_corpus` opens; None for the WikiText sample in the package.
            path: folder of the index; None for one in the cache folder.
            build: if False, no index is built; None is returned if the cache folder has no complete index of this
                model.
            options: further arguments of `Index.build`.
        """
        from unembed.corpus import open_corpus
        from unembed.index import Index, build_ready_index, cached_index, cached_path

        if corpus is None and path is None and not options:
            return cached_index(self) or (build_ready_index(self) if build else None)
        text = open_corpus(corpus)
        return Index.build(self, text, cached_path(self, text) if path is None else path, **options)

    def report(self, name: str, corpus: CorpusSource = None, out: str | Path = "report/", **options: Any) -> Report:
        """Repeat a paper's experiments on this model, and write a report to a folder.

        See `unembed.reports.report.report`.
        """
        from unembed.reports import report

        return report(name, self, corpus, out, **options)

    def train_dictionary(
        self, corpus: CorpusSource, layer: int, point: Point = "resid_post", **options: Any
    ) -> Dictionary:
        """Train a sparse dictionary on the activations of a layer; see `unembed.dictionaries.train_dictionary`."""
        from unembed.corpus import open_corpus
        from unembed.dictionaries.train_dictionary import train_dictionary

        return train_dictionary(self, open_corpus(corpus), layer, point, **options)

    def edited(self, edits: Edits) -> AbstractContextManager[ForwardPass]:
        """Return a context manager: inside it, every forward pass of `lm.hf` applies the edits, also in generation."""
        return attach_hooks(self, {}, edits)


def load(
    model: object = None,
    *,
    tokenizer: PreTrainedTokenizerBase | str | None = None,
    revision: str | None = None,
    offline: bool = False,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    offload_folder: str | Path | None = None,
    trust_remote_code: bool = False,
    adapter: str | Path | None = None,
    special_tokens: bool = True,
) -> LanguageModel:
    """Load a decoder-only language model.

    Args:
        model: a name that `unembed models` lists ("wren", the default), a Hugging Face id, a saved folder, a GGUF file,
            or a `PreTrainedModel` in memory. A compiled model (`torch.compile`), a PEFT model (merged or not), and a
            model wrapped in an nnsight model or a TransformerBridge are accepted too. For a HookedTransformer, the
            model from which it was made is loaded; an error is raised if the two predict differently.
        tokenizer: needed only for a model in memory, or to replace the model's tokenizer.
        revision: a branch, tag or commit on the Hugging Face hub.
        offline: use only files on this machine.
        dtype: "float32", "bfloat16", ...; the checkpoint's dtype when None.
        device: the device to put the model on.
        device_map: spread the model over devices, main memory ("cpu" next to a GPU) and disk ("disk"), as accelerate
            does: "auto", or a device for each module. Weights in memory or on disk are loaded when they are needed.
        offload_folder: folder for weights that are offloaded to disk, if they cannot be read from the model's files.
        trust_remote_code: run code from the model's repository; never by default.
        adapter: the folder of a PEFT adapter to apply to the model; the name becomes "MODEL+ADAPTER".
        special_tokens: False to encode texts without the special tokens that the tokenizer adds, such as a begin token.

    Raises:
        ModelUnavailable: the model, the folder or the network cannot be found.
        ModelNotUnderstood: the architecture computes something that this package does not support.
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
            adapter=adapter,
            special_tokens=special_tokens,
        )
    )
