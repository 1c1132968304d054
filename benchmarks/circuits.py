"""Attention circuits at GPT-2 small's size, beside TransformerLens and beside the limits of the machine.

    python benchmarks/circuits.py                       # against limits
    python benchmarks/circuits.py --peers PATH          # and TransformerLens, from a folder on the import path
    python benchmarks/circuits.py --large               # composition of 8B-shaped heads: peak memory

Random weights: no result here depends on what a model learned. Contestants for memory run in a process of their own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from types import SimpleNamespace

import torch

try:
    from benchmarks.measure import Claim, interleaved, ratio, record
except ImportError:  # run as a script
    from measure import Claim, interleaved, ratio, record

L, H, D, DH, V = 12, 12, 768, 64, 50257
MODES = ("q", "k", "v")


def small():
    import transformers

    import unembed

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    return unembed.load(transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval())


def peer(lm):
    """The same weights as TransformerLens holds them, nothing folded."""
    import transformer_lens as tl  # pyright: ignore[reportMissingImports]

    config = tl.HookedTransformerConfig(
        n_layers=L, d_model=D, n_ctx=1024, d_head=DH, n_heads=H, d_mlp=3072, d_vocab=V, act_fn="gelu_new", seed=0,
        device="cpu",
    )  # fmt: skip
    model = tl.HookedTransformer(config)
    w = lm.weights
    with torch.no_grad():
        for n, block in enumerate(model.blocks):
            for mine, theirs in ((w.W_Q, block.attn.W_Q), (w.W_K, block.attn.W_K), (w.W_V, block.attn.W_V)):
                theirs.copy_(mine[n])
            block.attn.W_O.copy_(w.W_O[n])
        model.embed.W_E.copy_(w.W_E)
        model.unembed.W_U.copy_(w.W_U)
    return model


def cpu() -> float:
    return time.process_time()


def timed(work) -> tuple[float, object]:
    start = cpu()
    out = work()
    return cpu() - start, out


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def alone(contestant: str, path: str | None) -> dict:
    """One contestant's seconds, memory growth in GiB and answer, in a process of its own."""
    command = [sys.executable, __file__, "--contestant", contestant, *(["--peers", path] if path else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@torch.no_grad()
def contest(name: str) -> None:
    import unembed

    lm = small()
    mine = unembed.circuits(lm)
    model = peer(lm) if name.startswith("peer") else None
    before = peak()
    if name == "ours-composition":
        seconds, out = timed(lambda: list(mine.compositions().values()))
    elif name == "peer-composition":
        assert model is not None
        seconds, out = timed(lambda: [model.all_composition_scores(m.upper()) for m in MODES])
        out = [getattr(scores, "scores", scores) for scores in out]
    elif name == "ours-copying":
        seconds, out = timed(mine.copying_scores)
        out = [out]
    elif name == "ours-copying-again":
        mine.copying_scores()
        seconds, out = timed(mine.copying_scores)
        out = [out]
    else:
        assert model is not None

        def scores():
            rows = []
            for n in range(L):  # a layer at a time: all at once takes 3.5 GB
                values = (model.W_E @ model.blocks[n].attn.OV @ model.W_U).eigenvalues
                rows.append(values.real.sum(-1) / values.abs().sum(-1))
            return torch.stack(rows)

        seconds, out = timed(scores)
        out = [out]
    numbers = [t.double().flatten().tolist() for t in out]
    print(json.dumps({"seconds": seconds, "gib": peak() - before, "numbers": numbers}))


def against_peer(path: str) -> list[Claim]:
    claims = []
    for what, ours, theirs, target, limit in (
        ("Q-, K- and V-composition of all pairs: time", "ours-composition", "peer-composition", 1 / 20, 1e-6),
        ("copying scores of 144 heads: time, first call", "ours-copying", "peer-copying", 1 / 20, 1e-5),
        ("copying scores, W_U W_E known", "ours-copying-again", "peer-copying", 1 / 80, 1e-5),
    ):
        a = alone(ours, path)
        if ours != "ours-copying-again":
            b = alone(theirs, path)
        off = max(
            float((torch.tensor(x) - torch.tensor(y)).abs().max())
            for x, y in zip(a["numbers"], b["numbers"], strict=True)
        )
        note = f"{a['seconds']:.2f} s to {b['seconds']:.1f} s, largest difference {off:.0e} (allowed {limit:.0e})"
        claims.append(Claim(f"{what}, to TransformerLens", a["seconds"] / b["seconds"], target, note))
        if "composition" in what:
            note = f"{a['gib']:.2f} GiB to {b['gib']:.2f} GiB"
            claims.append(Claim("composition: memory, to TransformerLens", a["gib"] / b["gib"], 1 / 20, note))
    return claims


@torch.no_grad()
def against_limits() -> tuple[list[Claim], dict[str, list[float]]]:
    import unembed
    from unembed.attention.entries import COLUMNS, ROWS

    lm = small()
    circuits = unembed.circuits(lm)
    full = circuits.ov_full(5, 3)
    left, right = full.left, full.right

    def blocks():
        out = torch.empty(ROWS, COLUMNS)
        for some in left.split(ROWS):
            for columns in right.split(COLUMNS, dim=1):
                torch.mm(some, columns, out=out[: len(some), : columns.shape[1]])

    tokens = torch.randint(V, (50, 64), generator=torch.Generator().manual_seed(0)).repeat(1, 2)

    def forward():
        for some in tokens.split(16):
            lm.run(some, "pattern", logits=False)

    variants = {
        "one multiplication by blocks": blocks,
        "exact top 100 of a full OV matrix": lambda: full.top(100),
    }
    seconds = interleaved(variants, rounds=3)
    heads = {"passes with patterns": forward, "head scores": lambda: circuits.head_scores(tokens=tokens)}
    seconds |= interleaved(heads, rounds=3)
    top = ratio(seconds, "exact top 100 of a full OV matrix", "one multiplication by blocks")
    scores = ratio(seconds, "head scores", "passes with patterns")
    return [
        Claim("exact top 100 of a full OV matrix (50,257 x 50,257), to one multiplication by blocks", top, 3),
        Claim("head scores on 50 sequences of 2 x 64 tokens, to the passes with patterns", scores, 1.3),
    ], seconds


@torch.no_grad()
def large(layers: int = 3) -> None:
    """Heads of an 8B model's shape (32 heads, 8 key-value heads, d_model 4096), a few layers of them."""
    from unembed.attention import composition

    d_model, heads, kv, d_head = 4096, 32, 8, 128

    def made(layer: int, which: int, n: int, *shape: int) -> torch.Tensor:
        return torch.randn(n, *shape, generator=torch.Generator().manual_seed(layer * 4 + which)).bfloat16()

    weights = SimpleNamespace(
        W_Q=[made(n, 0, heads, d_model, d_head) for n in range(layers)],
        W_K=[made(n, 1, kv, d_model, d_head) for n in range(layers)],
        W_V=[made(n, 2, kv, d_model, d_head) for n in range(layers)],
        W_O=[made(n, 3, heads, d_head, d_model) for n in range(layers)],
    )
    site = SimpleNamespace(queries_per_kv=heads // kv, pre_norm=None, branch_norm=None, multiplier=1.0)
    blocks = [SimpleNamespace(attention=site)] * layers
    lm = SimpleNamespace(weights=weights, structure=SimpleNamespace(blocks=blocks), n_layers=layers, n_heads=heads)
    before = peak()
    seconds, _ = timed(lambda: composition.composition(lm, "k"))  # type: ignore[arg-type]
    pairs = layers * (layers - 1) // 2 * heads * heads
    print(f"{pairs} pairs of 8B-shaped heads: {seconds:.0f} s, {peak() - before:.2f} GiB beyond the weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="folder that holds TransformerLens and what it needs")
    parser.add_argument("--contestant")
    parser.add_argument("--large", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.peers:
        sys.path.append(asked.peers)
    if asked.contestant:
        contest(asked.contestant)
    elif asked.large:
        large()
    else:
        claims, seconds = against_limits()
        claims += against_peer(asked.peers) if asked.peers else []
        record("Attention circuits of GPT-2 small's size", claims, seconds, "One thread, CPU time, random weights.")


if __name__ == "__main__":
    main()
