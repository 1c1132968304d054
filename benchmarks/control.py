"""Steering and early exit: what edits cost a generation, what a decision to leave costs, what leaving saves.

    python benchmarks/control.py [edits] [decision] [mechanics] [leave] [table6] [promise] [model=FOLDER]

Each part takes a few minutes at most. The last three are about wren, or the model named.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from measure import Claim, interleaved, into_results, ratio, record
from transformers import GPT2Config, GPT2LMHeadModel

import unembed
from unembed import early_exit, steering
from unembed.early_exit.benchmark import body_clock
from unembed.early_exit.sub_updates_rule import SubUpdates
from unembed.results import Table
from unembed.stream.hooks import attach_hooks

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
    captured: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        cache = lm.hf(torch.arange(50, 66)[None], use_cache=True).past_key_values
        with attach_hooks(lm, {("coefficients", 3): lambda t: captured.__setitem__("coefficients", t[0, -1].clone())}):
            lm.hf(torch.tensor([[70]]), past_key_values=cache, use_cache=True)
        block, hidden = lm.structure.blocks[3].module, torch.randn(1, 1, 768)
        variants = {
            "layer": lambda: [block(hidden) for _ in range(50)],
            "decision": lambda: [rule.is_above(0.0, lm, 0, captured) for _ in range(50)],
        }
        seconds = interleaved(variants, rounds=7)
    between = early_exit.decision_cost(
        early_exit.ExitRule(lm, rule, np.zeros(11), ""), torch.arange(50, 66)[None], clock=time.process_time
    )
    record(
        "The decision to leave",
        [
            Claim(
                "sub-updates rule on 9,000 examples, to one layer of one token",
                ratio(seconds, "decision", "layer"),
                0.05,
            ),
            Claim(
                "the same between the blocks of passes of one token, hooks included, to one such block", between, 0.05
            ),
        ],
        {name: [s / 50 for s in found] for name, found in seconds.items()},
        "GPT-2 small's shape; random clusters and examples. The layer is one block without a cache.",
    )


@cache
def opened(model: str) -> tuple[Any, Any]:
    """A model and 1,500 examples of WikiText."""
    lm = unembed.load(model)
    return lm, early_exit.examples(lm, None, 1500, seed=0)


def leave(model: str) -> None:
    """Time and layers saved in reading and in writing, at the share of right tokens that the paper reports."""
    lm = unembed.load(model)
    lines = [line.strip() for line in steering.default_text().splitlines() if len(line) > 200]
    cut = len(lines) * 2 // 3
    found = early_exit.examples(lm, lines[:cut], 1500, seed=0)
    fitting, evaluation = (early_exit.examples(lm, lines[cut:], 800, seed=seed) for seed in (98, 99))
    prompts = [" ".join(line.split()[:24]) for line in lines[-6:]]
    # As the paper sets them: the rule itself, and the classifier on the update with a precision of 0.75 by layer.
    rules = [early_exit.fit(lm, found, method, **SWEEP.get(method, {})) for method in ("sub_updates", "update")]
    for rule in rules[:]:
        cost = early_exit.decision_cost(rule, prompts[0], clock=time.process_time)
        rules.append(rule.at_profitable_layers(fitting, cost))
    rules.append(at_accuracy(early_exit.fit(lm, found, "margin"), evaluation, 94.0))
    claims = [claim for rule in rules for claim in left(rule, evaluation, lines[-18:-6], prompts)]
    record(
        f"Leaving early, {lm.name}",
        claims,
        None,
        "CPU time, both ways, the median of three. Reading: 48 tokens of 12 passages of WikiText, one after the other over "
        "the cache, where the rules were judged. Writing: greedy generation of 40 tokens after 6 prompts. Agreement: "
        "tokens the full model would have chosen after the same text. Rules are fitted to the first two thirds of the "
        "text; 800 held-out sentences, passages and prompts are of the last. A share below zero, where decisions cost more "
        "than was saved, makes the ratio infinite.",
    )


def left(rule: Any, evaluation: Any, texts: list[str], prompts: list[str]) -> Iterator[Claim]:
    """What one rule saves in reading and in writing, of the blocks' time and of all."""
    other = next(iter(rule.evaluate(evaluation).rows()))
    reading = [early_exit.compare_reading(rule, texts, tokens=48, clock=time.process_time) for _ in range(3)]
    writing = [early_exit.compare(rule, prompts, max_new_tokens=40, clock=time.process_time) for _ in range(3)]
    for way, tables, all_of_it in (("reading", reading, "head too"), ("writing", writing, "head and loop too")):
        row = median_row(tables)
        note = (
            f"{row['layers_saved']:.1f} % of layers; agreement {row['agreement']:.1f} %, on held-out sentences "
            f"{other['accuracy']:.1f} %; perplexity {row['perplexity_full']:.2f} to {row['perplexity_early']:.2f}"
        )
        for part, part_text in (("body", "blocks, decisions and cache"), ("time", all_of_it)):
            yield Claim(
                f"{way}, {rule.method}, {rule.calibration}, {part_text}: 0.6 to the share of the layers' time that was saved",
                _inverse(row[f"{part}_per_layers_saved"]),
                1.0,
                f"{row[f'{part}_saved']:.1f} % of time, {note}",
            )


SWEEP: dict[str, dict[str, Any]] = {"update": {"sweep": (1e-2,)}}


