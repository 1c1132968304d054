"""Memory and time of a sweep whose model lies on disk, beside the same model in memory.

    python benchmarks/offloaded.py          a Llama-shaped model of 1.2 billion in bfloat16 (2.5 GB of disk, 4 GiB of memory)
    python benchmarks/offloaded.py small    one of 60 million, to try it

Random weights, a process for each place, one thread. Peak memory counts the pages of the model's file that are mapped.
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
from measure import Claim, record
from transformers import LlamaConfig, LlamaForCausalLM

BATCH = 1024
CHARACTERS = 6_500
"""Of text: about two batches of tokens."""
PLACES = {"model.embed_tokens": "cpu", "lm_head": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}


def save(folder: str, size: str) -> None:
    """The model, as a user would have it."""
    torch.manual_seed(0)
    layers, width = (4, 512) if size == "small" else (16, 2048)
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 256,
        head_dim=64,
        tie_word_embeddings=True,
    )
    torch.set_default_dtype(torch.bfloat16)
    LlamaForCausalLM(config).save_pretrained(folder)


def measure(folder: str, place: str) -> dict[str, Any]:
    """A sweep from one place, and what it found."""
    import unembed
    from unembed.corpus import open_corpus
    from unembed.sweeps import TopTriggers, sweep

    torch.set_num_threads(1)
    device_map = {**PLACES, "model.layers": "disk"} if place == "disk" else None
    tokenizer = unembed.load("wren").tokenizer
    text = next(iter(open_corpus().documents())).text
    corpus = open_corpus([text[:CHARACTERS]], segmentation="windows", window=128, overlap=0)
    before = peak()
    lm = unembed.load(folder, tokenizer=tokenizer, device_map=device_map)
    opened, cpu = peak(), time.process_time()
    [top] = sweep(lm, corpus, [TopTriggers(25)], tokens_per_batch=BATCH)
    cpu = time.process_time() - cpu
    digest = hashlib.sha256()
    for lists in (top.values, top.positions, top.negative_values, top.negative_positions):
        for tensor in lists:
            digest.update(tensor.numpy().tobytes())
    return {
        "opened": opened - before,
        "peak": peak() - before,
        "cpu": cpu,
        "tokens": top.tokens_seen,
        "weights": sum(p.numel() * p.element_size() for p in lm.hf.parameters()) / 1e9,
        "layers": sum(p.numel() * p.element_size() for p in lm.hf.model.layers.parameters()) / 1e9,
        "found": digest.hexdigest(),
    }


def peak() -> float:
    """The most memory this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main(size: str) -> None:
    """Measure both places; write the table."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, "--save", folder, size], check=True, capture_output=True)
        for place in ("memory", "disk"):
            command = [sys.executable, __file__, "--one", folder, place]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows[place] = json.loads(done.stdout.splitlines()[-1])
            print(place, rows[place], file=sys.stderr)
    whole, disk = rows["memory"], rows["disk"]
    if whole["found"] != disk["found"]:
        raise SystemExit("the two sweeps found different triggers")
    lines = [
        f"A model of {whole['weights']:.2f} GB, {whole['layers']:.2f} GB of it layers; a sweep of {whole['tokens']} tokens",
        f"in batches of {BATCH}; the same triggers, bit for bit. Peaks are above what Python, torch and the tokenizer take.",
        "",
        "| layers | peak when open | peak of the sweep | processor time |",
        "|---|---|---|---|",
        *(
            f"| {where} | {r['opened']:.2f} GB | {r['peak']:.2f} GB | {r['cpu']:.0f} s |"
            for where, r in (("in memory", whole), ("on disk", disk))
        ),
    ]
    claims = [
        Claim("peak memory, layers on disk to all in memory", disk["peak"] / whole["peak"], None),
        Claim("processor time, layers on disk to all in memory", disk["cpu"] / whole["cpu"], None),
    ]
    title = "A sweep whose model lies on disk"
    record(title if size != "small" else f"{title} (small)", claims, None, "\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--save"]:
        save(sys.argv[2], sys.argv[3])
    elif sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3])))
    else:
        main("small" if "small" in sys.argv else "1.2B")
