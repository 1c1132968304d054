"""How far ten values suppress toxic text, beside a word filter and self-debiasing.

    make toxic-model COMMENTS=comments.csv
    python benchmarks/toxicity.py choose FOLDER     # choose values greedily, both ways; kept in build/
    python benchmarks/toxicity.py evaluate FOLDER [N]   # continue N prompts in every arm; goes on where it was stopped

FOLDER holds what cannot ship: `jigsaw_balanced.csv` (comment and label), `rtp_toxic_challenging.jsonl` (prompts as in
RealToxicityPrompts) and `ldnoobw_en.txt` (banned words).
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import into_results

import unembed
from unembed import steering, toxicity
from unembed.document.intervals import paired_difference
from unembed.results import Table
from unembed.toxicity.self_debiasing import PREFIXES

MODEL = Path("build/toxic-wren")
SAVED = Path("build/toxic-study")
BUDGET = 0.17
BY_HAND = ((2, 594), (4, 227), (4, 269), (4, 459), (4, 882), (4, 902), (4, 1008), (5, 884), (6, 83), (6, 423))
"""Values of this very copy that promote welcome and nice, please and gladly, agree and share, help and tell, better, hope,
interested and glad, thanks, thank, appreciate; picked from `steering.promoting` for fifteen polite words, before anything was
measured."""
DRAWS = 5
"""How often values are drawn, from those that the scorer finds harmless and from all."""
STRENGTHS = {"greedy": (3.0, 6.0, 12.0), "greedy, reversed too": (-3.0, -6.0, -12.0, 3.0, 6.0)}


def opened() -> Any:
    """The copy that has read talk pages."""
    if not (MODEL / "model.safetensors").exists():
        raise SystemExit(f"no {MODEL}; make toxic-model COMMENTS=jigsaw_balanced.csv makes it")
    lm = unembed.load(str(MODEL))
    lm.name = "wren fine-tuned on the Jigsaw comments"
    return lm


def choose(folder: Path) -> None:
    """Values chosen greedily on 1,024 tokens of either kind of comment; price on the first 4,096 of WikiText."""
    lm = opened()
    texts, labels = toxicity.read_comments(folder / "jigsaw_balanced.csv")
    order = np.random.default_rng(1).permutation(len(texts))
    kinds = ["\n".join(texts[i] for i in order if labels[i] == kind) for kind in (1, 0)]
    unwanted, wanted = (steering.windows(lm, text, window=128, max_tokens=1024) for text in kinds)
    clean = steering.windows(lm, steering.default_text(), window=128, max_tokens=4096)
    for name, strengths in STRENGTHS.items():
        path = SAVED / f"{name}.json"
        if path.exists():
            continue
        chosen = toxicity.greedy(
            lm, unwanted, clean, wanted=wanted, n=10, budget=BUDGET, tried=4, strengths=strengths, progress=_progress
        )
        SAVED.mkdir(parents=True, exist_ok=True)
        steering.save_edits(chosen.edits, path, model=lm.name)
        (SAVED / f"{name}.curve.json").write_text(json.dumps(chosen.table.to_dict()))
        print(chosen.table)


def _progress(done: int, total: int) -> None:
    print(f"{done} of {total}", file=sys.stderr, flush=True)


def arms_of(lm: Any, judge: Any, words: Any) -> list[toxicity.Arm]:
    """Everything that is compared; a greedy choice that was not made yet is named on stderr and left out."""
    arms = [
        toxicity.plain(),
        toxicity.with_values("values picked by hand", toxicity.manual(lm, BY_HAND).edits),
        toxicity.with_values("values picked by hand, set to 12", toxicity.manual(lm, BY_HAND, 12.0).edits),
        toxicity.with_values("values picked by a scorer", toxicity.by_scorer(lm, judge, 10).edits),
    ]
    for n in range(1, DRAWS):
        by_scorer = toxicity.by_scorer(lm, judge, 10, seed=n).edits
        arms.append(toxicity.with_values(f"values picked by a scorer, draw {n + 1}", by_scorer))
    for n in range(DRAWS):  # the control
        draw = random.Random(n)
        memories = [(draw.randrange(lm.n_layers), draw.randrange(lm.d_mlp)) for _ in range(10)]
        arms.append(toxicity.with_values(f"random values, draw {n + 1}", toxicity.manual(lm, memories).edits))
    for name in STRENGTHS:
        if (saved := SAVED / f"{name}.json").exists():
            arms.append(toxicity.with_values(name, steering.load_edits(saved, model=lm.name)))
        else:
            print(f"without the arm {name!r}: no {saved}; `choose` makes it", file=sys.stderr)
    return [*arms, toxicity.with_word_filter(lm, words), toxicity.with_self_debiasing(lm)]


def evaluate(folder: Path, limit: int = 200) -> None:
    """Every arm on the first prompts, scored twice; perplexity on WikiText that the choice has not seen."""
    lm = opened()
    prompts = toxicity.read_prompts(folder / "rtp_toxic_challenging.jsonl", challenging_only=True, limit=limit)
    words = toxicity.read_words(folder / "ldnoobw_en.txt")
    judge = toxicity.Linear()
    arms = arms_of(lm, judge, words)
    text = steering.default_text()
    options: dict[str, Any] = dict(cache=SAVED / "continuations", batch=50)
    done = toxicity.evaluate(
        lm,
        prompts,
        arms,
        judge,
        clean_text=text[len(text) // 2 :],
        clean_tokens=8192,
        progress=lambda arm, n, of: print(f"{arm}: {n} of {of}", file=sys.stderr, flush=True),
        **options,
    )
    listed = toxicity.Lexicon(words, "the list of banned words")
    tables: list[Any] = []
    for found in (done, toxicity.evaluate(lm, prompts, arms, listed, **options)):
        tables += [found.table, found.changes()]
    tables += [announcements(lm, prompts, words, tables[0].provenance), toxicity.published_table(lm)]
    into_results("Suppressing toxic language", tables)


@torch.no_grad()
def announcements(lm: Any, prompts: list[Any], words: list[str], facts: Any) -> Table:
    """Self-debiasing assumes that unwanted words become more probable after a prefix that announces them: do they?"""
    pieces = [lm.tokenizer(" " + word)["input_ids"] for word in words]
    listed = sorted({ids[0] for ids in pieces if len(ids) == 1})

    def listed_probability(text: str) -> float:
        logits = lm.hf(torch.tensor([lm.tokenizer(text)["input_ids"]])).logits[0, -1]
        return 100 * float(logits.softmax(-1)[listed].sum())

    plain = [listed_probability(prompt.text) for prompt in prompts]
    rows: dict[str, list[Any]] = {"prefix": [], "probability": [], "change": [], "change_low": [], "change_high": []}
    for prefix in ("", *PREFIXES):
        found = [listed_probability(prefix + prompt.text) for prompt in prompts]
        change = paired_difference(found, plain)
        values = (prefix.strip() or "none", float(np.mean(found)), change.value, change.low, change.high)
        for column, value in zip(rows.values(), values, strict=True):
            column.append(value)
    title = f"Probability of {len(listed)} banned words after the prompt, in per cent, with an announcement before it"
    return Table(title, rows, facts)


if __name__ == "__main__":
    torch.set_num_threads(1)
    part, *rest = sys.argv[1:] or [""]
    if part == "choose" and rest:
        choose(Path(rest[0]))
    elif part == "evaluate" and rest:
        evaluate(Path(rest[0]), *(int(n) for n in rest[1:2]))
    else:
        print(__doc__)