def at_accuracy(rule: Any, evaluation: Any, accuracy: float) -> Any:
    """The rule at the threshold that saves most among those with this share of right tokens, in per cent."""
    rows = [row for row in rule.tradeoff(evaluation, 60).rows() if row["disagreement"] <= 100 - accuracy]
    best = max(rows, key=lambda row: row["saved_layers"])
    return rule.at(best["threshold"])


def median_row(tables: Iterable[Table]) -> dict[str, Any]:
    """Of one-row tables, the medians of what is a number."""
    rows = [next(iter(table.rows())) for table in tables]
    return {
        name: np.median([row[name] for row in rows]) if isinstance(value, int | float) else value
        for name, value in rows[0].items()
    }


def _inverse(share: float | None) -> float:
    return float("inf") if share is None or share <= 0 else 0.6 / share


def table6(model: str) -> None:
    """Table 6, and how often the prediction settles where."""
    lm, found = opened(model)
    tables = [early_exit.saturation_table(lm, found), early_exit.table_6(lm, found, sweep=(1e-2,))]
    into_results(f"Early exit over five seeds (Table 6), {lm.name}", tables)


def promise(model: str) -> None:
    """Disagreement promised on one part of the text, and what it was on another, over 100 ways to part it."""
    lm, found = opened(model)
    rows: dict[str, list[Any]] = {"method": [], "promised": [], "measured": [], "largest": [], "saved_layers": []}
    for method in ("update", "margin", "entropy"):
        rule = early_exit.fit(lm, found[:500], method, **SWEEP.get(method, {}))
        rest = found[500:]
        for level in (0.02, 0.05, 0.1, 0.2):
            wrong, saved = [], []
            for seed in range(100):
                own, other = early_exit.split(rest, seed, (0.5, 0.5))
                row = next(iter(rule.with_risk_control(own, level).evaluate(other).rows()))
                wrong.append(100 - row["accuracy"])
                saved.append(row["saved_layers"])
            values = (method, 100 * level, float(np.mean(wrong)), max(wrong), float(np.mean(saved)))
            for column, value in zip(rows.values(), values, strict=True):
                column.append(value)
    facts = early_exit.saturation_table(lm, found).provenance
    title = "Disagreement in per cent: promised on 500 examples, measured on 500 others; mean and largest of 100 splits"
    into_results(f"The promise of early exit, {lm.name}", [Table(title, rows, facts)])


class Drawn(SubUpdates):
    """The sub-updates rule on random examples, whose decisions are replaced: 43 % of tokens exit, at a random layer."""

    def is_above(self, threshold: float, lm: Any, layer: int, seen: Any) -> bool:
        """The time of a decision, and a drawn one."""
        super().is_above(0.0, lm, layer, seen)
        if layer == 0:
            self.drawn = getattr(self, "drawn", None) or np.random.default_rng(0)
            leaves = self.drawn.random() < 0.43
            self.planned = int(self.drawn.integers(1, lm.n_layers - 1)) if leaves else lm.n_layers
        return layer == self.planned


def mechanics() -> None:
    """What skipping gives in a model of ordinary size when a fifth of the layers is skipped, as in the paper."""
    lm = gpt2_small()
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 200, size=(12, lm.d_mlp))
    train = generator.integers(0, lm.d_mlp, size=(9000, 12, 10))
    score = Drawn(labels, train, generator.integers(0, 12, size=9000))
    rule = early_exit.ExitRule(lm, score, np.zeros(11), "drawn exits")
    ids = torch.arange(50, 52)[None]
    options = dict(max_new_tokens=64, min_new_tokens=64, do_sample=False, pad_token_id=0)
    saved: list[int] = []
    blocks: dict[str, list[float]] = {"full": [], "early": []}

    def generation(name: str, what: Any) -> None:
        with body_clock(lm, time.process_time) as spent:
            what()
        blocks[name].append(sum(spent))

    def whole() -> None:
        lm.hf.generate(ids, **options)

    def early() -> None:
        with early_exit.skip_layers(rule) as exits:
            whole()
        saved.extend(11 - layer for layer in exits)

    with torch.no_grad():
        seconds = interleaved(
            {"full": lambda: generation("full", whole), "early": lambda: generation("early", early)}, rounds=5
        )
    seconds |= {f"blocks, {name}": spent[-5:] for name, spent in blocks.items()}
    layers = float(np.mean(saved)) / 12
    claims = []
    for name, part_text in (("blocks, ", "blocks, decisions and cache"), ("", "head and loop too")):
        share = 1 - ratio(seconds, f"{name}early", f"{name}full")
        note = f"{100 * share:.2f} % of time, {100 * layers:.1f} % of layers"
        ratio_of_shares = _inverse(share / layers)
        claims.append(
            Claim(f"{part_text}: 0.6 to the share of the layers' time that was saved", ratio_of_shares, 1.0, note)
        )
    how = "GPT-2 small's shape, random weights; the sub-updates rule on 9,000 examples decides after each block, and a drawn decision replaces its own."
    record("Leaving early in a model of GPT-2 small's shape", claims, seconds, how)


PARTS = {"edits": edits, "decision": decision, "mechanics": mechanics}
OF_A_MODEL = {"leave": leave, "table6": table6, "promise": promise}

if __name__ == "__main__":
    torch.set_num_threads(1)
    models = [word.removeprefix("model=") for word in sys.argv[1:] if word.startswith("model=")]
    named = [word for word in sys.argv[1:] if not word.startswith("model=")]
    for part in named or [*PARTS, *OF_A_MODEL]:
        if part in PARTS:
            PARTS[part]()
        else:
            OF_A_MODEL[part](models[0] if models else "wren")
