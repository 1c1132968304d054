"""WikiLM, the decoder of Geva et al. 2021 and 2022, as a transformers architecture.

Baevski & Auli's language model: adaptive input, sinusoidal positions, pre-norm blocks with ReLU memories, no norm after
the last block, and an adaptive softmax. Words are sorted by falling count and cut into bands; band b has narrow vectors
e_w and one projection P_b that widens them.

There is no single unembedding with one softmax. The head gives LOG-PROBABILITIES of all words, normalised over the
first band with one class for each other band, and within each of these. Two readings of a stream vector h follow:

- `band` (`AdaptiveSoftmax.band_scores`, and the columns of `AdaptiveSoftmax.W_U`): the linear score e_w . P_b^T h,
  in the first band e_w . h. Exact for sub-updates, and comparable within a band only.
- `adaptive` (`AdaptiveSoftmax.forward`): log p(w). Comparable everywhere, and not linear: what an update does to a
  word is the difference of two log-probabilities. Scaling h can change its top word.

Importing this module registers the architecture with `AutoConfig` and `AutoModelForCausalLM`.

Source: Baevski & Auli 2019, "Adaptive Input Representations for Neural Language Modeling"; fairseq's
`transformer_lm_wiki103`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation.utils import GenerationMixin
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from unembed.errors import InvalidInput
from unembed.models.attention_only import eager_attention_forward

_FIRST_POSITION = 2
"""fairseq numbers positions from the padding id (1) plus one."""


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
        """Sizes, and whatever else transformers keeps in a config.

        Args:
            vocab_size: words, padding words included.
            hidden_size: d_model.
            intermediate_size: memories of a layer.
            num_hidden_layers: blocks.
            num_attention_heads: heads of a block.
            cutoffs: the first word of every band but the first.
            adaptive_factor: how many times narrower each band's vectors are than those of the band before.
            tie_adaptive_proj: whether the readout widens by the embedding's own projections.
            final_norm: whether a LayerNorm stands before the readout. The papers' model has none.
            activation_function: f of the memories.
            layer_norm_eps: what every LayerNorm adds to the variance.
            max_position_embeddings: the training length. Positions are sinusoids, so nothing is stored for it.
            initializer_range: standard deviation of random weights.
            use_cache: whether generation keeps keys and values.
            settings: fields of every transformers config.
        """
        bounds = [0, *cutoffs, vocab_size]
        if any(low >= high for low, high in pairwise(bounds)):
            raise InvalidInput(
                f"cutoffs {list(cutoffs)}",
                why=f"they must rise between 0 and the vocabulary's size, {vocab_size}",
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
        # </s> ends every line of the training text, so it also stands before the first word.
        unset = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2, "tie_word_embeddings": False}
        super().__init__(**{**unset, **settings})

    @property
    def bands(self) -> list[tuple[int, int, int]]:
        """For each band: its first word, the word after its last, and the width of its vectors."""
        bounds = [0, *self.cutoffs, self.vocab_size]
        widths = [self.hidden_size // self.adaptive_factor**b for b in range(len(bounds) - 1)]
        return list(zip(bounds, bounds[1:], widths, strict=False))


class Band(nn.Module):
    """The words of one band, and the projection that widens their vectors to the stream's width."""

    def __init__(self, n_words: int, width: int, d_model: int) -> None:
        """Random words and projection."""
        super().__init__()
        self.words = nn.Embedding(n_words, width)
        self.projection = nn.Linear(width, d_model, bias=False)


