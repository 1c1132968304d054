"""Attention circuits at GPT-2 small's size, beside TransformerLens and beside the limits of the machine.

    python benchmarks/circuits.py entries heads large                     # against limits
    .peers/transformer-lens-3.9.0/bin/python benchmarks/circuits.py composition copying     # beside TransformerLens

All parts when none is named; composition and copying are left out where TransformerLens is not installed. Random
weights: no result here depends on what a model learned. Contestants for memory run in a process of their own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

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


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = cpu()
    out = work()
    return cpu() - start, out


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def alone(contestant: str) -> dict:
    """One contestant's seconds, memory growth in GiB and answer, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--contestant", contestant], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{contestant} ended with {done.returncode}")
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
        seconds, out = timed(partial(mine.copying_scores, centre=False))
        out = [out]
    elif name == "ours-copying-again":
        mine.copying_scores(centre=False)
        seconds, out = timed(partial(mine.copying_scores, centre=False))
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


def installed() -> str | None:
    """TransformerLens and its version, where it is installed."""
    try:
        return f"TransformerLens {metadata.version('transformer-lens')}"
    except metadata.PackageNotFoundError:
        print("no TransformerLens here: run this part with .peers/transformer-lens-3.9.0/bin/python", file=sys.stderr)
        return None


def composition(rounds: int) -> None:
    if (name := installed()) is None:
        return
    a, b = alone("ours-composition"), alone("peer-composition")
    note = f"{a['seconds']:.2f} s to {b['seconds']:.1f} s"
    claims = [
        Claim(f"time, to {name}", a["seconds"] / b["seconds"], 1 / 20, note),
        Claim(f"memory, to {name}", a["gib"] / b["gib"], 1 / 20, f"{a['gib']:.3f} GiB to {b['gib']:.2f} GiB"),
        Claim("largest difference", off(a, b), 1e-6),
    ]
    record("Composition scores of GPT-2 small's size", claims, how=HOW + " Q, K and V of all pairs of 144 heads.")


def copying(rounds: int) -> None:
    if (name := installed()) is None:
        return
    first, again, b = alone("ours-copying"), alone("ours-copying-again"), alone("peer-copying")
    claims = []
    for what, mine, target in (("first call", first, 1 / 20), ("W_U W_E known", again, 1 / 80)):
        note = f"{mine['seconds']:.2f} s to {b['seconds']:.1f} s"
        claims.append(Claim(f"{what}, to {name}", mine["seconds"] / b["seconds"], target, note))
    claims.append(Claim("largest difference", off(first, b), 1e-5))
    note = (
        f"{first['gib']:.2f} GiB, where a d_vocab x d_head factor of every head would be {L * H * V * DH / 2**28:.1f}"
    )
    claims.append(Claim("memory, to one such factor of every head", first["gib"] / (L * H * V * DH / 2**28), 1.0, note))
    record("Copying scores of GPT-2 small's size", claims, how=HOW + " 144 heads over the whole vocabulary.")


@torch.no_grad()
def entries(rounds: int) -> None:
    import unembed
    from unembed.attention.weights.low_rank_topk import COLUMNS, ROWS

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
def heads(rounds: int) -> None:
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


def large(rounds: int) -> None:
    """Composition of heads of an 8B model's shape, its memory beside the limit of 24 GiB for all of the process."""
    out = alone("large")
    layers, gib = out["layers"], out["gib"]
    # Weights in bfloat16 grow with the layers; what the computation adds does not: it holds at most 256 heads a side.
    whole = out["weights_gib"] / layers * 32 + gib
    note = f"{gib:.2f} GiB beyond the weights with {layers} layers, {whole:.1f} GiB with all heads of 32 layers"
    claims = [Claim("peak memory with 32 layers, to 24 GiB", whole / 24, 1.0, note)]
    how = f"32 heads, 8 key-value heads, d_model 4096, bfloat16; {out['pairs']:,} pairs in {out['seconds']:.0f} s."
    record("Composition of 8B-shaped heads", claims, how=how)


PARTS = {"composition": composition, "copying": copying, "entries": entries, "heads": heads, "large": large}


@torch.no_grad()
def contest_large(layers: int = 9) -> None:
    """Heads of an 8B model's shape (32 heads, 8 key-value heads, d_model 4096): nine layers, which fill both sides."""
    import transformers

    import unembed

    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, num_hidden_layers=layers,
        intermediate_size=8, vocab_size=64,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)  # converted later, weights in float32 would raise the peak before
    model = transformers.LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    lm = unembed.load(model)
    before = peak()
    seconds, _ = timed(lambda: unembed.circuits(lm).composition("k"))
    weights_gib = sum(parameter.nbytes for parameter in model.parameters()) / 2**30
    pairs = layers * (layers - 1) // 2 * lm.n_heads**2
    found = {"seconds": seconds, "gib": peak() - before, "weights_gib": weights_gib, "layers": layers, "pairs": pairs}
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all when none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.contestant == "large":
        contest_large()
    elif arguments.contestant:
        contest(arguments.contestant)
    else:
        if unknown := sorted(set(arguments.parts) - set(PARTS)):
            parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
        for part in arguments.parts or PARTS:
            PARTS[part](arguments.rounds)


if __name__ == "__main__":
    main()
