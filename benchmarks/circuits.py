"""Attention circuits at GPT-2 small's size, beside TransformerLens and beside the limits of the machine.

    python benchmarks/circuits.py                       # against limits, and our own times
    python benchmarks/circuits.py --peers PATH          # and TransformerLens, from a folder on the import path
    python benchmarks/circuits.py heads --rounds 1      # one part
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


def off(a: dict, b: dict) -> float:
    """The largest difference between two contestants' numbers."""
    pairs = zip(a["numbers"], b["numbers"], strict=True)
    return max(float((torch.tensor(x) - torch.tensor(y)).abs().max()) for x, y in pairs)


def composition(path: str | None, rounds: int) -> None:
    a = alone("ours-composition", path)
    print(f"Q-, K- and V-composition of all pairs: {a['seconds']:.2f} s, {a['gib']:.2f} GiB")
    if path:
        b = alone("peer-composition", path)
        note = f"{a['seconds']:.2f} s to {b['seconds']:.1f} s, largest difference {off(a, b):.0e} (allowed 1e-06)"
        memory = f"{a['gib']:.2f} GiB to {b['gib']:.2f} GiB"
        claims = [
            Claim("time, to TransformerLens", a["seconds"] / b["seconds"], 1 / 20, note),
            Claim("memory, to TransformerLens", a["gib"] / b["gib"], 1 / 20, memory),
        ]
        record("Composition scores of GPT-2 small's size", claims, how=HOW + " Q, K and V of all pairs of 144 heads.")


def copying(path: str | None, rounds: int) -> None:
    first, again = alone("ours-copying", path), alone("ours-copying-again", path)
    print(f"copying scores of 144 heads: {first['seconds']:.2f} s, W_U W_E known {again['seconds']:.2f} s")
    if path:
        b = alone("peer-copying", path)
        claims = []
        for what, mine, target in (("first call", first, 1 / 20), ("W_U W_E known", again, 1 / 80)):
            note = f"{mine['seconds']:.2f} s to {b['seconds']:.1f} s, difference {off(mine, b):.0e} (allowed 1e-05)"
            claims.append(Claim(f"{what}, to TransformerLens", mine["seconds"] / b["seconds"], target, note))
        record("Copying scores of GPT-2 small's size", claims, how=HOW + " 144 heads over the whole vocabulary.")


@torch.no_grad()
def entries(path: str | None, rounds: int) -> None:
    import unembed
    from unembed.attention.entries import COLUMNS, ROWS

    full = unembed.circuits(small()).ov_full(5, 3)
    left, right = full.left, full.right

    def blocks():
        out = torch.empty(ROWS, COLUMNS)
        for some in left.split(ROWS):
            for columns in right.split(COLUMNS, dim=1):
                torch.mm(some, columns, out=out[: len(some), : columns.shape[1]])

    seconds = interleaved({"one multiplication by blocks": blocks, "exact top 100": lambda: full.top(100)}, rounds)
    claim = Claim("to one multiplication by blocks", ratio(seconds, *reversed(seconds)), 3)
    record("Exact top 100 entries of a full OV matrix, 50,257 x 50,257", [claim], seconds, HOW)


@torch.no_grad()
def heads(path: str | None, rounds: int) -> None:
    import unembed

    lm = small()
    circuits = unembed.circuits(lm)
    tokens = torch.randint(V, (50, 64), generator=torch.Generator().manual_seed(0)).repeat(1, 2)

    def passes():
        for some in tokens.split(16):
            lm.run(some, "pattern", logits=False)

    variants = {"passes with patterns": passes, "head scores": lambda: circuits.head_scores(tokens=tokens)}
    seconds = interleaved(variants, rounds)
    claim = Claim("to the passes with patterns", ratio(seconds, *reversed(seconds)), 1.3)
    record("Head scores on 50 sequences of 2 x 64 tokens, GPT-2 small's size", [claim], seconds, HOW)


HOW = "One thread, CPU time, random weights."
PARTS = {"composition": composition, "copying": copying, "entries": entries, "heads": heads}


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
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all when none")
    parser.add_argument("--peers", help="folders that hold TransformerLens 3 and what it needs, with colons between")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestant")
    parser.add_argument("--large", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.peers:
        sys.path += asked.peers.split(":")
    if asked.contestant:
        contest(asked.contestant)
    elif asked.large:
        large()
    else:
        for part in asked.parts or PARTS:
            PARTS[part](asked.peers, asked.rounds)


if __name__ == "__main__":
    main()
