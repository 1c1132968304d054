"""Capturing a prompt, tracing it, accounting for a logit, reading all values: against the plain forward pass, the one
matrix product each needs, and TransformerLens where it is installed (HookedTransformer up to 3.9, TransformerBridge).

    python benchmarks/trace.py            in the project's environment: ours against the limits
    .peers/*/bin/python benchmarks/trace.py      in an environment with TransformerLens: against it as well
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from measure import Claim, interleaved, ratio, record
from transformers import GPT2Config, GPT2LMHeadModel

from unembed.account import memory_shares, points_needed
from unembed.language_model import LanguageModel, load
from unembed.memories.values import value_readings
from unembed.names import STREAM_POINTS
from unembed.stream.run import run

POSITIONS = 32
CAPTURED = (*STREAM_POINTS, "coefficients", "mlp_out")


def gpt2_small() -> GPT2LMHeadModel:
    """GPT-2 small's shape with random weights."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config()).eval()


def peers(hf: GPT2LMHeadModel, tokens: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """run_with_cache of whichever TransformerLens is installed, the same tensors asked for."""
    try:
        version = metadata.version("transformer-lens")
    except metadata.PackageNotFoundError:
        return {}
    names = ("resid_pre", "resid_mid", "resid_post", "mlp.hook_post", "mlp_out")
    if version.startswith("3"):
        from transformer_lens import HookedTransformer

        model = HookedTransformer.from_pretrained_no_processing("gpt2", hf_model=hf, tokenizer=None)
    else:
        from transformer_lens.model_bridge import TransformerBridge

        model = TransformerBridge.boot_transformers("gpt2", hf_model=hf)
    wanted = lambda name: name.endswith(names)  # noqa: E731
    return {
        f"TransformerLens {version} run_with_cache": lambda: model.run_with_cache(tokens),
        f"TransformerLens {version} run_with_cache, same tensors": lambda: model.run_with_cache(
            tokens, names_filter=wanted),
    }


def capture(lm: LanguageModel, tokens: torch.Tensor) -> None:
    """Everything captured against the plain forward."""
    variants: dict[str, Callable[[], Any]] = {
        "plain forward": lambda: lm.hf(tokens, use_cache=False),
        "unembed": lambda: run(lm, tokens, CAPTURED),
        **peers(lm.hf, tokens),
    }
    with torch.no_grad():
        seconds = interleaved(variants, rounds=15)
    claims = [Claim("capture of resid_pre/mid/post, coefficients, mlp_out, to the plain forward",
                    ratio(seconds, "unembed", "plain forward"), 1.05)]
    for name in variants:
        if name.startswith("TransformerLens"):
            target = 0.6 if " 3." in name else 0.9
            claims.append(Claim(f"the same, to {name}", ratio(seconds, "unembed", name), target))
    record(f"Capture of a prompt of {POSITIONS} tokens{_where()}", claims, seconds, "GPT-2 small's shape, random weights.")


def trace(lm: LanguageModel, tokens: torch.Tensor) -> None:
    """The whole trace job against the forward body and the one product it needs."""
    table = torch.randint(0, lm.d_vocab, (lm.n_layers, lm.d_mlp, 10))
    rows = torch.randn(2 * lm.n_layers * POSITIONS, lm.d_model)
    W_U = lm.weights.W_U

    def limit() -> None:
        lm.hf.transformer(tokens, use_cache=False)
        for start in range(0, rows.shape[0], 128):
            rows[start : start + 128] @ W_U

    def ours() -> None:
        seen = lm.trace(tokens)
        seen.readings("resid_mid"), seen.readings("resid_post"), seen.events()
        for layer, found in enumerate(seen.dominant(10)):
            table[layer][found.index]

    with torch.no_grad():
        seconds = interleaved({"forward body + logit product": limit, "unembed": ours}, rounds=5)
    record(f"The trace job{_where()}", [
        Claim("readings at 24 points, dominant sub-updates with tokens, events, to forward body + one logit product",
              ratio(seconds, "unembed", "forward body + logit product"), 1.10)], seconds)


def account(lm: LanguageModel, tokens: torch.Tensor) -> None:
    """One logit over all memories at all positions against one forward."""
    seen = run(lm, tokens, points_needed(lm, "memory"))
    variants: dict[str, Callable[[], Any]] = {
        "plain forward": lambda: lm.hf(tokens, use_cache=False),
        "unembed": lambda: memory_shares(lm, seen, 11),
    }
    with torch.no_grad():
        seconds = interleaved(variants, rounds=15)
    record(f"Account of one logit over {lm.n_layers * lm.d_mlp:,} memories at {POSITIONS} positions{_where()}", [
        Claim("to one plain forward", ratio(seconds, "unembed", "plain forward"), 0.10)], seconds)


def values(lm: LanguageModel) -> None:
    """Top-30 of one layer's values against the bare product in the same chunks."""
    W_out, W_U = lm.weights.W_out[0], lm.weights.W_U

    def bare() -> None:
        for start in range(0, W_out.shape[0], 128):
            W_out[start : start + 128] @ W_U

    with torch.no_grad():
        seconds = interleaved(
            {"bare product": bare, "unembed": lambda: value_readings(lm, 30, layers=[0])}, rounds=5)
    record(f"Top-30 tokens of {W_out.shape[0]:,} values{_where()}", [
        Claim("to the bare matrix product", ratio(seconds, "unembed", "bare product"), 1.15)], seconds)


_PEAK = """
import resource, sys, torch
torch.set_num_threads(1)
from transformers import GPT2LMHeadModel
tokens = torch.arange(32)[None]
if sys.argv[1] == "ours":
    import unembed
    lm = unembed.load(sys.argv[2])
    seen = lm.trace(tokens)
    seen.readings("resid_mid"), seen.readings("resid_post"), seen.events(), seen.dominant()
else:
    model = GPT2LMHeadModel.from_pretrained(sys.argv[2]).eval()
    with torch.no_grad():
        model(tokens, use_cache=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def memory(hf: GPT2LMHeadModel, folder: str) -> None:
    """Peak memory of load + trace against plain transformers' load + forward, in processes of their own."""
    hf.save_pretrained(folder)
    peak = {who: int(subprocess.run([sys.executable, "-c", _PEAK, who, folder], capture_output=True, text=True,
                                    check=True).stdout.split()[-1]) for who in ("ours", "plain")}
    record(f"Peak memory{_where()}", [
        Claim("load + trace, to plain transformers' load + forward", peak["ours"] / peak["plain"], 1.1,
              f"{peak['ours'] / 1e6:.2f} and {peak['plain'] / 1e6:.2f} GB of resident memory")])


def _where() -> str:
    try:
        return f" (beside TransformerLens {metadata.version('transformer-lens')})"
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    import tempfile

    torch.set_num_threads(1)
    hf = gpt2_small()
    lm = load(hf)
    tokens = torch.randint(0, lm.d_vocab, (1, POSITIONS))
    chosen = sys.argv[1:] or ["capture", "trace", "account", "values", "memory"]
    jobs: dict[str, Callable[[], None]] = {
        "capture": lambda: capture(lm, tokens), "trace": lambda: trace(lm, tokens),
        "account": lambda: account(lm, tokens), "values": lambda: values(lm),
    }
    for name in chosen:
        if name == "memory":
            with tempfile.TemporaryDirectory() as folder:
                memory(hf, folder)
        else:
            jobs[name]()
