"""WikiLM, the decoder of Geva et al. 2021 and 2022, as a transformers architecture.

Baevski & Auli's language model has adaptive input, sinusoidal positions, pre-norm blocks with ReLU FFNs, no norm after
the last block, and an adaptive softmax. `unembed.models.architectures.adaptive_softmax` contains its embedding and
softmax, and explains how its residual stream can be read.

Importing this module registers the architecture with `AutoConfig` and `AutoModelForCausalLM`.

Source: Baevski & Auli 2019, "Adaptive Input Representations for Neural Language Modeling"; fairseq's
`transformer_lm_wiki103`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.activations import ACT2FN
from transformers.generation.utils import GenerationMixin

from unembed.errors import InvalidInput
from unembed.models.architectures.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax, Span
from unembed.models.architectures.causal_lm import Attention, Body, CausalReadout, PreTrainedDecoder

_FIRST_POSITION = 2
"""The number of the first position: fairseq starts to count at the id of the padding token (1) plus one."""


class WikiLMConfig(PretrainedConfig):
    """Sizes of a WikiLM; the defaults are those of the papers' model."""

    model_type = "unembed_wikilm"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    def __init__(
        self,
        vocab_size: int = 267_744,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        num_hidden_layers: int = 16,
        num_attention_heads: int = 8,
        cutoffs: Sequence[int] = (20_000, 60_000),
        adaptive_factor: int = 4,
        tie_adaptive_proj: bool = True,
        final_norm: bool = False,
        activation_function: str = "relu",
        layer_norm_eps: float = 1e-5,
        max_position_embeddings: int = 3072,
        initializer_range: float = 0.02,
        use_cache: bool = True,
        **settings: Any,
    ) -> None:
        """Store the sizes, and other fields of a transformers config.

        Args:
            vocab_size: number of words, padding words included.
            hidden_size: d_model.
            intermediate_size: number of memories (FFN neurons) in a layer.
            num_hidden_layers: number of blocks.
            num_attention_heads: number of heads in a block.
            cutoffs: the first word of every band but the first.
            adaptive_factor: how many times narrower each band's vectors are than those of the band before.
            tie_adaptive_proj: whether the softmax uses the embedding's projections (transposed) instead of its own.
            final_norm: whether there is a LayerNorm before the unembedding. The papers' model has none.
            activation_function: activation function of the FFN.
            layer_norm_eps: epsilon of every LayerNorm.
            max_position_embeddings: the training length in tokens. Positions are sinusoids, so no weights depend on it.
            initializer_range: standard deviation of random weights.
            use_cache: whether generation caches keys and values.
            settings: further fields, which every transformers config has.
        """
        bounds = [0, *cutoffs, vocab_size]
        if any(low >= high for low, high in pairwise(bounds)):
            raise InvalidInput(
                f"cutoffs {list(cutoffs)}",
                why=f"they must increase, and lie between 0 and the vocabulary's size, {vocab_size}",
                instead="Give the first word id of every band but the first",
            )
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.cutoffs = list(cutoffs)
        self.adaptive_factor = adaptive_factor
        self.tie_adaptive_proj = tie_adaptive_proj
        self.final_norm = final_norm
        self.activation_function = activation_function
        self.layer_norm_eps = layer_norm_eps
        self.max_position_embeddings = max_position_embeddings
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        # Every line of the training text ends with </s>, so </s> also precedes the first word of a text.
        unset = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2, "tie_word_embeddings": False}
        super().__init__(**{**unset, **settings})

    @property
    def bands(self) -> list[Span]:
        """For each band: its first word, the word after its last one, and the width of its vectors."""
        bounds = [0, *self.cutoffs, self.vocab_size]
        widths = [self.hidden_size // self.adaptive_factor**b for b in range(len(bounds) - 1)]
        return list(zip(bounds, bounds[1:], widths, strict=False))


class SinusoidalPositions(nn.Module):
    """Fixed position vectors: sines, then cosines, of the position at decreasing frequencies."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, position_ids: Int[Tensor, "batch pos"], like: Tensor) -> Float[Tensor, "batch pos d_model"]:
        """Return the vectors of positions counted from 0, in the dtype of `like`.

        They are computed in float32 as in fairseq, whatever the model's dtype (but in float64 for float64).
        """
        dtype = torch.promote_types(like.dtype, torch.float32)
        half = self.d_model // 2
        steps = torch.arange(half, dtype=dtype, device=position_ids.device)
        frequencies = torch.exp(steps * (-torch.log(torch.tensor(10_000.0, dtype=dtype)).item() / (half - 1)))
        angles = (position_ids + _FIRST_POSITION).to(dtype)[..., None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1).to(like.dtype)


class WikiLMAttention(Attention):
    """Attention heads with biases in all projections."""

    def __init__(self, config: WikiLMConfig, layer_idx: int) -> None:
        d_model = config.hidden_size
        super().__init__(config, layer_idx, d_model // config.num_attention_heads)
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(
        self, hidden_states: Float[Tensor, "batch pos d_model"], **kwargs: Any
    ) -> tuple[Float[Tensor, "batch pos d_model"], Tensor | None]:
        """Return the output of the heads, and the attention weights if the implementation computes them."""
        z, pattern = self.mixed(hidden_states, hidden_states, **kwargs)
        return self.out_proj(z), pattern


class WikiLMLayer(nn.Module):
    """One block: attention, then the FFN, each with its own LayerNorm."""

    def __init__(self, config: WikiLMConfig, layer_idx: int) -> None:
        """Create the modules under fairseq's names; `final_layer_norm` is the norm BEFORE the FFN."""
        super().__init__()
        d_model, eps = config.hidden_size, config.layer_norm_eps
        self.self_attn = WikiLMAttention(config, layer_idx)
        self.self_attn_layer_norm = nn.LayerNorm(d_model, eps=eps)
        self.activation_fn = ACT2FN[config.activation_function]
        self.fc1 = nn.Linear(d_model, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, d_model)
        self.final_layer_norm = nn.LayerNorm(d_model, eps=eps)

    def forward(
        self, hidden_states: Float[Tensor, "batch pos d_model"], **kwargs: Any
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the stream after this block."""
        written, _ = self.self_attn(hidden_states=self.self_attn_layer_norm(hidden_states), **kwargs)
        hidden_states = hidden_states + written
        return hidden_states + self.fc2(self.activation_fn(self.fc1(self.final_layer_norm(hidden_states))))


class WikiLMPreTrainedModel(PreTrainedDecoder):
    """The class attributes from which transformers knows how to return hidden states and attention weights."""

    config: WikiLMConfig
    config_class = WikiLMConfig
    _no_split_modules = ["WikiLMLayer"]  # noqa: RUF012
    _can_record_outputs = {"hidden_states": WikiLMLayer, "attentions": WikiLMAttention}  # noqa: RUF012


class WikiLMModel(Body, WikiLMPreTrainedModel):
    """Embedding, positions and blocks."""

    def __init__(self, config: WikiLMConfig) -> None:
        super().__init__(config)
        self.embed_tokens = AdaptiveEmbedding(config.bands, config.hidden_size)
        self.embed_positions = SinusoidalPositions(config.hidden_size)
        self.layers = nn.ModuleList(WikiLMLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.final_norm else None
        self.post_init()

    def entering(
        self, embedded: Float[Tensor, "batch pos d_model"], position_ids: Int[Tensor, "#batch pos"]
    ) -> tuple[Float[Tensor, "batch pos d_model"], dict[str, Tensor]]:
        """Return the embedded words times sqrt(d_model), plus their positions."""
        return embedded * self.config.hidden_size**0.5 + self.embed_positions(position_ids, embedded), {}

    def leaving(self, stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """Return the stream after the final norm, if the model has one."""
        return stream if self.norm is None else self.norm(stream)


class WikiLMForCausalLM(CausalReadout, WikiLMPreTrainedModel, GenerationMixin):
    """A WikiLM with its adaptive softmax. Its logits are log-probabilities."""

    model: WikiLMModel
    lm_head: AdaptiveSoftmax

    def __init__(self, config: WikiLMConfig) -> None:
        super().__init__(config)
        self.model = WikiLMModel(config)
        embedding = self.model.embed_tokens
        assert isinstance(embedding, AdaptiveEmbedding)
        self.vocab_size = config.vocab_size
        self.lm_head = AdaptiveSoftmax(embedding, tied=config.tie_adaptive_proj)
        self.post_init()


AutoConfig.register(WikiLMConfig.model_type, WikiLMConfig, exist_ok=True)
AutoModelForCausalLM.register(WikiLMConfig, WikiLMForCausalLM, exist_ok=True)
