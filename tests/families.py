"""One tiny random model of every family, built from its transformers config.

Seeded; norm gains, biases and matrices are perturbed, because gains of 1 and biases of 0 hide half of all mistakes.
Adding a family: add a row to `FAMILIES`.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

transformers.logging.set_verbosity_error()

D_VOCAB = 97
_LLAMA: dict[str, Any] = dict(
    vocab_size=D_VOCAB,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
_GPT2: dict[str, Any] = dict(
    vocab_size=D_VOCAB,
    n_embd=48,
    n_layer=2,
    n_head=4,
    n_positions=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
_NEO: dict[str, Any] = dict(
    vocab_size=D_VOCAB,
    hidden_size=48,
    num_layers=2,
    num_heads=4,
    attention_types=[[["global", "local"], 1]],
    max_position_embeddings=64,
    intermediate_size=80,
    window_size=4,
    bos_token_id=1,
    eos_token_id=2,
)
_OPT: dict[str, Any] = dict(
    vocab_size=D_VOCAB,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    ffn_dim=80,
    max_position_embeddings=64,
    word_embed_proj_dim=48,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
_FALCON: dict[str, Any] = dict(
    vocab_size=D_VOCAB,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    ffn_hidden_size=80,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
_BLOOM: dict[str, Any] = dict(vocab_size=D_VOCAB, hidden_size=48, n_layer=2, n_head=4, pad_token_id=0)
_MPT: dict[str, Any] = dict(vocab_size=D_VOCAB, d_model=48, n_layers=2, n_heads=4, max_seq_len=64, expansion_ratio=2)
_SLIDING: dict[str, Any] = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=4)
_GEMMA: dict[str, Any] = {**_LLAMA, **_SLIDING, "query_pre_attn_scalar": 16}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2),
    "gpt2-scaled-by-layer": ("gpt2", {**_GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "gpt2-relu": ("gpt2", {**_GPT2, "activation_function": "relu"}),
    "gpt_bigcode": ("gpt_bigcode", {**_GPT2, "multi_query": True}),
    "gpt_neo": ("gpt_neo", _NEO),
    "gptj": ("gptj", {**_GPT2, "rotary_dim": 8}),
    "gpt_neox": ("gpt_neox", {**_LLAMA, "rotary_pct": 0.25}),
    "gpt_neox-sequential": ("gpt_neox", {**_LLAMA, "rotary_pct": 0.25, "use_parallel_residual": False}),
    "opt": ("opt", _OPT),
    "bloom": ("bloom", _BLOOM),
    "falcon-7b": ("falcon", _FALCON),
    "falcon-40b": ("falcon", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-rw": ("falcon", {**_FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
    "llama": ("llama", _LLAMA),
    "llama-biases": ("llama", {**_LLAMA, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {**_LLAMA, "sliding_window": 4}),
    "qwen2": ("qwen2", _LLAMA),
    "qwen3": ("qwen3", _LLAMA),
    "gemma": ("gemma", _LLAMA),
    "gemma2": ("gemma2", {**_GEMMA, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0}),
    "gemma3": ("gemma3_text", _GEMMA),
    "phi": ("phi", {**_LLAMA, "partial_rotary_factor": 0.5}),
    "phi-qk-norm": ("phi", {**_LLAMA, "partial_rotary_factor": 0.5, "qk_layernorm": True}),
    "phi3": ("phi3", _LLAMA),
    "stablelm": ("stablelm", {**_LLAMA, "partial_rotary_factor": 0.5}),
    "stablelm-parallel": (
        "stablelm",
        {**_LLAMA, "partial_rotary_factor": 0.5, "use_parallel_residual": True, "qk_layernorm": True},
    ),
    "olmo": ("olmo", {**_LLAMA, "clip_qkv": 0.5}),
    "olmo2": ("olmo2", _LLAMA),
    "cohere": ("cohere", {**_LLAMA, "logit_scale": 0.25}),
    "cohere-qk-norm": ("cohere", {**_LLAMA, "logit_scale": 0.25, "use_qk_norm": True}),
    "cohere2": ("cohere2", {**_LLAMA, **_SLIDING, "logit_scale": 0.25}),
    "granite": (
        "granite",
        {
            **_LLAMA,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
        },
    ),
    "starcoder2": ("starcoder2", _LLAMA),
    "mpt": ("mpt", _MPT),
    "smollm3": ("smollm3", {**_LLAMA, "no_rope_layers": [1, 0]}),
    "glm4": ("glm4", _LLAMA),
    "nemotron": ("nemotron", _LLAMA),
    "mixtral": ("mixtral", {**_LLAMA, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "qwen2_moe": (
        "qwen2_moe",
        {
            **_LLAMA,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "attention-only": (
        "unembed_attention_only",
        dict(
            vocab_size=D_VOCAB,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            head_dim=12,
            max_position_embeddings=64,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}
"""By name: the config's model_type and its arguments. glm4 and nemotron are named in no table of the package."""

EXPERTS = ("mixtral", "qwen2_moe")
ATTENTION_ONLY = ("attention-only",)
PARALLEL = (
    "gptj",
    "gpt_neox",
    "falcon-7b",
    "falcon-40b",
    "phi",
    "phi-qk-norm",
    "stablelm-parallel",
    "cohere",
    "cohere-qk-norm",
    "cohere2",
)
DENSE = tuple(name for name in FAMILIES if name not in (*EXPERTS, *ATTENTION_ONLY))
WITH_MEMORIES = (*DENSE, *EXPERTS)


def build(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
    """The tiny model of a family, in evaluation mode, on the attention implementation that is its default."""
    model_type, arguments = FAMILIES[name]
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **arguments)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.3 if parameter.dim() == 1 else 0.05) * torch.randn_like(parameter))
    if name in EXPERTS and dtype == torch.float64:
        model.set_experts_implementation("eager")  # grouped products refuse float64
    return model
