"""Patching, ablation and attribution patching at GPT-2 small's size, beside plain passes, TransformerLens and nnsight.

    python benchmarks/causality.py                                              # beside plain passes
    .peers/transformer-lens-4.3.0/bin/python benchmarks/causality.py            # beside the two libraries too

Two prompts of 20 tokens that differ at two of them; random weights: no result here depends on what a model learned.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch

try:
    from benchmarks.measure import Claim, interleaved, ratio, record
except ImportError:  # run as a script
    from measure import Claim, interleaved, ratio, record

L, H, N, V = 12, 12, 20, 50257
CELLS = 2 * L
"""Cells that the slow ways compute, of the 240; their time is multiplied by ten."""
HOW = f"GPT-2 small's size, 2 prompts of {N} tokens, one thread, CPU time, random weights."


def small() -> Any:
    import transformers

    import unembed

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    return unembed.load(transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval())


def prompts() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(V, (N,), generator=generator)
    corrupted = clean.clone()
    corrupted[[3, 11]] = torch.randint(V, (2,), generator=generator)
    return clean, corrupted


def metric(logits: torch.Tensor) -> torch.Tensor:
    return logits[..., 5].double() - logits[..., 9].double()


@torch.no_grad()
def by_hooks(lm: Any, layer: int, position: int, given: torch.Tensor, corrupted: torch.Tensor) -> float:
    """One cell the plain way: a whole forward pass with a hook."""

    def hook(_m: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        new = args[0].clone()
        new[0, position] = given[layer, 0, position]
        return (new, *args[1:])

    handle = lm.hf.transformer.h[layer].register_forward_pre_hook(hook)
    logits = lm.hf(corrupted[None], use_cache=False).logits[:, -1]
    handle.remove()
    return float(metric(logits))


def transformer_lens(lm: Any) -> Any:
    """`generic_activation_patch` on two positions of every layer."""
    import pandas as pd
    from transformer_lens import patching  # pyright: ignore[reportMissingImports]
    from transformer_lens.model_bridge import TransformerBridge  # pyright: ignore[reportMissingImports]

    import unembed

    clean, corrupted = prompts()
    hf = copy.deepcopy(lm.hf)
    hf.config.architectures = ["GPT2LMHeadModel"]
    bridge = TransformerBridge.boot_transformers("gpt2", hf_model=hf, tokenizer=unembed.load().tokenizer, device="cpu")
    cells = pd.DataFrame([(n, p) for n in range(L) for p in (3, N - 1)], columns=["layer", "pos"])
    with torch.no_grad():
        _, cache = bridge.run_with_cache(clean[None])

    @torch.no_grad()
    def run() -> torch.Tensor:
        return patching.generic_activation_patch(
            bridge,
            corrupted[None],
            cache,
            lambda logits: metric(logits[:, -1])[0],
            patching.layer_pos_patch_setter,
            "resid_pre",
            index_df=cells,
        )

    return run


def nnsight(lm: Any) -> Any:
    """A trace for each cell, on two positions of every layer."""
    from nnsight import NNsight  # pyright: ignore[reportMissingImports]

    clean, corrupted = prompts()
    model = NNsight(copy.deepcopy(lm.hf))
    given = lm.run(clean, "resid_pre")["resid_pre"]

    @torch.no_grad()
    def run() -> torch.Tensor:
        found = []
        for layer in range(L):
            for position in (3, N - 1):
                with model.trace(corrupted[None], use_cache=False):
                    model.transformer.h[layer].input[:, position] = given[layer, 0, position]
                    value = metric(model.output.logits[:, -1])[0].save()  # pyright: ignore[reportAttributeAccessIssue]
                found.append(value)
        return torch.stack(found)

    return run


def patching(rounds: int) -> None:
    lm = small()
    clean, corrupted = prompts()
    with torch.no_grad():
        given = lm.run(clean, "resid_pre")["resid_pre"]
    ours = lm.patch(clean, corrupted, "resid_pre", metric).values
    plain = torch.tensor([[by_hooks(lm, n, p, given, corrupted) for p in range(N)] for n in range(L)])
    off = float((ours - plain).abs().max())

    @torch.no_grad()
    def passes() -> None:
        for _ in range(CELLS):
            lm.hf(corrupted[None], use_cache=False)

    variants: dict[str, Callable[[], Any]] = {
        "ours, 240 cells": lambda: lm.patch(clean, corrupted, "resid_pre", metric)
    }
    slow: dict[str, Callable[[], Any]] = {"plain passes": passes}
    some = ours[:, [3, N - 1]].flatten()
    for name, distribution, made in (
        ("TransformerLens", "transformer-lens", transformer_lens),
        ("nnsight", "nnsight", nnsight),
    ):
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            print(f"no {name} here: run with .peers/transformer-lens-4.3.0/bin/python", file=sys.stderr)
            continue
        peer = made(lm)
        theirs = peer().flatten().double()
        assert float((theirs - some).abs().max()) < 1e-4, f"{name} gives other numbers"
        slow[f"{name} {version}"] = peer
    seconds = interleaved(variants | slow, rounds)
    claims = []
    for name in slow:
        target, what = (0.6, f"{L * N} plain passes") if name == "plain passes" else (0.5, name)
        share = ratio(seconds, next(iter(variants)), name) / (L * N / CELLS)
        claims.append(Claim(f"time, to {what}", share, target, f"{CELLS} of its {L * N} cells timed"))
    claims.append(Claim("largest difference to the plain way", off, 1e-5))
    seconds = {f"{name}, {CELLS} cells" if name in slow else name: s for name, s in seconds.items()}
    record("Patching resid_pre of 12 layers by 20 positions", claims, seconds, HOW)


def ablation(rounds: int) -> None:
    lm = small()
    clean, _ = prompts()
    memories = [(i % L, 3 * i) for i in range(1000)]

    @torch.no_grad()
    def passes() -> None:
        for _ in range(CELLS):
            lm.hf(clean[None], use_cache=False)

    variants = {
        f"{CELLS} plain passes": passes,
        "144 heads": lambda: lm.ablate(clean, heads="all", metric=metric),
        "1,000 memories": lambda: lm.ablate(clean, memories=memories, metric=metric),
    }
    seconds = interleaved(variants, rounds)
    plain = next(iter(variants))
    claims = [
        Claim("total effects of 144 heads, to 144 passes", ratio(seconds, "144 heads", plain) * CELLS / 144, 0.6),
        Claim("of 1,000 memories, to 1,000 passes", ratio(seconds, "1,000 memories", plain) * CELLS / 1000, 0.35),
    ]
    rows = lm.ablate(clean, heads=[(0, 3), (5, 2), (11, 7)], metric=metric).values
    import unembed

    edits = [unembed.scale_head(n, h, 0.0) for n, h in ((0, 3), (5, 2), (11, 7))]
    plain_way = torch.stack([metric(lm.run(clean, edits=[edit]).logits[0, -1]) for edit in edits])
    claims.append(Claim("largest difference to passes under edits", float((rows - plain_way).abs().max()), 1e-5))
    how = HOW + " Batches hold 2,048 tokens at most, so memory does not grow with the number of ablations."
    record("Ablation of heads and memories", claims, seconds, how)


def screening(rounds: int) -> None:
    import unembed

    lm = small()
    clean, _ = prompts()

    def both() -> None:
        with torch.enable_grad():
            entering = lm.hf.transformer.wte(clean[None]).detach().requires_grad_()
            logits = lm.hf(inputs_embeds=entering, use_cache=False).logits[:, -1]
            torch.autograd.grad(metric(logits)[0], entering)

    variants = {
        "one forward and backward pass": both,
        "144 heads and 36,864 memories": lambda: unembed.attribution_patching(lm, clean, metric, top=0),
    }
    seconds = interleaved(variants, rounds)
    claim = Claim("to one forward and backward pass", ratio(seconds, *reversed(seconds)), 1.3)
    record("Screening by attribution patching", [claim], seconds, HOW)


PARTS = {"patching": patching, "ablation": ablation, "screening": screening}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all when none")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if unknown := sorted(set(arguments.parts) - set(PARTS)):
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    for part in arguments.parts or PARTS:
        PARTS[part](arguments.rounds)


if __name__ == "__main__":
    main()
