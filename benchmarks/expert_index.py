"""Bytes of an index for each key of a mixture of experts, measured on a small one, and the index of a large one.

    python benchmarks/expert_index.py

The small model has 4 layers of 16 experts of 64 memories and random weights; bytes a key depend on neither widths nor
the corpus, once every key has its triggers. The large one has the shape of Qwen3-30B-A3B.
"""

from __future__ import annotations

import tempfile

import torch
from measure import Claim, record
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import unembed

LAYERS, EXPERTS, WIDTH = 48, 128, 768
POLES, TOP = 2, 25


def main() -> None:
    """Build the small index and record bytes a key, of one layer and of the whole large model."""
    torch.manual_seed(0)
    shape = Qwen3MoeConfig(
        num_hidden_layers=4, num_experts=16, num_experts_per_tok=1, moe_intermediate_size=64, hidden_size=64,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=16384, max_position_embeddings=512,
    )  # fmt: skip
    lm = unembed.load(Qwen3MoeForCausalLM(shape).eval(), tokenizer=unembed.load().tokenizer)
    corpus = unembed.open_corpus(None, max_documents=8)
    with tempfile.TemporaryDirectory() as folder:
        index = unembed.Index.build(lm, corpus, f"{folder}/index", top=TOP)
        parts = {entry: size / index.n_keys for entry, size in index.status()["parts"].items()}
    keys = LAYERS * EXPERTS * WIDTH
    parts = {name: parts[name] for name in ("triggers", "values", "tables")}
    parts |= {"together": sum(parts.values()), "state of the sweep": POLES * TOP * 12}
    claims = [
        Claim(name, size, None, f"one layer {size * keys / LAYERS / 1e6:,.0f} MB, all {size * keys / 1e9:.2f} GB")
        for name, size in parts.items()
    ]
    how = f"Bytes a key; the large model has {keys:,}. Both poles, {TOP} triggers, 30 tokens a value."
    record("Index of a mixture of experts", claims, how=how)


if __name__ == "__main__":
    main()
