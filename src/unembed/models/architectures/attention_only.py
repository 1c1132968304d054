"""Decoders that consist only of attention layers, without norms or biases: the toy models of Elhage et al. 2021.

A block adds only the output of its heads to the residual stream, so every logit is a sum over paths through heads.
Learned positions are added only to the input of queries and keys. Values, and therefore the stream, contain no position
vectors.

Importing this module registers the architecture with `AutoConfig` and `AutoModelForCausalLM`.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; positions as in Press et al. 2020,
"Shortformer".
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.generation.utils import GenerationMixin

from unembed.models.architectures.causal_lm import Attention, Body, CausalReadout, PreTrainedDecoder


class AttentionOnlyConfig(PretrainedConfig):
    """Sizes of an attention-only decoder."""

    model_type = "unembed_attention_only"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    # A constructor that transformers generates from the class would accept only these sizes. But transformers also
    # passes other config fields to the constructor, so it must accept them too (`settings`).
    def __init__(
        self,
        vocab_size: int = 8192,
        hidden_size: int = 144,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 8,
        head_dim: int = 24,
        max_position_embeddings: int = 512,
        initializer_range: float = 0.02,
        use_cache: bool = True,
        **settings: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.head_dim = head_dim
        self.max_position_embeddings = max_position_embeddings
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        unset = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
        super().__init__(**{**unset, **settings})


class AttentionOnlyAttention(Attention):
    """Attention whose queries and keys read the stream plus positions, and whose values read only the stream."""

    def __init__(self, config: AttentionOnlyConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx, config.head_dim)
        inner = config.num_attention_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(
        self,
        hidden_states: Float[Tensor, "batch pos d_model"],
        position_embeddings: Float[Tensor, "#batch pos d_model"],
        **kwargs: Any,
    ) -> tuple[Float[Tensor, "batch pos d_model"], Tensor | None]:
        """Return the output of the heads, and the attention weights if the implementation computes them."""
        z, pattern = self.mixed(hidden_states + position_embeddings, hidden_states, **kwargs)
        return self.o_proj(z), pattern


class AttentionOnlyLayer(nn.Module):
    """One block, which adds the output of its heads to the residual stream."""

    def __init__(self, config: AttentionOnlyConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = AttentionOnlyAttention(config, layer_idx)

    def forward(
        self, hidden_states: Float[Tensor, "batch pos d_model"], **kwargs: Any
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the stream after this block."""
        written, _ = self.self_attn(hidden_states=hidden_states, **kwargs)
        return hidden_states + written


class AttentionOnlyPreTrainedModel(PreTrainedDecoder):
    """The class attributes from which transformers knows how to return hidden states and attention weights."""

    config: AttentionOnlyConfig
    config_class = AttentionOnlyConfig
    _no_split_modules = ["AttentionOnlyLayer"]  # noqa: RUF012
    _can_compile_fullgraph = True
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": AttentionOnlyLayer,
        "attentions": AttentionOnlyAttention,
    }


class AttentionOnlyModel(Body, AttentionOnlyPreTrainedModel):
    """Embedding and blocks; there is no final norm, so the unembedding reads the last hidden state directly."""

    def __init__(self, config: AttentionOnlyConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(AttentionOnlyLayer(config, index) for index in range(config.num_hidden_layers))
        self.post_init()

    def entering(
        self, embedded: Float[Tensor, "batch pos d_model"], position_ids: Int[Tensor, "#batch pos"]
    ) -> tuple[Float[Tensor, "batch pos d_model"], dict[str, Tensor]]:
        """Return the embedded tokens, and the position vectors, which every block receives as an argument."""
        return embedded, {"position_embeddings": self.embed_positions(position_ids)}


class AttentionOnlyForCausalLM(CausalReadout, AttentionOnlyPreTrainedModel, GenerationMixin):
    """An attention-only decoder, whose unembedding is not tied to the embedding."""

    def __init__(self, config: AttentionOnlyConfig) -> None:
        super().__init__(config)
        self.model = AttentionOnlyModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()


AutoConfig.register(AttentionOnlyConfig.model_type, AttentionOnlyConfig, exist_ok=True)
AutoModelForCausalLM.register(AttentionOnlyConfig, AttentionOnlyForCausalLM, exist_ok=True)
