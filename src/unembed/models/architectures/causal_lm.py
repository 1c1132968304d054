"""Code that this package's two architectures share: attention, the pass through the blocks, logits and loss."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from unembed.errors import InvalidInput


def eager_attention_forward(
    module: nn.Module,
    query: Float[Tensor, "batch head dst d_head"],
    key: Float[Tensor, "batch head src d_head"],
    value: Float[Tensor, "batch head src d_head"],
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Float[Tensor, "batch dst head d_head"], Float[Tensor, "batch head dst src"]]:
    """Compute attention in plain PyTorch, and return its output and its weights."""
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    pattern = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    pattern = nn.functional.dropout(pattern, p=dropout, training=module.training)
    return (pattern @ value).transpose(1, 2).contiguous(), pattern


class PreTrainedDecoder(PreTrainedModel):
    """The class attributes that transformers needs for this package's two architectures."""

    base_model_prefix = "model"
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        """Return True, because `Attention` supports every implementation.

        The check in transformers would look only in the source file of the subclass.
        """
        return True


class Attention(nn.Module):
    """Multi-head attention without its projections: the subclass adds `q_proj`, `k_proj` and `v_proj`."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear

    def __init__(self, config: PretrainedConfig, layer_idx: int, head_dim: int) -> None:
        """Set the attributes that transformers' attention functions read."""
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = head_dim
        self.num_key_value_groups = 1
        self.scaling = head_dim**-0.5
        self.attention_dropout = 0.0
        self.is_causal = True

    def mixed(
        self,
        compared: Float[Tensor, "batch pos d_model"],
        moved: Float[Tensor, "batch pos d_model"],
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, "batch pos heads"], Tensor | None]:
        """Return the concatenated outputs of the heads, and the attention weights if the implementation computes them.

        Cached keys already contain their positions, so they are used as they are.

        Args:
            compared: the input of the query and key projections.
            moved: the input of the value projection.
            attention_mask: a mask to add to the scores.
            past_key_values: cached keys and values of earlier positions.
            kwargs: further arguments of the attention function.
        """
        split = (*moved.shape[:-1], -1, self.head_dim)
        query = self.q_proj(compared).view(split).transpose(1, 2)
        key = self.k_proj(compared).view(split).transpose(1, 2)
        value = self.v_proj(moved).view(split).transpose(1, 2)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation or "eager", eager_attention_forward
        )
        z, pattern = attention(self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return z.reshape(*moved.shape[:-1], -1).contiguous(), pattern


class Body:
    """Embedding and blocks of a decoder.

    In a list of base classes it must come before `nn.Module`, so that its `forward` replaces that of `nn.Module`.
    """

    config: Any
    layers: nn.ModuleList

    def entering(
        self, embedded: Float[Tensor, "batch pos d_model"], position_ids: Int[Tensor, "#batch pos"]
    ) -> tuple[Float[Tensor, "batch pos d_model"], dict[str, Tensor]]:
        """Return the stream that enters the first block, and the further arguments that every block receives."""
        raise NotImplementedError

    def leaving(self, stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """Return the input of the unembedding: the stream after the last block, or the output of a final norm."""
        return stream

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "batch pos"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "#batch pos"] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "batch pos d_model"] | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Return the last hidden state, and the cache of keys and values if `use_cache` is set.

        Positions count from the cached length unless `position_ids` is given. `inputs_embeds` replace the output of the
        embedding.

        Raises:
            ValueError: both or neither of `input_ids` and `inputs_embeds` are given; the message is transformers' own.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        embedded = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds  # type: ignore[attr-defined]
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            n_past = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(embedded.shape[1], device=embedded.device) + n_past).unsqueeze(0)
        causal_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=embedded,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        stream, given = self.entering(embedded, position_ids)
        for layer in self.layers:
            stream = layer(stream, attention_mask=causal_mask, past_key_values=past_key_values, **given, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=self.leaving(stream), past_key_values=past_key_values)


class CausalReadout:
    """`self.model` followed by `self.lm_head`, with logits and a loss.

    In a list of base classes it must come before `nn.Module`, so that its `forward` replaces that of `nn.Module`.
    `GenerationMixin` is not a base here, because transformers looks for it only among the direct bases of the model's
    class.
    """

    model: Any
    lm_head: nn.Module
    config: Any
    loss_function: Any

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return the logits at every position or at the last `logits_to_keep`, and the loss if labels are given."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, positions, :])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace `lm_head` by a module of the same class.

        Raises:
            InvalidInput: the module is of another class.
        """
        if not isinstance(value, type(self.lm_head)):
            raise InvalidInput(
                f"output embeddings of type {type(value).__name__}",
                why=f"{type(self).__name__} needs a {type(self.lm_head).__name__}",
            )
        self.lm_head = value