class AdaptiveEmbedding(nn.Module):
    """Word ids to stream vectors: P_b e_w, the first band's projection included."""

    def __init__(self, config: WikiLMConfig) -> None:
        """One band after the other."""
        super().__init__()
        self.spans = config.bands
        self.d_model = config.hidden_size
        self.bands = nn.ModuleList(Band(end - start, width, config.hidden_size) for start, end, width in self.spans)

    def band(self, number: int) -> Band:
        """One band."""
        band = self.bands[number]
        assert isinstance(band, Band)
        return band

    def forward(self, ids: Int[Tensor, "*pos"]) -> Float[Tensor, "*pos d_model"]:
        """The (unscaled) embedding of every id."""
        reference = self.band(0).projection.weight
        out = torch.zeros(*ids.shape, self.d_model, dtype=reference.dtype, device=ids.device)
        for number, (start, end, _) in enumerate(self.spans):
            chosen = (ids >= start) & (ids < end)
            if bool(chosen.any()):
                band = self.band(number)
                out[chosen] = band.projection(band.words(ids[chosen] - start))
        return out

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """The embedding of every word, a new tensor each time: d_vocab * d_model numbers."""
        return torch.cat(
            [b.words.weight @ b.projection.weight.T for b in map(self.band, range(len(self.spans)))]
        ).detach()


