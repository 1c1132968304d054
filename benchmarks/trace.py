"""Capturing a prompt, tracing it, accounting for a logit, reading all values.

Against the plain forward pass, the one matrix product each needs, and TransformerLens where it is installed.

    python benchmarks/trace.py            in the project's environment: ours against the limits
    .peers/transformer-lens-3.9.0/bin/python benchmarks/trace.py      against TransformerLens as well
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from measure import Claim, interleaved, ratio, record
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from unembed.language_model import LanguageModel, load
from unembed.logit_attribution import memory_contributions, points_needed
from unembed.memories.sub_updates import dominant
from unembed.memories.values import value_readings
from unembed.names import STREAM_POINTS
from unembed.stream.run import run

POSITIONS = 32
SHAPE = "GPT-2 small's shape, random weights."
CAPTURED = (*STREAM_POINTS, "coefficients", "mlp_out")


def gpt2_small() -> GPT2LMHeadModel:
    """GPT-2 small's shape with random weights."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config()).eval()


def peer(hf: GPT2LMHeadModel) -> tuple[str, Any] | None:
    """Name and model of whichever TransformerLens is installed: HookedTransformer before version 4, then the bridge."""
    try:
        version = metadata.version("transformer-lens")
    except metadata.PackageNotFoundError:
        return None
    if version.startswith("3"):
        return f"HookedTransformer {version}", _hooked(hf)
    from transformer_lens.model_bridge import TransformerBridge  # pyright: ignore[reportMissingImports]

    hf.config.architectures = ["GPT2LMHeadModel"]
    tokenizer = load().tokenizer  # any will do, but it will not go without one
    return f"TransformerBridge {version}", TransformerBridge.boot_transformers(
        "gpt2", hf_model=hf, tokenizer=tokenizer, device="cpu"
    )


def _hooked(hf: GPT2LMHeadModel) -> Any:
    """HookedTransformer with these weights, untouched; its own loader would ask the hub."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig  # pyright: ignore[reportMissingImports]
    from transformer_lens.pretrained.weight_conversions import gpt2  # pyright: ignore[reportMissingImports]

    c = hf.config
    shape = {"n_layers": c.n_layer, "d_model": c.n_embd, "n_heads": c.n_head, "d_head": c.n_embd // c.n_head}
    shape |= {"d_mlp": 4 * c.n_embd, "n_ctx": c.n_positions, "d_vocab": c.vocab_size, "eps": c.layer_norm_epsilon}
    config = HookedTransformerConfig(**shape, act_fn="gelu_new", normalization_type="LN", device="cpu")
    model = HookedTransformer(config)
    model.load_state_dict(gpt2.convert_gpt2_weights(hf, config), strict=False)
    return model.eval()


def by_nnsight(hf: Any, tokens: Tensor) -> tuple[str, Callable[[], Any]] | None:
    """nnsight, where it is installed, saving the tensors that we capture."""
    try:
        import nnsight  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        return None
    model = nnsight.NNsight(hf)

    def traced() -> Any:
        with torch.no_grad(), model.trace(tokens):
            saved = nnsight.save([])
            for block in model.transformer.h:
                saved += [block.input, block.ln_2.input, block.mlp.c_proj.input, block.mlp.output, block.output]
        return saved

    return f"nnsight {metadata.version('nnsight')}", traced


def wanted(name: str) -> bool:
    """Whether a hook of TransformerLens holds one of the tensors that we capture."""
    return name.endswith(("resid_pre", "resid_mid", "resid_post", "mlp.hook_post", "mlp_out"))


def capture(lm: LanguageModel, tokens: Tensor, other: tuple[str, Any] | None) -> None:
    """Everything captured against the plain forward."""
    variants: dict[str, Callable[[], Any]] = {
        "plain forward": lambda: lm.hf(tokens, use_cache=False),
        "unembed": lambda: run(lm, tokens, CAPTURED),
    }
    claims = [("capture of resid_pre/mid/post, coefficients, mlp_out, to the plain forward", "plain forward", 1.05)]
    if other is not None:
        name, model = other
        target = 0.6 if name.startswith("Hooked") else 0.9
        everything, same = f"{name} run_with_cache", f"{name} run_with_cache of the same tensors"
        variants[everything] = lambda: model.run_with_cache(tokens)
        variants[same] = lambda: model.run_with_cache(tokens, names_filter=wanted)
        claims += [(f"the same, to {everything}", everything, target), (f"the same, to {same}", same, None)]
    if (found := by_nnsight(lm.hf, tokens)) is not None:
        variants[found[0]] = found[1]
        claims.append((f"the same, to {found[0]}", found[0], 1.05))
    seconds = interleaved(variants, rounds=15)
    measured = [Claim(what, ratio(seconds, "unembed", limit), target) for what, limit, target in claims]
    record(f"Capture of a prompt of {POSITIONS} tokens{_where()}", measured, seconds, SHAPE)


def trace(lm: LanguageModel, tokens: Tensor, other: tuple[str, Any] | None) -> None:
    """The whole trace job against the forward body and the one product it needs."""
    table = torch.randint(0, lm.d_vocab, (lm.n_layers, lm.d_mlp, 10))
    rows = torch.randn((2 * lm.n_layers + 1) * POSITIONS, lm.d_model)  # events need the ranks before the first layer
    W_U = lm.weights.W_U
    logits = torch.empty(rows.shape[0], lm.d_vocab)
    norms = [lm.weights.W_out[layer].norm(dim=1) for layer in range(lm.n_layers)]

    def limit() -> None:
        lm.hf.base_model(tokens, use_cache=False)
        torch.mm(rows, W_U, out=logits)

    def ours() -> None:
        seen = lm.trace(tokens)
        _ = seen.readings("resid_mid"), seen.readings("resid_post"), seen.events()
        everywhere = seen.everywhere("coefficients", range(lm.n_layers))
        for layer in range(lm.n_layers):
            found = dominant(everywhere.at("coefficients", layer)[0], lm.weights.W_out[layer], 10)
            table[layer][found]

    def theirs(model: Any) -> None:
        _, cache = model.run_with_cache(tokens, names_filter=wanted)
        streams = torch.stack([cache[p, layer] for p in ("resid_mid", "resid_post") for layer in range(lm.n_layers)])
        scores = model.unembed(model.ln_final(streams[:, 0]))
        best = scores.log_softmax(-1).topk(10)
        own = scores.gather(-1, best.indices[-1:, :, :1].expand(len(scores), -1, -1))
        (scores > own).sum(-1)  # ranks of the final prediction: the events
        for layer in range(lm.n_layers):
            table[layer][(cache["post", layer].abs() * norms[layer]).topk(10).indices]

    variants: dict[str, Callable[[], Any]] = {"forward body + logit product": limit, "unembed": ours}
    what = "readings at 25 points, dominant sub-updates with tokens, events"
    if other is not None:
        variants[other[0]] = lambda: theirs(other[1])
    seconds = interleaved(variants, rounds=5)
    claims = [
        Claim(f"{what}, to forward body + one logit product", ratio(seconds, "unembed", next(iter(variants))), 1.1)
    ]
    if other is not None:
        claims.append(Claim(f"the same, to {other[0]}", ratio(seconds, "unembed", other[0]), 0.75))
    record(f"The trace job{_where()}", claims, seconds, SHAPE)


def attribution(lm: LanguageModel, tokens: Tensor, other: tuple[str, Any] | None) -> None:
    """One logit over all memories at all positions against one forward."""
    seen = run(lm, tokens, points_needed(lm, "memory"))
    variants: dict[str, Callable[[], Any]] = {
        "plain forward": lambda: lm.hf(tokens, use_cache=False),
        "unembed": lambda: memory_contributions(lm, seen, 11),
    }
    if other is not None:
        name, model = other
        _, cache = model.run_with_cache(tokens)
        direction = lm.weights.W_U[:, 11].clone()
        variants[f"{name} stack_neuron_results"] = lambda: cache.stack_neuron_results(
            layer=-1, project_output_onto=direction
        )
    seconds = interleaved(variants, rounds=15)
    claims = [Claim("to one plain forward", ratio(seconds, "unembed", "plain forward"), 0.10)]
    for limit in list(variants)[2:]:
        claims.append(Claim(f"to {limit}, projected", ratio(seconds, "unembed", limit), 0.2))
    n = lm.n_layers * lm.d_mlp
    record(f"Attribution of one logit over {n:,} memories at {POSITIONS} positions{_where()}", claims, seconds, SHAPE)


def values(lm: LanguageModel) -> None:
    """Top-30 of one layer's values against the bare product, all at once into memory that is there already."""
    W_out, W_U = lm.weights.W_out[0], lm.weights.W_U
    scores = torch.empty(W_out.shape[0], lm.d_vocab)

    def bare() -> None:
        torch.mm(W_out, W_U, out=scores)

    with torch.no_grad():
        seconds = interleaved({"bare product": bare, "unembed": lambda: value_readings(lm, 30, layers=[0])}, rounds=5)
    record(
        f"Top-30 tokens of {W_out.shape[0]:,} values{_where()}",
        [Claim("to the bare matrix product", ratio(seconds, "unembed", "bare product"), 1.15)],
        seconds,
    )


