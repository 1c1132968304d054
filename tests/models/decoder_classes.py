"""One tiny perturbed model of every decoder class in `transformers`, and what `unembed` can do with it.

The list of classes is read from the installed package, so a new release shows its new classes. Each class runs in a
child process of its own, forked from one that has imported torch: a crash or a leak of one class stays with it.

    python -m tests.models.decoder_classes [CLASS ...]        print one line for each class
    python -m tests.models.decoder_classes --write            also write docs/decoder-classes.md
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

D_VOCAB = 97
N_LAYERS = 4

_TINY: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), D_VOCAB),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "lru_width", "word_embed_proj_dim", "embedding_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), N_LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("attention_head_dim", "v_head_dim", "qk_nope_head_dim", "dim_head"), 16),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "dim_ff", "decoder_ffn_dim"), 80),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 32),
    **dict.fromkeys(("expert_ffn_hidden_size", "moe_ffn_hidden_size", "expert_intermediate_size"), 32),
    **dict.fromkeys(("intermediate_size_mlp", "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts", "num_expert_group"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"), 64),
    **dict.fromkeys(("sliding_window", "window_size", "attention_window_size"), 4),
    **dict.fromkeys(("ssm_state_size", "state_size", "mamba_d_state"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 16),
    **dict.fromkeys(("linear_num_value_heads",), 4),
    **dict.fromkeys(("linear_num_key_heads",), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "first_k_dense_replace": 1,
    "expand_ratio": 2,
    "chunk_size": 8,
    "mamba_chunk_size": 8,
    "mamba_d_ssm": 128,
    "mamba_n_groups": 1,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 1,
    "index_head_dim": 16,
    "index_n_heads": 4,
    "index_topk": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Small values for every field that sets a size; a config takes those it has."""

_LATENT = {"head_dim": 8, "num_key_value_heads": 4}
"""Latent attention: the rotary part alone sets head_dim."""
_GEMMA_4 = {
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "num_kv_shared_layers": 2,
    "global_head_dim": 16,
    "num_global_key_value_heads": 2,
}

_HALF_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_heads": 4,
    "linear_head_dim": 16,
}
_DBRX_FFN = {"hidden_size": 64, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}
_QWEN_4 = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 64,
    "indexer_compress_ratio": 4,
    "hc_lowrank": 16,
}

_SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"), _LATENT),
    **dict.fromkeys(("axk1", "axk2", "longcat_flash", "youtu", "minicpm3"), _LATENT),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _GEMMA_4),
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8},
    "mamba": {"time_step_rank": 4},
    "xlstm": {"qk_dim_factor": 1.0},
    "mamba2": {"num_heads": 8, "n_groups": 1, "expand": 2, "head_dim": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "zamba": {
        "num_hidden_layers": 6,
        "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "mamba", "hybrid"],
        "num_key_value_heads": 4,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "n_mamba_heads": 2,
    },
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "mamba_ngroups": 1,
        "num_key_value_heads": 4,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "n_mamba_heads": 8,
        "num_mem_blocks": 1,
    },
    **{key: {**_LATENT, **_HALF_LINEAR} for key in ("kimi_linear", "bailing_hybrid")},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1, 3]},
    **{key: {"layer_types": ["conv", "full_attention"] * 2} for key in ("lfm2", "lfm2_moe")},
    "hrm_text": {},
    "modernbert-decoder": {"num_hidden_layers": 4},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 0.5}, "ffn_config": _DBRX_FFN},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 32},
    "qwen4_exp_text": _QWEN_4,
    "dots3_note_text": {**_LATENT, "n_shared_experts": 1},
    "dots3_note": {part: {"adapter_out_dim": 64} for part in ("vision_config", "audio_config")},
}
"""What a class needs beside the general sizes."""

_TOO_LARGE = {
    "blt": "the configs of its patcher and local models have no small test version; `load` refuses it by name",
    "gemma4_assistant": "a draft model, which runs only together with another model; `load` refuses it by name",
    "gemma4_unified_assistant": "a draft model, which runs only together with another model; `load` refuses it by name",
}
"""Classes that are not built, with the reason."""