class AdaptiveSoftmax(nn.Module):
    """Stream vectors to log-probabilities of all words; see the module's two readings.

    The words are the embedding's own parameters, not copies: the embedding is kept by reference and is no submodule, so
    that checkpoints hold each tensor once.
    """

    def __init__(self, config: WikiLMConfig, embedding: AdaptiveEmbedding) -> None:
        """A score for each band but the first, and projections unless they are the embedding's."""
        super().__init__()
        self._shared = (embedding,)
        self.spans = config.bands
        self.class_proj = nn.Linear(config.hidden_size, len(self.spans) - 1, bias=False)
        self.projections = nn.ModuleList(
            nn.Linear(config.hidden_size, width, bias=False)
            for _, _, width in (self.spans[1:] if not config.tie_adaptive_proj else [])
        )

    @property
    def embedding(self) -> AdaptiveEmbedding:
        """The embedding whose words are read."""
        return self._shared[0]

    def share(self, embedding: AdaptiveEmbedding) -> None:
        """Read the words of another embedding."""
        self._shared = (embedding,)

    def _narrowing(self, band: int) -> Float[Tensor, "width d_model"]:
        """P_b^T: from the stream to the vectors of a band other than the first."""
        if len(self.projections):
            own = self.projections[band - 1]
            assert isinstance(own, nn.Linear)
            return own.weight
        return self.embedding.band(band).projection.weight.T

    def _scores_in(self, band: int, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos word"]:
        """Linear scores of a band's words."""
        words = self.embedding.band(band).words.weight
        return x @ words.T if band == 0 else (x @ self._narrowing(band).T) @ words.T

    def band_scores(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos d_vocab"]:
        """The `band` reading: linear scores, equal to x @ W_U without forming W_U."""
        return torch.cat([self._scores_in(b, x) for b in range(len(self.spans))], dim=-1)

    def _first(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos first"]:
        """Log-probabilities of the first band's words, then of the other bands as classes."""
        scores = torch.cat([self._scores_in(0, x), self.class_proj(x)], dim=-1)
        return scores.log_softmax(dim=-1, dtype=_precise(scores))

    def forward(self, x: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos d_vocab"]:
        """The `adaptive` reading: log p of every word, in float32 or wider."""
        first = self._first(x)
        n_first = self.spans[0][1]
        parts = [first[..., :n_first]]
        for band in range(1, len(self.spans)):
            scores = self._scores_in(band, x)
            within = scores.log_softmax(dim=-1, dtype=_precise(scores))
            parts.append(first[..., n_first + band - 1, None] + within)
        return torch.cat(parts, dim=-1)

    def log_probability(self, x: Float[Tensor, "*pos d_model"], word: int) -> Float[Tensor, "*pos"]:
        """Log p of one word: only the first band and the word's own are computed."""
        first = self._first(x)
        band = self.band_of(word)
        if band == 0:
            return first[..., word]
        scores = self._scores_in(band, x)
        within = scores.log_softmax(dim=-1, dtype=_precise(scores))[..., word - self.spans[band][0]]
        return first[..., self.spans[0][1] + band - 1] + within

    def band_of(self, word: int) -> int:
        """The band a word stands in."""
        for band, (start, end, _) in enumerate(self.spans):
            if start <= word < end:
                return band
        raise InvalidInput(f"word {word}", why=f"the vocabulary is 0 to {self.spans[-1][1] - 1}")

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """The linear part of the readout, one column for each word: E_b = e P_b^T, transposed.

        Scores against it are the `band` reading: exact for sub-updates, comparable within a band. A new tensor each
        time (d_model * d_vocab numbers); for scores of vectors use `band_scores`.
        """
        blocks = [self.embedding.band(0).words.weight]
        blocks += [self.embedding.band(b).words.weight @ self._narrowing(b) for b in range(1, len(self.spans))]
        return torch.cat(blocks).detach().T


def _precise(scores: Tensor) -> torch.dtype:
    return torch.promote_types(scores.dtype, torch.float32)


@torch.no_grad()
def update_scores(
    readout: AdaptiveSoftmax,
    stream: Float[Tensor, " d_model"],
    updates: Float[Tensor, "update d_model"],
    word: int,
    reading: Literal["band", "adaptive"] = "band",
) -> Float[Tensor, " update"]:
    """What updates to a stream vector do to one word.

    Args:
        readout: a WikiLM's head.
        stream: the vector they are added to; only `adaptive` depends on it.
        updates: sub-updates m_i v_i, or whole FFN updates.
        word: the word.
        reading: "band" for e_w . u, linear and exact for sums of updates; "adaptive" for log p(w | stream + u) minus
            log p(w | stream), in nats.

    Source: Geva et al. 2022, section 3.2. The paper's e_w has no single meaning for an adaptive softmax: these are two.
    """
    if reading == "adaptive":
        return readout.log_probability(stream + updates, word) - readout.log_probability(stream, word)
    if reading != "band":
        raise InvalidInput(f"reading {reading!r}", why="a WikiLM has the readings 'band' and 'adaptive'")
    band = readout.band_of(word)
    e = readout.embedding.band(band).words.weight[word - readout.spans[band][0]]
    return updates @ (e if band == 0 else e @ readout._narrowing(band))


class SinusoidalPositions(nn.Module):
    """Fixed positions: sines, then cosines, of the position's number at falling frequencies."""

    def __init__(self, d_model: int) -> None:
        """Nothing is stored."""
        super().__init__()
        self.d_model = d_model

    def forward(self, position_ids: Int[Tensor, "batch pos"], like: Tensor) -> Float[Tensor, "batch pos d_model"]:
        """The vectors of positions counted from 0, in the dtype of `like`.

        Computed in float32 as fairseq does, whatever the model's dtype (but in float64 for float64).
        """
        dtype = torch.promote_types(like.dtype, torch.float32)
        half = self.d_model // 2
        steps = torch.arange(half, dtype=dtype, device=position_ids.device)
        frequencies = torch.exp(steps * (-torch.log(torch.tensor(10_000.0, dtype=dtype)).item() / (half - 1)))
        angles = (position_ids + _FIRST_POSITION).to(dtype)[..., None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1).to(like.dtype)


class WikiLMAttention(nn.Module):
    """Heads with biases everywhere."""

    def __init__(self, config: WikiLMConfig, layer_idx: int) -> None:
        """Four maps."""
        super().__init__()
        d_model = config.hidden_size
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = d_model // config.num_attention_heads
        self.num_key_value_groups = 1
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = 0.0
        self.is_causal = True
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(
        self,
        hidden_states: Float[Tensor, "batch pos d_model"],
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, "batch pos d_model"], Tensor | None]:
        """What the heads add to the stream, and the pattern where the implementation gives one."""
        split = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_proj(hidden_states).view(split).transpose(1, 2)
        key = self.k_proj(hidden_states).view(split).transpose(1, 2)
        value = self.v_proj(hidden_states).view(split).transpose(1, 2)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation or "eager", eager_attention_forward
        )
        z, pattern = attention(self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return self.out_proj(z.reshape(*hidden_states.shape[:-1], -1).contiguous()), pattern


class WikiLMLayer(nn.Module):
    """One block: attention, then memories, each through a LayerNorm of its own."""

    def __init__(self, config: WikiLMConfig, layer_idx: int) -> None:
        """The names are fairseq's; `final_layer_norm` is the norm BEFORE the memories."""
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
        """The stream after this block."""
        written, _ = self.self_attn(hidden_states=self.self_attn_layer_norm(hidden_states), **kwargs)
        hidden_states = hidden_states + written
        return hidden_states + self.fc2(self.activation_fn(self.fc1(self.final_layer_norm(hidden_states))))


class WikiLMPreTrainedModel(PreTrainedModel):
    """What transformers must know of the architecture."""

    config: WikiLMConfig
    config_class = WikiLMConfig
    base_model_prefix = "model"
    _no_split_modules = ["WikiLMLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": WikiLMLayer, "attentions": WikiLMAttention}  # noqa: RUF012


class WikiLMModel(WikiLMPreTrainedModel):
    """Embedding, positions and blocks."""

    def __init__(self, config: WikiLMConfig) -> None:
        """Random weights."""
        super().__init__(config)
        self.embed_tokens = AdaptiveEmbedding(config)
        self.embed_positions = SinusoidalPositions(config.hidden_size)
        self.layers = nn.ModuleList(WikiLMLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.final_norm else None
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """The stream after the last block. Positions count from the cached length unless `position_ids` says otherwise.

        `inputs_embeds` are what `embed_tokens` returns: not yet multiplied by sqrt(d_model).
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            n_past = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(embedded.shape[1], device=embedded.device) + n_past).unsqueeze(0)
        stream = embedded * self.config.hidden_size**0.5 + self.embed_positions(position_ids, embedded)
        causal_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=stream,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        for layer in self.layers:
            stream = layer(stream, attention_mask=causal_mask, past_key_values=past_key_values, **kwargs)
        if self.norm is not None:
            stream = self.norm(stream)
        return BaseModelOutputWithPast(last_hidden_state=stream, past_key_values=past_key_values)

    def get_input_embeddings(self) -> nn.Module:
        """The adaptive embedding; it has no single `weight`."""
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding."""
        self.embed_tokens = value


class WikiLMForCausalLM(WikiLMPreTrainedModel, GenerationMixin):
    """WikiLM with its adaptive softmax. Its logits are log-probabilities."""

    model: WikiLMModel
    lm_head: AdaptiveSoftmax

    def __init__(self, config: WikiLMConfig) -> None:
        """The decoder, and the readout over the embedding's own words."""
        super().__init__(config)
        self.model = WikiLMModel(config)
        embedding = self.model.embed_tokens
        assert isinstance(embedding, AdaptiveEmbedding)
        self.vocab_size = config.vocab_size
        self.lm_head = AdaptiveSoftmax(config, embedding)
        self.post_init()

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
        """Log-probabilities (as `logits`) for every position, or for the last `logits_to_keep`."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept, :])
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

    def get_output_embeddings(self) -> nn.Module:
        """The adaptive softmax: a module from stream vectors to log-probabilities."""
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the readout."""
        if not isinstance(value, AdaptiveSoftmax):
            raise InvalidInput(
                f"a readout of type {type(value).__name__}", why="WikiLM reads words through an adaptive softmax"
            )
        self.lm_head = value


AutoConfig.register(WikiLMConfig.model_type, WikiLMConfig, exist_ok=True)
AutoModelForCausalLM.register(WikiLMConfig, WikiLMForCausalLM, exist_ok=True)
