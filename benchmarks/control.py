"""Steering and early exit: what edits cost a generation, what a decision to leave costs, what leaving saves.

    python benchmarks/control.py [edits] [decision] [exit] [table6] [toxicity FOLDER PROMPTS WORDS COMMENTS]

`exit` and `table6` use wren; `toxicity` needs the model that `make toxic-model` makes, prompts as in
RealToxicityPrompts, a list of banned words and the labelled comments, none of which ship.
"""

from __future__ import annotations

import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import RESULTS, Claim, interleaved, ratio, record
from transformers import GPT2Config, GPT2LMHeadModel

import unembed
from unembed import early_exit, steering, toxicity
from unembed.control.early_exit.rule import SubUpdates
from unembed.stream.watch import watch

TOKENS = 24


def gpt2_small() -> Any:
    """GPT-2 small's shape with random weights."""
    torch.manual_seed(0)
    return unembed.load(GPT2LMHeadModel(GPT2Config()).eval())


def edits() -> None:
    """Generation under ten edits, to plain generation."""
    lm = gpt2_small()
    chosen = [unembed.set_coefficient(n, 100 * n + 7, 3.0) for n in range(10)]
    ids = torch.arange(50, 66)[None]
    options = dict(max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0)

    def edited() -> None:
        with lm.edited(chosen):
            lm.hf.generate(ids, **options)

    seconds = interleaved({"plain": lambda: lm.hf.generate(ids, **options), "edited": edited}, rounds=5)
    record(
        "Generation under ten edits",
        [
            Claim(
                f"{TOKENS} tokens under 10 edits in 10 layers, to plain generation",
                ratio(seconds, "edited", "plain"),
                1.03,
            )
        ],
        seconds,
        "GPT-2 small's shape, random weights, KV cache, one row.",
    )


def decision() -> None:
    """The sub-updates rule's decision, per layer, to one layer's own time for one token."""
    lm = gpt2_small()
    generator = np.random.default_rng(0)
    n = 9000
    labels = generator.integers(0, 200, size=(12, lm.d_mlp))
    train = generator.integers(0, lm.d_mlp, size=(n, 12, 10))
    rule = SubUpdates(labels, train, generator.integers(0, 12, size=n))
    kept: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        cache = lm.hf(torch.arange(50, 66)[None], use_cache=True).past_key_values
        with watch(lm, {("coefficients", 3): lambda t: kept.__setitem__("coefficients", t[0, -1].clone())}):
            lm.hf(torch.tensor([[70]]), past_key_values=cache, use_cache=True)
        block, hidden = lm.structure.blocks[3].module, torch.randn(1, 1, 768)
        variants = {
            "layer": lambda: [block(hidden) for _ in range(50)],
            "decision": lambda: [rule.is_above(0.0, lm, 0, kept) for _ in range(50)],
        }
        seconds = interleaved(variants, rounds=7)
    record(
        "The decision to leave",
        [
            Claim(
                "sub-updates rule on 9,000 examples, to one layer of one token",
                ratio(seconds, "decision", "layer"),
                0.05,
            )
        ],
        {name: [s / 50 for s in found] for name, found in seconds.items()},
        "GPT-2 small's shape; random clusters and examples. The layer is one block without a cache.",
    )


@cache
def wren_examples() -> tuple[Any, Any]:
    """The model wren and 1,500 examples of WikiText."""
    lm = unembed.load("wren")
    return lm, early_exit.examples(lm, None, 1500, seed=0)


def exit_() -> None:
    """Wall time and layers saved on wren, and whether the promise holds on other text."""
    lm, found = wren_examples()
    held = early_exit.examples(lm, None, 800, seed=99)
    lines = [line.strip() for line in steering.default_text().splitlines() if len(line) > 200]
    prompts = [" ".join(line.split()[:24]) for line in lines[:6]]
    claims = []
    rules = [
        early_exit.fit(lm, found, "sub_updates"),
        early_exit.fit(lm, found, "both", sweep=(1e-2,)),
        early_exit.fit(lm, found, "margin", disagreement=0.1),
    ]
    own = early_exit.fit(lm, found, "both", sweep=(1e-2,))
    calibrating = [" ".join(line.split()[:24]) for line in lines[6:26]]
    rules.append(own.promising_in_generation(calibrating, found, 0.15, steps=6, max_new_tokens=20))
    for rule in rules:
        row = next(iter(early_exit.compare(rule, prompts, max_new_tokens=40, clock=time.process_time).rows()))
        other = next(iter(rule.evaluate(held).rows()))
        share = row["of_skipped_blocks_time"]
        claims.append(
            Claim(
                f"{rule.method}, {rule.calibrated}: 0.6 of the skipped blocks' time over what was saved",
                0.0 if share is None else 0.6 / share if share > 0 else np.inf,
                1.0,
                f"{row['layers_saved']:.1f} % of layers, {row['time_saved']:.1f} % of time, "
                f"agreement {row['agreement']:.1f} %, held-out {other['accuracy']:.1f} %, "
                f"perplexity {row['perplexity_full']:.2f} to {row['perplexity_early']:.2f}",
            )
        )
    record(
        "Leaving early on wren",
        claims,
        None,
        "CPU time of greedy generation of 40 tokens after 6 prompts of WikiText, both ways; agreement: tokens the "
        "full model would have chosen after the same text; held-out: the same on 800 sentences of another draw.",
    )


