"""The text of a model card, from its numbers and its recipe."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tools.model_cards import values_table
from tools.training.recipes import WINDOW, Recipe
from tools.training.windows import EncodedCorpus

SOURCES = {
    "wikipedia": ("English Wikipedia (2015)", "CC BY-SA 3.0 (and GFDL), Wikipedia contributors"),
    "books": ("English-language books of 1719-1923, children's books first", "public domain"),
    "openstax": ("OpenStax textbooks, at commits licensed CC BY 4.0", "CC BY 4.0, OpenStax, Rice University"),
    "wikinews": ("English Wikinews", "CC BY 2.5, Wikinews contributors"),
    "tinystories": ("TinyStories", "CDLA-Sharing-1.0"),
    "speeches": ("US presidents' speeches and messages", "public domain"),
    "usgov": ("web pages of US government teams", "public domain, some CC0"),
    "factbook": ("CIA World Factbook, prose", "CC0"),
    "storybooks": ("picture-book stories (African Storybook, StoryWeaver)", "CC BY 4.0, the authors named in each"),
    "recipes": ("based.cooking recipes", "Unlicense"),
    "guides": ("Open Source Guides", "CC BY 4.0, GitHub and the guides' contributors"),
}
"""Description and licence of each `source` of documents."""

HEADS = """\
Mean attention in the second half of 8 sequences, each of 64 random tokens repeated once. *induction* is the attention
to the token that followed the earlier occurrence of the current token (the prefix-matching score of Olsson et al.
2022), *previous token* the attention to the token before. Heads count from 0."""

VALUES = """\
## Values

{n} values drawn uniformly from the upper half of the layers (seed 0), each with the 20 tokens that score highest under
the unembedding alone. Tokens that occur less than 100 times in the training text and single bytes of a character are
left out. A leading space is shown as ·.
{judged}

{values}
The same number of random vectors of the same lengths:

{others}"""

JUDGED = """\
A judge saw these values and the random vectors below in random order, without knowing which is which, and named a
theme where at least eight of the twenty tokens share one:
**{themed} of {n}** values, {others_themed} of {n} random vectors."""


def opening(name: str, recipe: Recipe, n_tokens: int, corpus: EncodedCorpus) -> str:
    """Title, sizes, how it was trained and on what."""
    shape = recipe.shape
    kind = (
        f"A GPT-2-shaped language model with ReLU memories and tied embeddings: {shape.d_mlp} memories a layer"
        if shape.d_mlp
        else "An attention-only language model without norms or biases; only queries and keys include positions"
    )
    rows = ["| from step | to | context | tokens per step | learning rate, fraction of peak | repeated windows |"]
    rows += ["| ---: | ---: | ---: | ---: | --- | ---: |"]
    begin = 0
    for phase in recipe.phases:
        repeats = f"{phase.repeated_windows} of {phase.windows}" if phase.repeated_windows else ""
        rise = f", after a warm-up of {phase.rise} steps" if phase.rise else ""
        rows.append(
            f"| {begin} | {phase.until} | {phase.context} | {phase.windows * WINDOW} | "
            f"{phase.lr[0]:g} to {phase.lr[1]:g}{rise} | {repeats} |"
        )
        begin = phase.until
    table = "\n".join(rows)
    return f"""# {name}

{kind}. {shape.n_layers} layer{"s" * (shape.n_layers > 1)}, d_model {shape.d_model}, {shape.n_heads} heads of \
{shape.d_head}, {recipe.n_positions or shape.context} positions, {shape.d_vocab} tokens; weights in half precision. \
English only.

## Training

{n_tokens / 1e6:.1f} million tokens on processor cores; Muon (peak {recipe.muon_lr:g}) for the hidden matrices, Adam \
(peak {recipe.adam_lr:g}) for the rest. The phases:

{table}
{f"{chr(10)}{recipe.history}{chr(10)}" if recipe.history else ""}
{data(corpus)}"""


def data(corpus: EncodedCorpus) -> str:
    """What a model was trained on: size, share and licence of every source.

    Raises:
        KeyError: a source without a line in `SOURCES`.
    """
    n_bytes = {source: int(corpus.n_bytes[corpus.sources == source].sum()) for source in np.unique(corpus.sources)}
    total = sum(n_bytes.values())
    rows = ["| source | share of the text | licence |", "| --- | ---: | --- |"]
    for source, size in sorted(n_bytes.items(), key=lambda item: -item[1]):
        what, licence = SOURCES[source]
        rows.append(f"| {what} | {_percent(size / total)} | {licence} |")
    table = "\n".join(rows)
    return f"""## Data

