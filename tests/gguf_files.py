"""Tiny models as GGUF files, written with the package `gguf` as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize
from transformers import LlamaConfig, LlamaForCausalLM

WORDS = ("<|end|>", "<|user|>", "th", "the", "Ġthe", "Ġo", "Ġof")
_MERGES = ("t h", "th e", "Ġ the", "Ġ o", "Ġo f")
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}"


def _tokens() -> list[str]:
    """Bytes in the spelling of byte-level BPE, then `WORDS`."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [b for b in range(256) if b not in plain]
    return [*map(chr, plain), *(chr(256 + i) for i in range(len(other))), *WORDS]


TOKENS = _tokens()
CONFIG = LlamaConfig(
    vocab_size=len(TOKENS),
    hidden_size=256,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    rms_norm_eps=1e-5,
)
"""Widths are multiples of 256, the largest block of a quantisation."""
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    for known, short in {"embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}.items():
        if known in name:
            return f"{short}.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest.removesuffix('.weight')]}.weight"


def _paired(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key matrix in llama.cpp's order: the two rotated together are neighbours."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    kind: str = "F32",
    *,
    without: str = "",
    more: dict[str, float | str] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> LlamaForCausalLM:
    """Write a random Llama with its matrices as one type of numbers; return the model that the file stands for.

    Args:
        path: the file.
        kind: a type of numbers that `gguf.quantize` writes, such as "Q4_0".
        without: the part of a name; tensors with it are left out.
        tensors: further tensors.
        more: further fields of the file, such as `{"llama.rope.scaling.factor": 4.0}`.
    """
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    writer = GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_block_count(CONFIG.num_hidden_layers)
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(CONFIG.num_attention_heads)
    writer.add_head_count_kv(CONFIG.num_key_value_heads)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in TOKENS])
    writer.add_token_merges(list(_MERGES))
    writer.add_eos_token_id(TOKENS.index("<|end|>"))
    writer.add_bos_token_id(TOKENS.index("<|user|>"))
    writer.add_chat_template(TEMPLATE)
    for key, value in (more or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(key, value)  # type: ignore[operator]
    heads = {"q_proj": CONFIG.num_attention_heads, "k_proj": CONFIG.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if without and without in name:
            continue
        rows = next((n for part, n in heads.items() if part in name), 0)
        values = weight.numpy()
        values = _paired(values, rows) if rows else values
        packed = GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
        data = quantize(values, packed)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=packed)
        read = torch.from_numpy(np.array(dequantize(data, packed), dtype=np.float32).reshape(values.shape))
        if rows:
            read = read.reshape(rows, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
        weight.copy_(read)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