_PEAK = """
import resource, sys, torch
torch.set_num_threads(1)
from transformers import GPT2LMHeadModel
tokens = torch.arange(32)[None]
if sys.argv[1] == "ours":
    import unembed
    lm = unembed.load(sys.argv[2])
    seen = lm.trace(tokens)
    seen.readings("resid_mid"), seen.readings("resid_post"), seen.events(), seen.sub_updates_of(range(lm.n_layers))
else:
    model = GPT2LMHeadModel.from_pretrained(sys.argv[2]).eval()
    with torch.no_grad():
        model(tokens, use_cache=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def memory(hf: GPT2LMHeadModel, folder: str) -> None:
    """Peak memory of load + trace against plain transformers' load + forward, in processes of their own."""
    hf.save_pretrained(folder)
    peak = {
        who: int(
            subprocess.run(
                [sys.executable, "-c", _PEAK, who, folder], capture_output=True, text=True, check=True
            ).stdout.split()[-1]
        )
        for who in ("ours", "plain")
    }
    record(
        f"Peak memory{_where()}",
        [
            Claim(
                "load + trace, to plain transformers' load + forward",
                peak["ours"] / peak["plain"],
                1.1,
                f"{peak['ours'] / 1e6:.2f} and {peak['plain'] / 1e6:.2f} GB of resident memory",
            )
        ],
    )


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
    other = peer(copy.deepcopy(hf))  # the bridge wraps modules in place
    torch.set_grad_enabled(False)
    tokens = torch.randint(0, lm.d_vocab, (1, POSITIONS))
    chosen = sys.argv[1:] or ["capture", "trace", "attribution", "values", "memory"]
    jobs: dict[str, Callable[[], None]] = {
        "capture": lambda: capture(lm, tokens, other),
        "trace": lambda: trace(lm, tokens, other),
        "attribution": lambda: attribution(lm, tokens, other),
        "values": lambda: values(lm),
    }
    for name in chosen:
        if name == "memory":
            with tempfile.TemporaryDirectory() as folder:
                memory(hf, folder)
        else:
            jobs[name]()
