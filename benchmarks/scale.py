"""Cost and memory of trace, value readings, composition and sweep at growing sizes, and the rate that fits them.

    python benchmarks/scale.py              sizes up to 355 million parameters
    python benchmarks/scale.py billion      a Llama-shaped model of 1.2 billion in bfloat16 as well (about 6 GiB)

Random weights: costs do not depend on them. Every size runs in a process of its own, for its own peak memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from measure import Claim, record
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

TOKENS = 32


def build(size: str) -> Any:
    """A model of that size."""
    torch.manual_seed(0)
    shapes = {"13M": (6, 256, 8, 8192), "124M": (12, 768, 12, 50257), "355M": (24, 1024, 16, 50257)}
    if size in shapes:
        layers, width, heads, vocabulary = shapes[size]
        return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocabulary)).eval()
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
    )
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def seconds(job: Any, rounds: int = 3) -> float:
    """The least processor time of a few runs."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        job()
        times.append(time.process_time() - start)
    return min(times)


def measure(size: str) -> dict[str, float]:
    """Everything about one size."""
    import unembed

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    hf = build(size)
    lm = unembed.load(hf)
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    tokens = torch.randint(0, lm.d_vocab, (1, TOKENS))

    def trace() -> None:
        seen = lm.trace(tokens)
        _ = seen.readings("resid_mid"), seen.readings("resid_post"), seen.events()
        seen.sub_updates_of(range(lm.n_layers))

    body = sum(p.numel() for name, p in hf.named_parameters() if "wte" not in name and "embed" not in name)
    few = min(256, lm.d_mlp)
    readings = 2 * lm.n_layers * lm.d_model * lm.d_vocab
    found = {
        "body": body,
        "forward": seconds(lambda: hf(tokens, use_cache=False)) / TOKENS,
        "forward_flop": 2 * body + 2 * lm.d_model * lm.d_vocab,
        "trace": seconds(trace, 2) / TOKENS,
        "trace_flop": 2 * body + 2 * readings,
        "values": seconds(lambda: _values(lm, few), 2) / few,
        "values_flop": 2 * lm.d_model * lm.d_vocab,
        "memories": lm.n_layers * lm.d_mlp,
    }
    circuits = unembed.circuits(lm)
    found["composition"] = seconds(lambda: circuits.composition("k"), 1)
    found["heads"] = lm.n_layers * lm.n_heads
    found["weights_gb"] = sum(p.numel() * p.element_size() for p in hf.parameters()) / 1e9
    found["loaded_gb"] = loaded
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return found


def _values(lm: Any, n: int) -> None:
    from unembed.lens import read

    read(lm, lm.weights.W_out[0][:n], 30, basis="raw")


def main(sizes: list[str]) -> None:
    """Measure each size in its own process; write the table."""
    rows = {}
    for size in sizes:
        command = [sys.executable, __file__, "--one", size]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows[size] = json.loads(done.stdout.splitlines()[-1])
        print(size, rows[size], file=sys.stderr)
    lines = [
        "| parameters | forward | trace | 1,000 values | K-composition | weights | peak | GFLOP/s of the first three |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size, r in rows.items():
        rates = [r[f"{job}_flop"] / r[job] / 1e9 for job in ("forward", "trace", "values")]
        lines.append(
            f"| {size} | {r['forward'] * 1e3:.2f} ms/token | {r['trace'] * 1e3:.2f} ms/token | "
            f"{r['values'] * 1e3:.2f} s | "
            f"{r['composition']:.2f} s ({r['heads']:.0f} heads) | {r['weights_gb']:.2f} GB | {r['peak_gb']:.2f} GB | "
            f"{', '.join(f'{rate:.0f}' for rate in rates)} |"
        )
    claims = [
        Claim(f"peak memory of all of it to that of the opened model, {size}", r["peak_gb"] / r["loaded_gb"], None)
        for size, r in rows.items()
    ]
    how = "\n".join(["One thread, processor time, a prompt of 32 tokens.", "", *lines])
    record("Cost by size", claims, None, how)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(["13M", "124M", "355M", *(["1.2B"] if "billion" in sys.argv else [])])
