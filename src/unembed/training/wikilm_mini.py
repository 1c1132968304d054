"""A small WikiLM trained here: the papers' own kind of model, words for tokens, ReLU memories, an adaptive softmax.

`python -m unembed.training.wikilm_mini --out FOLDER` reads the shipped WikiText sample (or `--corpus`, a text file or a
folder of `*.jsonl.xz`), makes a vocabulary of its most frequent words, trains, and leaves a folder that `unembed.load`
opens. As for the papers' model, a line ends in `</s>`, lines follow each other in one stream, case is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unembed.corpus import open_corpus
from unembed.errors import InvalidInput, UnembedError
from unembed.models.wikilm import WikiLMConfig, WikiLMForCausalLM
from unembed.models.word_level import END, SPECIALS, UNKNOWN, word_tokenizer
from unembed.training.documents import documents

MOST_CHARACTERS = 60_000_000
"""Of a folder, so much text is read: more than any run here sees."""


@dataclass(frozen=True)
class Mini:
    """Sizes and training of a small WikiLM.

    Attributes:
        words: of the vocabulary, the four specials included; rarer ones become `<unk>`.
        cutoffs: first word of each band but the first.
        d_model: width of the stream.
        d_mlp: memories of a layer.
        n_layers: blocks.
        n_heads: heads of a block.
        context: words a row sees.
        rows: of a batch.
        steps: updates.
        lr: peak of the learning rate; it rises over a tenth of the steps and falls to zero along a cosine.
        seed: of weights and batches.
    """

    words: int = 12_000
    cutoffs: tuple[int, ...] = (2_000, 6_000)
    d_model: int = 192
    d_mlp: int = 768
    n_layers: int = 6
    n_heads: int = 6
    context: int = 128
    rows: int = 16
    steps: int = 2000
    lr: float = 1e-3
    seed: int = 0


def vocabulary(lines: Iterable[str], size: int) -> tuple[list[str], list[int]]:
    """The specials and the most frequent words, with their counts; ties by the alphabet, as in fairseq's dictionaries.

    A literal `<unk>` in the text counts as the special.
    """
    counts: Counter[str] = Counter()
    n_lines = 0
    for line in lines:
        counts.update(line.split())
        n_lines += 1
    known = sorted((w for w in counts if w not in SPECIALS), key=lambda w: (-counts[w], w))
    kept, rest = known[: size - len(SPECIALS)], known[size - len(SPECIALS) :]
    special = {END: n_lines, UNKNOWN: counts[UNKNOWN] + sum(counts[w] for w in rest)}
    return [*SPECIALS, *kept], [*(special.get(w, 0) for w in SPECIALS), *(counts[w] for w in kept)]


def stream(lines: Iterable[str], words: list[str]) -> Tensor:
    """The whole text as one row of ids, `</s>` after every line."""
    ids = {word: i for i, word in enumerate(words)}
    unknown, end = ids[UNKNOWN], ids[END]
    out: list[int] = [end]
    for line in lines:
        out += [ids.get(word, unknown) for word in line.split()]
        out.append(end)
    return torch.tensor(out)


def train(
    lines: list[str],
    out: Path,
    mini: Mini = Mini(),
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> Path:
    """Train on lines of text and save a folder with weights, tokenizer, counts and the curve of the loss.

    Args:
        lines: text; a line is what `</s>` ends.
        out: folder to make.
        mini: sizes and training.
        progress: called with step and loss, ten times in all.

    Raises:
        InvalidInput: too little text for the vocabulary or for one row.
    """
    words, counts = vocabulary(lines, mini.words)
    if len(words) <= mini.cutoffs[-1]:
        raise InvalidInput(
            f"a vocabulary of {len(words):,} words",
            why=f"the text has no more, and the last band begins at {mini.cutoffs[-1]:,}",
            instead="Give more text, or smaller cutoffs",
        )
    text = stream(lines, words)
    if len(text) <= mini.context + 1:
        raise InvalidInput(f"{len(text):,} words of text", why=f"a row has {mini.context}", instead="Give more text")
    torch.manual_seed(mini.seed)
    model = WikiLMForCausalLM(
        WikiLMConfig(
            vocab_size=len(words),
            hidden_size=mini.d_model,
            intermediate_size=mini.d_mlp,
            num_hidden_layers=mini.n_layers,
            num_attention_heads=mini.n_heads,
            cutoffs=mini.cutoffs,
            max_position_embeddings=mini.context,
        )
    )
    curve = list(_updates(model, text, mini, progress))
    out.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(out)
    word_tokenizer(words).save_pretrained(out)
    (out / "token_counts.json").write_text(json.dumps(counts), encoding="utf-8")
    (out / "loss.jsonl").write_text("".join(json.dumps(row) + "\n" for row in curve), encoding="utf-8")
    return out


def _updates(
    model: WikiLMForCausalLM, text: Tensor, mini: Mini, progress: Callable[[dict[str, Any]], None] | None
) -> Iterator[dict[str, Any]]:
    """AdamW with a rise and a cosine; the loss is the mean surprise in nats, read off the adaptive softmax."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=mini.lr, betas=(0.9, 0.98), weight_decay=0.01)
    rise = max(1, mini.steps // 10)
    factor = torch.optim.lr_scheduler.SequentialLR(
        optimiser,
        [
            torch.optim.lr_scheduler.LinearLR(optimiser, 1 / rise, total_iters=rise),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, mini.steps - rise)),
        ],
        [rise],
    )
    random = torch.Generator().manual_seed(mini.seed)
    every = max(1, mini.steps // 10)
    model.train()
    for step in range(mini.steps):
        starts = torch.randint(len(text) - mini.context, (mini.rows,), generator=random)
        rows = text[starts[:, None] + torch.arange(mini.context + 1)]
        log_p = model(rows[:, :-1], use_cache=False).logits
        loss = -log_p.gather(-1, rows[:, 1:, None]).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        factor.step()
        if (step + 1) % every == 0 or step == 0:
            row = {"step": step + 1, "loss": round(float(loss.detach()), 4)}
            if progress is not None:
                progress(row)
            yield row


def lines_of(corpus: str | None) -> list[str]:
    """The lines of a text file, of a folder of `*.jsonl.xz`, or of the shipped sample."""
    if corpus is not None and Path(corpus).is_dir():
        found, size = [], 0
        for document in documents(Path(corpus)):
            if size > MOST_CHARACTERS:
                break
            if not document.is_held_back:
                found += [line for line in document.text.splitlines() if line.strip()]
                size += len(document.text)
        return found
    texts = (document.text for document in open_corpus(corpus).documents())
    return [line for text in texts for line in text.splitlines() if line.strip()]


def main(arguments: list[str] | None = None) -> int:
    """Train wikilm-mini."""
    parser = argparse.ArgumentParser(prog="python -m unembed.training.wikilm_mini", description=main.__doc__)
    parser.add_argument("--corpus", help="text file, or folder of *.jsonl.xz; default: the shipped WikiText sample")
    parser.add_argument("--out", type=Path, default=Path("wikilm-mini"), help="folder for the model")
    parser.add_argument("--steps", type=int, default=Mini.steps, help="updates")
    parser.add_argument("--seed", type=int, default=Mini.seed, help="of weights and batches")
    given = parser.parse_args(arguments)
    try:
        lines = lines_of(given.corpus)
        folder = train(
            lines,
            given.out,
            Mini(steps=given.steps, seed=given.seed),
            lambda row: print(" ".join(f"{k} {v}" for k, v in row.items()), file=sys.stderr, flush=True),
        )
    except UnembedError as fault:
        print(fault, file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