def table6() -> None:
    """Table 6 on wren, and how often the prediction settles where."""
    lm, found = wren_examples()
    tables = [early_exit.saturation_table(lm, found), early_exit.table_6(lm, found, sweep=(1e-2,))]
    into_results("Early exit over five seeds (Table 6)", tables)


def into_results(title: str, tables: list[Any]) -> None:
    """Tables under a title of RESULTS.md, in the place of those written before."""
    import re

    parts = [f"## {title}\n"]
    for table in tables:
        names = [n for n in table.column_names if n != "exits_by_layer"]
        parts += [
            f"{table.title}. {table.passport.line()}\n",
            "| " + " | ".join(names) + " |",
            "|---" * len(names) + "|",
        ]
        parts += ["| " + " | ".join(_cell(row[n]) for n in names) + " |" for row in table.rows()]
        parts.append("")
    section = "\n".join(parts)
    print(section)
    text = RESULTS.read_text() if RESULTS.exists() else "# Results\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    text = pattern.sub(lambda _: section + "\n", text) if pattern.search(text) else text.rstrip() + "\n\n" + section
    RESULTS.write_text(text.rstrip() + "\n")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "".join(map(str, value))
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def suppression(folder: str, prompts: str, words: str, comments: str, limit: int = 150, reverse: bool = False) -> None:
    """Ten values against both baselines, on a model that has read talk pages; `reverse`: negative coefficients too."""
    lm = unembed.load(folder)
    lm.name = "wren fine-tuned on the Jigsaw comments"
    asked = toxicity.read_prompts(prompts, challenging_only=True, limit=limit)
    texts, labels = toxicity.comments(Path(comments))
    order = np.random.default_rng(1).permutation(len(texts))
    kinds = ["\n".join(texts[i] for i in order if labels[i] == kind) for kind in (1, 0)]
    unwanted, wanted = (steering.windows(lm, text, window=128, max_tokens=512) for text in kinds)
    clean = steering.windows(lm, steering.default_text(), window=128, max_tokens=512)
    judge = toxicity.Linear()
    strengths = (-3.0, -6.0, -12.0, 3.0, 6.0) if reverse else (3.0, 6.0, 12.0)
    chosen = toxicity.greedy(lm, unwanted, clean, wanted=wanted, n=10, budget=0.17, tried=4, strengths=strengths)
    arms = [
        toxicity.plain(),
        toxicity.with_values(f"{len(chosen.edits)} values, greedy, 17 % budget", chosen.edits),
    ]
    arms += (
        []
        if reverse
        else [
            toxicity.with_values("values picked by a scorer", toxicity.by_scorer(lm, judge, 10).edits),
            toxicity.with_word_filter(lm, toxicity.read_words(words)),
            toxicity.with_self_debiasing(lm),
        ]
    )
    done = toxicity.evaluate(
        lm, asked, arms, judge, cache="/tmp/unembed-toxicity", clean_text=steering.default_text(), clean_tokens=4096
    )
    lexicon = toxicity.evaluate(
        lm,
        asked,
        arms,
        toxicity.Lexicon(toxicity.read_words(words), "the list of banned words"),
        cache="/tmp/unembed-toxicity",
    )
    title = "Toxic continuations suppressed" + (", values reversed too" if reverse else "")
    into_results(title, [done.table, lexicon.table, chosen.table])


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or ["edits", "decision", "exit", "table6"]
    if wanted[0] == "toxicity":
        suppression(*wanted[1:5], *(int(n) for n in wanted[5:6]), reverse="reverse" in wanted)
    else:
        jobs = {"edits": edits, "decision": decision, "exit": exit_, "table6": table6}
        for name in wanted:
            jobs[name]()