_ENCODERS = """
bart bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert data2vec-text electra ernie
marian mbart megatron-bert mvp pegasus plbart prophetnet rembert roberta roberta-prelayernorm roc_bert roformer trocr
whisper xlm xlm-roberta xlm-roberta-xl xlnet xmod reformer git moshi musicgen musicgen_melody fuyu got_ocr2
moss_transcribe_diarize phi4_multimodal cohere_compass_text beam
"""
ENCODERS = frozenset(_ENCODERS.split())
"""Model types in the table of causal models that are encoders, encoder-decoders or speech and vision wrappers."""


def decoder_classes() -> dict[str, str]:
    """Every causal language-model class of the installed transformers with the first model type that builds it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    classes: dict[str, str] = {}
    for model_type, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        if model_type not in ENCODERS:
            classes.setdefault(name, model_type)
    return dict(sorted(classes.items()))


def tiny_config(model_type: str) -> Any:
    """A config of this type with small sizes."""
    from transformers import CONFIG_MAPPING

    return _shrunk(CONFIG_MAPPING[model_type], _SPECIAL.get(model_type, {}))


def _shrunk(config_class: Any, special: dict[str, Any]) -> Any:
    fields = config_class().to_dict()
    small = {name: value for name, value in _TINY.items() if name in fields or hasattr(config_class, name)}
    reverse = {v: k for k, v in getattr(config_class, "attribute_map", {}).items()}
    small = {n: v for n, v in small.items() if n in fields and (n not in reverse or reverse[n] not in small or n == n)}
    for part in ("text_config", "vision_config", "audio_config"):
        if isinstance(fields.get(part), dict) and part in getattr(config_class, "sub_configs", {}):
            inner = config_class.sub_configs[part]
            special_text = _SPECIAL.get(getattr(inner, "model_type", ""), {})
            small[part] = _shrunk(inner, special_text).to_dict() if part == "text_config" else None
    small = {n: v for n, v in small.items() if not (n.endswith("_config") and v is None)}
    return config_class(**{**small, **special})


def tiny_model(model_type: str, seed: int = 0) -> Any:
    """The tiny model in float32 and evaluation mode, its parameters and small buffers perturbed."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(model_type)).float().eval()
    buffers = [b for n, b in model.named_buffers() if b.is_floating_point() and b.dim() <= 1 and "freq" not in n]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.3 if parameter.dim() <= 1 else 0.05) * torch.randn_like(parameter))
        for buffer in buffers:
            buffer.add_(0.3 * torch.randn_like(buffer))
    return model


@dataclass
class Support:
    """What works for one class: for each question "yes", or the reason why not."""

    name: str
    model_type: str
    answers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def state(self) -> str:
        """One word: full, open (some questions are refused), refused, wrong, failed (a traceback) or not built."""
        values = list(self.answers.values())
        for word in ("wrong", "failed", "not built"):
            if any(v.startswith(word) for v in values):
                return word
        if self.answers.get("opens") != "yes":
            return "refused"
        return "full" if all(v == "yes" or v.startswith("none") for v in values) else "open"


