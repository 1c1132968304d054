"""An opened language model: transformers model, tokenizer and structure. It is the first argument of every analysis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from unembed.errors import InvalidInput, OutOfRange, Unsupported
from unembed.models.chat import Message
from unembed.models.loading import Opened
from unembed.models.offload import device_of
from unembed.models.structure.dry_run import vocabulary_size
from unembed.models.structure.mixer_names import heads_in_words, mixer_name
from unembed.models.structure.resolver import resolve
from unembed.models.structure.structure import FeedForwardSite
from unembed.models.vocabulary import Vocabulary, unlearned_by_counts, unlearned_by_embedding
from unembed.models.weights import Weights
from unembed.names import Basis, HeadBasis, MemoryIndex, Pole, ScoreBasis, memory_name
from unembed.results import Provenance
from unembed.validation import as_expert_pair, as_int

T = TypeVar("T")

_CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")


class Decoder:
    """A decoder language model and its structure. The transformers model in it is never copied or changed."""

    def __init__(self, opened: Opened) -> None:
        """Find the structure of the model by one forward pass of six tokens.

        Raises:
            ModelNotUnderstood: a part of the model has an unknown structure.
        """
        self._opened = opened
        self.hf: PreTrainedModel = opened.hf
        self.name, self.revision = opened.name, opened.revision
        self.structure = resolve(opened.hf)
        self.weights = Weights(self.structure)
        self.lock = threading.RLock()
        """Locked while hooks are attached to the model, so that only one run happens at a time."""
        self.n_layers = len(self.structure.blocks)
        mixers = [b.mixer for b in self.structure.blocks if b.mixer is not None]
        attention = [site for site in mixers if site.is_attention]
        first = next(iter(attention or mixers), None)
        self.n_heads = 0 if first is None else first.n_heads
        """Number of heads in a layer; if layers differ, the number in the first layer with attention."""
        self.n_kv_heads = 0 if first is None else first.n_kv_heads
        self.d_head = 0 if first is None else first.d_head
        config = opened.hf.config.get_text_config()
        self.d_model: int = config.hidden_size
        self.d_vocab: int = vocabulary_size(opened.hf)
        found = (v for n in _CONTEXT_FIELDS if isinstance(v := getattr(config, n, None), int))
        self.n_ctx: int | None = next(found, None)
        """The largest number of tokens in a prompt; None if the model sets no limit."""
        self._computed: dict[Hashable, Any] = {}

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `compute`, which is called only once for this model and key; later calls reuse it.

        Args:
            key: a name for the result, unique among all results; begin it with the calling module's name.
            compute: called the first time.
        """
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name}: {self.structure.family}, {self.n_layers} layers, "
            f"d_model {self.d_model}, {self.heads_a_layer}, {self.memories_a_layer} memories a layer, "
            f"{self.d_vocab} tokens, {self.dtype_name})"
        )

    @cached_property
    def d_mlp(self) -> int:
        """The number of memories (FFN neurons) in each layer, including those of experts; 0 if layers differ."""
        numbers = {self.n_memories_of(layer) for layer in range(self.n_layers)}
        return numbers.pop() if len(numbers) == 1 else 0

    @cached_property
    def n_memories(self) -> int:
        """The number of memories (FFN neurons) in all layers together."""
        return sum(self.n_memories_of(layer) for layer in range(self.n_layers))

    @property
    def memories_a_layer(self) -> str:
        """The number of memories (FFN neurons) in a layer as text; if layers differ, the smallest and largest."""
        numbers = [self.n_memories_of(layer) for layer in range(self.n_layers)] or [0]
        return f"{min(numbers):,}" + (f" to {max(numbers):,}" if max(numbers) > min(numbers) else "")

    @cached_property
    def memory_layers(self) -> tuple[int, ...]:
        """The numbers of the layers that have memories (FFN neurons)."""
        return tuple(n for n in range(self.n_layers) if self.n_memories_of(n))

    @cached_property
    def attention_layers(self) -> tuple[int, ...]:
        """The numbers of the layers with attention, without those that have another token mixer, such as Mamba."""
        mixers = [block.mixer for block in self.structure.blocks]
        return tuple(n for n, mixer in enumerate(mixers) if mixer is not None and mixer.is_attention)

    @property
    def other_mixers(self) -> tuple[bool, ...]:
        """For each layer, True if it has no attention: either another token mixer, such as Mamba, or none."""
        return tuple(n not in self.attention_layers for n in range(self.n_layers))

    def mixer_name(self, layer: int) -> str:
        """Return the name of what comes before a layer's FFN: "attention", "mixer (Mamba)"; empty if nothing does."""
        return mixer_name(self.structure.blocks[layer])

    @property
    def heads_a_layer(self) -> str:
        """The number of heads in a layer as text, such as "4 heads".

        If the layers have several kinds of token mixer, the text gives the number for each kind.
        """
        return heads_in_words(self.structure.blocks)

    def __reduce__(self) -> str:
        """Refuse to be pickled, because the loaded model has hooks.

        Raises:
            Unsupported: always.
        """
        raise Unsupported(
            f"pickling {self.name}",
            why="a live model cannot be pickled, and neither can objects that contain one (a trace, circuits)",
            instead="Pickle or save results, and open the model again with unembed.load",
        )

    def experts_of(self, layer: int) -> tuple[int, int] | None:
        """Return a layer's number of routed experts, and of memories in each; None for a layer without experts."""
        site = self.structure.blocks[layer].feed_forward
        return None if site is None or site.experts is None else (site.experts.n_experts, site.experts.width)

    def memory_name(self, layer: int, number: int, pole: Pole = "positive") -> str:
        """Write the name of a memory (FFN neuron): L5M278, or L12E7M345 for memory 345 of expert 7 in layer 12.

        A memory of a gated FFN can have coefficients of either sign; -L5M278 is L5M278 where its coefficient is
        negative.
        """
        return memory_name(layer, number, self.experts_of(layer), pole)

    def is_signed(self, layer: int) -> bool:
        """Tell whether the memories of a layer can have large negative coefficients; they can in a gated FFN."""
        site = self.structure.blocks[layer].feed_forward
        return site is not None and site.has_memories and site.is_gated

    def n_memories_of(self, layer: int) -> int:
        """Return the number of memories (FFN neurons) of one layer, including those of experts; 0 if it has none."""
        site = self.structure.blocks[layer].feed_forward
        return 0 if site is None or not site.has_memories else self.weights.n_memories[layer]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.hf.dtype

    @property
    def coarsest_dtype_name(self) -> str:
        """The name of the least precise dtype in which a forward pass computes.

        This is the dtype of the weights, unless a quantized layer computes in a coarser one, or the final norm does in
        a float64 model.
        """
        dtypes = [self.dtype, *(read.computes_in for read in self.structure.effective.values())]
        if self.dtype == torch.float64 and self.structure.final_norm is not None:
            dtypes.append(self.structure.final_norm.computes_in)
        return str(max(dtypes, key=lambda d: torch.finfo(d).eps)).removeprefix("torch.")

    @property
    def dtype_name(self) -> str:
        """The name of the weights' dtype, such as "float32"."""
        return str(self.dtype).removeprefix("torch.")

    def provenance(
        self,
        *,
        corpus: str | None = None,
        basis: Basis | HeadBasis | ScoreBasis | None = None,
        seed: int | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> Provenance:
        """Return the provenance of a result: the model's name, revision, dtype and quantisation, and the arguments."""
        opened: dict[str, Any] = {"dequantised_from": self._opened.quantised} if self._opened.quantised else {}
        if not self._opened.special_tokens:
            opened["special_tokens"] = False
        return Provenance(
            self.name,
            self.revision,
            self.dtype_name,
            corpus=corpus,
            basis=basis,
            seed=seed,
            notes={**opened, **(notes or {})},
        )

    @property
    def device(self) -> torch.device:
        """The device that the input tokens must be on."""
        device = device_of(self.hf.get_input_embeddings())
        assert device is not None
        return device

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the model's tokenizer, which converts between tokens and text."""
        if self._opened.tokenizer is None:
            instead = "Give one: --tokenizer on the command line, load(tokenizer=) in Python; or give token ids"
            if fault := self._opened.tokenizer_fault:
                raise InvalidInput(f"the tokenizer of {self.name}", why=fault, instead=instead)
            why = "text cannot be turned into tokens or back"
            raise InvalidInput(f"{self.name} was opened without a tokenizer", why=why, instead=instead)
        return Vocabulary(self._opened.tokenizer, self.d_vocab, special_tokens=self._opened.special_tokens)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The transformers tokenizer; None if the model was opened without one."""
        return self._opened.tokenizer

    def encode(self, text: str) -> Int[Tensor, "1 pos"]:
        """Convert a text to token ids, including the special tokens that the tokenizer adds.

        Raises:
            InvalidInput: the text is empty, or the model has no tokenizer.
        """
        return self.vocabulary.encode(text).to(self.device)

    def chat(self, messages: str | Sequence[Message], *, system: str | None = None) -> Int[Tensor, "1 pos"]:
        """Convert a conversation to token ids with the tokenizer's chat template.

        Every function that takes token ids accepts the result.

        Args:
            messages: the messages in order, such as `[{"role": "user", "content": "Hello"}]`; a string is one message
                of the user. If the last one has the role "assistant", the model continues it; else it begins an answer.
            system: a system message to put before the others.

        Raises:
            InvalidInput: the tokenizer has no chat template, or its template refuses these messages.
        """
        return torch.tensor([self.vocabulary.chat(messages, system).ids], device=self.device)

    def encode_all(self, texts: Sequence[str]) -> list[Int[Tensor, " pos"]]:
        """Convert many texts to token ids at once, on the CPU; a text without tokens gives an empty tensor."""
        return self.vocabulary.encode_all(texts)

    def decode(self, ids: Tensor | Sequence[int]) -> str:
        """Convert tokens to text."""
        return self.vocabulary.decode(ids)

    def token_strings(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Return the text of each token, with its leading space if it has one.

        A token that is only part of a character is written as bytes in hexadecimal.
        """
        if self._opened.tokenizer is None:
            return [f"<{i}>" for i in torch.as_tensor(ids).flatten().tolist()]
        return self.vocabulary.strings(ids)

    def single_token(self, target: str | int) -> int:
        """Return the id of a text that must be exactly one token; an id is checked and returned unchanged.

        Raises:
            NotOneToken: the text is several tokens or none; the message lists them and suggests a leading space.
            OutOfRange: the id is not in the vocabulary.
        """
        if not isinstance(target, str):
            target = as_int("token", target)
            if not 0 <= target < self.d_vocab:
                raise OutOfRange(f"token {target}", why=f"the token ids of {self.name} are 0 to {self.d_vocab - 1}")
            return target
        return self.vocabulary.single(target)

    @cached_property
    def unlearned(self) -> Bool[Tensor, " d_vocab"]:
        """Mark the tokens that the model never learned.

        They are found by the token counts of the training text if the model has them, else by their unembedding
        vectors.
        """
        counts = self._opened.token_counts
        if counts is not None:
            return unlearned_by_counts(counts, self.d_vocab)
        has_text = None if self._opened.tokenizer is None else self.vocabulary.has_text
        return unlearned_by_embedding(self.weights.W_U.T, has_text)

    @cached_property
    def unlisted(self) -> Bool[Tensor, " d_vocab"]:
        """Mark the tokens that lists of tokens leave out by default: unlearned ones, and incomplete characters."""
        known = None if self._opened.tokenizer is None else self.vocabulary.fragments
        return self.unlearned if known is None else self.unlearned | known

    def layer(self, layer: int) -> int:
        """Check the number of a layer, and return it counted from 0; negative numbers count from the last layer.

        Raises:
            OutOfRange: there is no such layer.
        """
        return self._within("layer", layer, self.n_layers)

    def head(self, head: int, layer: int | None = None) -> int:
        """Check the number of a head in a layer (or in the model), and return it counted from 0.

        Raises:
            OutOfRange: there is no such head.
            Unsupported: the layer has no heads.
        """
        if layer is None:
            return self._within("head", head, self.n_heads)
        block = self.structure.blocks[layer]
        site = block.attention if block.mixer is None else block.mixer
        if not site.n_heads:
            _ = site.out_proj  # raises an error with the reason, if there are no heads
        return self._within("head", head, site.n_heads)

    def layer_and_head(self, layer: int, head: int) -> tuple[int, int]:
        """Check a layer and one of its heads, and return them counted from 0.

        Raises:
            OutOfRange: there is no such layer, or it has no such head.
            Unsupported: the layer has no heads.
        """
        layer = self.layer(layer)
        return layer, self.head(head, layer)

    def memory(self, layer: int, index: MemoryIndex) -> tuple[int, int]:
        """Check the index of a memory (FFN neuron), and return its layer and its number in the layer.

        Args:
            layer: the layer; negative numbers count from the last layer.
            index: the memory's number in the layer, or (expert, index) in a layer with experts, where None is the
                shared expert.

        Raises:
            OutOfRange: there is no such layer, expert or memory.
            Unsupported: the layer has no memories, or no experts.
        """
        layer = self.layer(layer)
        site = self.feed_forward(layer)
        if isinstance(index, tuple):
            expert, within = as_expert_pair("memory", index)
            if site.experts is None:
                raise Unsupported(f"an expert of layer {layer}", why="its FFN is not a mixture of experts")
            if expert is None:
                shared = site.experts.n_memories - site.experts.n_routed
                return layer, site.experts.number(None, self._within(f"shared memory of layer {layer}", within, shared))
            expert = self._within(f"expert of layer {layer}", expert, site.experts.n_experts)
            within = self._within(f"memory of expert {expert} in layer {layer}", within, site.experts.width)
            return layer, site.experts.number(expert, within)
        return layer, self._within(f"memory in layer {layer}", index, self.weights.n_memories[layer])

    def _within(self, what: str, index: int, n: int) -> int:
        index = as_int(what, index)
        if not -n <= index < n:
            raise OutOfRange(
                f"{what} {index}" if what in ("layer", "head") else f"{what}: {index}",
                why=f"{self.name} has {f'{n}, counted 0 to {n - 1}' if n else 'none'}",
            )
        return index % n

    def feed_forward(self, layer: int) -> FeedForwardSite:
        """Return the FFN of a layer, which must have memories.

        Raises:
            Unsupported: the layer has no memories, or the model has no layers.
        """
        if not self.n_layers:
            raise Unsupported(f"memories of {self.name}", why="it has no layers")
        return self.weights.feed_forward(layer)


def require_decoder(lm: object) -> Decoder:
    """Return the model if `unembed.load` opened it, and refuse anything else, such as a model's name.

    Raises:
        InvalidInput: `lm` is not a model that `unembed.load` opened.
    """
    if not isinstance(lm, Decoder):
        value = " ".join(f"{lm!r:.60}".split())
        raise InvalidInput(f"model {value}", why="it is not an open model", instead="Pass what unembed.load returns")
    return lm