{total / 1e6:.0f} MB of text, {len(corpus.tokens) / 1e6:.1f} million tokens. A hash selects about one document in 80 as
held-back text, which is used for the measurements below and never for training. One pass over the data includes stories
and recipes up to twice; textbooks, news, books and speeches a little less than once. One Wikipedia page in five is
spelled as WikiText is, with spaces around punctuation (` , ` and ` @-@ `).

{table}

Each document has its own licence. The data include no text of WikiText. The weights are under the package's licence,
Apache-2.0.
"""


def _percent(share: float) -> str:
    if share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1f} %"


def bits_table(bits: dict[str, float], counted: dict[str, float], n_held_back: int, n_counted: int) -> str:
    """Bits per byte of each text, next to those of an n-gram model where there is one.

    Args:
        bits: of the model, by title of the text.
        counted: of the n-gram model; empty where there is none.
        n_held_back: number of held-back tokens on which the models were evaluated.
        n_counted: tokens that the n-gram model was fitted to.
    """
    head = "| text | this model |" + (" 5-gram Kneser-Ney |" if counted else "")
    lines = [head, "| --- | ---: |" + (" ---: |" if counted else "")]
    for title, value in bits.items():
        lines.append(f"| {title} | {value:.3f} |" + (f" {counted[title]:.3f} |" if counted else ""))
    n_gram = (
        "; the n-gram model (interpolated modified Kneser-Ney, exact counts) is fitted to "
        f"{n_counted / 1e6:.1f} million tokens of the same text"
        if counted
        else ""
    )
    return (
        f"## Bits per byte\n\nOn {n_held_back:,} tokens of held-back text and all of WikiText-103 validation. Every "
        "prediction except those at the start of a text is conditioned on at least half a context window"
        f"{n_gram}.\n\n" + "\n".join(lines) + "\n"
    )


def heads(scores: str, gain: float) -> str:
    """Scores of every head, and the gain in loss on a repeated sequence."""
    return (
        f"## Heads\n\n{HEADS}\n\n{scores}\n"
        f"When a random sequence of 64 tokens is repeated, the loss falls by {gain:.2f} nats per token.\n"
    )


def sixty(values: list[tuple[str, list[str], str]], others: list[tuple[str, list[str], str]]) -> str:
    """Two tables of (name, top tokens, theme): values, and random vectors; without any theme, nothing is counted."""
    themed, others_themed = (sum(bool(theme) for *_, theme in rows) for rows in (values, others))
    judged = JUDGED.format(themed=themed, others_themed=others_themed, n=len(values))
    tables = {"values": values_table(values), "others": values_table(others)}
    return VALUES.format(n=len(values), judged=judged if themed + others_themed else "", **tables)


def small_runs(table: str) -> str:
    """The runs by which sizes and penalty were chosen: the table that `tools.small_runs` prints."""
    return (
        "## Small runs\n\nEach run began from random weights and used the same batches; its learning rate fell to "
        "zero over the last fifth. A value counts if its 20 top tokens occur in more similar contexts than those of "
        f"95 % of random vectors (`tools.value_coherence`).\n\n{table.strip()}\n"
    )


def curve_text(path: Path, *, n_points: int = 12) -> str:
    """A dozen points of the loss curve."""
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if "loss" in row]
    picked = [rows[round(i * (len(rows) - 1) / (n_points - 1))] for i in range(n_points)] if rows else []
    points = ", ".join(
        f"{row['tokens'] / 1e6:.1f}M {row['loss']:.2f}" for row in {row["step"]: row for row in picked}.values()
    )
    return f"## Curve\n\nTraining loss in nats per token (more points are in `loss.jsonl`): {points}.\n"


def closing(recipe: Recipe) -> str:
    """What it is not good for."""
    return (
        f"""## Limits

A small model trained on little text, meant for interpretability research and teaching. It has learned few facts, states
wrong ones fluently, is not consistent over more than a few sentences, and reproduces the views of its sources, such as
books before 1923 and encyclopedias. Nothing was filtered or tuned for safety. Do not rely on the text that it writes.
{recipe.limits}""".rstrip()
        + "\n"
    )