def examine(name: str, model_type: str) -> Support:
    """Build the tiny model of one class, open it and try every question; runs in the child process."""
    import torch

    import unembed
    from unembed.errors import UnembedError

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    support, start = Support(name, model_type), time.perf_counter()
    answers = support.answers
    if model_type in _TOO_LARGE:
        answers["opens"] = f"not built: {_TOO_LARGE[model_type]}"
        return support
    try:
        hf = tiny_model(model_type)
        tokens = torch.randint(3, D_VOCAB, (1, 9), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            plain = hf(tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits
        assert bool(torch.isfinite(plain).all())
    except Exception as error:  # a class that cannot be built is reported as such
        answers["opens"] = f"not built: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return support

    def ask(question: str, check: Any) -> Any:
        try:
            result = check()
        except UnembedError as error:
            answers[question] = str(error)
        except AssertionError as error:
            answers[question] = f"wrong: {error}"
        except Exception as error:
            answers[question] = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        else:
            answers[question] = "yes"
            return result
        return None

    lm = ask("opens", lambda: unembed.load(hf))
    if lm is not None:
        ask("logits", lambda: _same_logits(lm, tokens, plain))
        for by in ("component", "head", "source", "memory"):
            ask(by, lambda by=by: _attribution(lm, tokens, by))
        ask("head off", lambda: _head_off(lm, tokens))
        for question in _absent(lm):
            if not answers[question].startswith(("yes", "wrong", "failed")):
                answers[question] = f"none: {answers[question]}"
        ask("trace", lambda: _trace(lm, tokens))
        ask("circuit", lambda: _circuit(lm, tokens))
    support.seconds = time.perf_counter() - start
    return support


def _absent(lm: Any) -> list[str]:
    """The questions about parts that the architecture does not have: they must be refused, and nothing is missing."""
    mixers = [b.mixer for b in lm.structure.blocks if b.mixer is not None]
    attends = any(m.is_attention for m in mixers)
    absent = [] if attends else ["source"]
    absent += [] if attends or any(m.n_heads for m in mixers) else ["head", "head off"]
    return absent + ([] if any(b.feed_forward is not None for b in lm.structure.blocks) else ["memory"])


def _same_logits(lm: Any, tokens: Any, plain: Any) -> None:
    run = lm.run(tokens, ("resid_pre", "resid_post", "attn_out"))
    assert bool((run.logits == plain).all()), "logits differ from the model's own"
    after = lm.run(tokens).logits
    assert bool((after == plain).all()), "logits differ after hooks were removed"


def _attribution(lm: Any, tokens: Any, by: str) -> None:
    from unembed.logit_attribution import attribution

    whole = attribution(lm, tokens, 11, by="component")
    parts = attribution(lm, tokens, 11, by=by)
    assert parts.error < 1e-4, f"error {parts.error}"
    for layer in range(lm.n_layers):
        sums = [float(a.contribution[(a.layer == layer)].double().sum()) for a in (whole, parts)]
        largest = float(parts.contribution.abs().max())
        assert abs(sums[0] - sums[1]) < 1e-4 * max(largest, abs(sums[0])), f"layer {layer} sums to {sums}"


def _trace(lm: Any, tokens: Any) -> None:
    trace = lm.trace(tokens)
    readings = trace.readings(top=3)
    assert readings.ids.shape[0] == lm.n_layers
    trace.attribution(11)


def _circuit(lm: Any, tokens: Any) -> None:
    """Relevance adds up to the metric at every layer, and edges to the relevance of their node."""
    graph = lm.circuit(tokens[0].tolist(), 11, 12, max_nodes=8)
    assert graph.error < 1e-4, f"error {graph.error}"


def _head_off(lm: Any, tokens: Any) -> None:
    import torch

    import unembed

    sites = [(n, b.mixer) for n, b in enumerate(lm.structure.blocks) if b.mixer is not None and b.mixer.n_heads > 1]
    layer, site = sites[0] if sites else (0, lm.structure.blocks[0].attention)
    edited = lm.run(tokens, edits=[unembed.scale_head(layer, 1, 0.0)]).logits

    def silence(_m: Any, args: Any) -> Any:
        z = args[0].clone()
        z[..., site.d_head : 2 * site.d_head] = 0
        return (z, *args[1:])

    handle = site.out_proj.register_forward_pre_hook(silence)
    try:
        with torch.no_grad():
            by_hand = lm.hf(tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits
    finally:
        handle.remove()
    assert bool((edited == by_hand).all()), "an edited head differs from a hand-written hook"


PAGE = Path(__file__).parents[2] / "docs" / "decoder-classes.md"
_QUESTIONS = ("component", "head", "source", "memory", "trace", "circuit")


def page(found: Iterable[Support]) -> str:
    """The page of the documentation: what works for each class, and why the rest is refused."""
    import transformers

    rows = sorted(found, key=lambda s: s.name)
    states = [s.state for s in rows]
    opened = states.count("full") + states.count("open")
    lines = [
        "# Every decoder class of transformers",
        "",
        f"Generated by `make families` with transformers {transformers.__version__}, from a tiny model of every class",
        "with perturbed weights. The checks: logits are bit-equal to the model's own; attributions by component, head,",
        "source and memory (FFN neuron) have a relative error below 1e-4 and equal sums within every layer; a trace",
        "works; a run with one head switched off is bit-equal to a hand-written hook; the relevance of a circuit adds",
        "up to the difference of two logits at every layer, and its edges to each node's relevance, to 1e-4. A dash",
        "means that the architecture lacks the part: sources need attention weights, heads a projection over heads,",
        "memories an FFN.",
        "",
        f"{opened} of {len(rows)} classes open, {states.count('full')} of them with every analysis that their",
        f"architecture allows; {states.count('wrong')} give a wrong number.",
        "",
        "| class | " + " | ".join(_QUESTIONS) + " | what is refused, and why |",
        "|---|" + "---|" * len(_QUESTIONS) + "---|",
    ]
    for support in rows:
        if support.state == "not built":
            cells, why = ["" for _ in _QUESTIONS], _short(support.name, support.answers["opens"])
        else:
            cells = [_cell(support.answers.get(q, "")) for q in _QUESTIONS]
            reasons = [v for v in support.answers.values() if v != "yes" and not v.startswith("none")]
            why = " ".join(dict.fromkeys(_short(support.name, r) for r in reasons))
        lines.append(f"| {support.name} | {' | '.join(cells)} | {why} |")
    return "\n".join(lines) + "\n"


def _cell(answer: str) -> str:
    return "yes" if answer == "yes" else "–" if answer.startswith("none") else "no"


def _short(name: str, reason: str) -> str:
    """The reason without the class's name and the way on, which are the same in every row."""
    reason = re.split(r"\. (?=[A-Z])", reason.replace(f"{name}: ", "").replace(f"{name} ", ""))[0].rstrip(".")
    return reason[:1].upper() + reason[1:].replace("|", "/") + "."


def _child(connection: Any, name: str, model_type: str) -> None:
    with open(os.devnull, "w") as silence:  # transformers prints warnings about slow paths
        os.dup2(silence.fileno(), 2)
        os.dup2(silence.fileno(), 1)
    connection.send(asdict(examine(name, model_type)))


def examine_all(names: Iterable[str], limit_s: float = 240.0, workers: int = 2) -> Iterator[Support]:
    """Examine classes, each in a forked child process, `workers` at a time."""
    import torch  # noqa: F401  (once, before the forks)
    import transformers

    import unembed.language_model  # noqa: F401

    transformers.logging.set_verbosity_error()
    classes, context = decoder_classes(), multiprocessing.get_context("fork")
    waiting, running = list(names), []
    while waiting or running:
        while waiting and len(running) < workers:
            name = waiting.pop(0)
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(there, name, classes[name]))
            process.start()
            there.close()
            running.append((name, process, here, time.monotonic()))
        for entry in list(running):
            name, process, here, started = entry
            try:
                data = here.recv() if here.poll(0.05) else None
            except EOFError:
                data = {"answers": {"opens": "failed: the process ended"}}
            if data is None and time.monotonic() - started > limit_s:
                data = {"answers": {"opens": f"failed: more than {limit_s:.0f} s"}}
                process.kill()
            if data is not None:
                process.join()
                running.remove(entry)
                yield Support(**{"name": name, "model_type": classes[name], **data})


def main(arguments: list[str]) -> None:
    """Print what works for each class, and write the page of the documentation if asked."""
    names = [a for a in arguments if not a.startswith("-")] or list(decoder_classes())
    found = []
    for support in examine_all(names):
        found.append(support)
        reasons = [f"{k}: {v[:150]}" for k, v in support.answers.items() if v != "yes"]
        print(f"{support.state:9} {support.name:34} {support.seconds:5.1f}s  {' | '.join(reasons[:2])}", flush=True)
    if "--write" in arguments:
        PAGE.write_text(page(found))
    states = [s.state for s in found]
    print({word: states.count(word) for word in dict.fromkeys(states)}, len(found))
    if "--json" in arguments:
        Path("/tmp/decoder_classes.json").write_text(json.dumps([asdict(s) for s in found], indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
