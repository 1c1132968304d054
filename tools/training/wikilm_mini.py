"""A small WikiLM trained here: a model of the papers' kind, with word tokens, ReLU memories and adaptive softmax.

`python -m tools.train_wikilm` reads the shipped WikiText sample (or `--corpus`: a text file or folder of `*.jsonl.xz`),
writes running text as WikiText does, makes a vocabulary of the most frequent words, trains, and leaves a folder that
`unembed.load` opens. As for the papers' model, a line ends in `</s>`, lines follow each other in one stream, case is
preserved. Batch n depends on the seed and n alone, so a run that was killed ends with the same weights.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.training import checkpoint
from tools.training.documents import HELD_BACK_ONE_IN, documents
from tools.training.wikitext_spacing import tokenized
from unembed.corpus import open_corpus
from unembed.corpus.markup import looks_like_wikitext
from unembed.errors import CheckpointFault, InvalidInput
from unembed.models.architectures.wikilm import WikiLMConfig, WikiLMForCausalLM
from unembed.models.architectures.word_level import END, SPECIALS, UNKNOWN, word_tokenizer
from unembed.sweeps.interrupt import deferred_interrupt

MOST_CHARACTERS = 60_000_000
"""The text that is read of a folder: more than any run here uses."""


@dataclass(frozen=True)
class Mini:
    """Sizes and training of a small WikiLM.

    Attributes:
        words: of the vocabulary, the four specials included; rarer ones become `<unk>`.
        cutoffs: first word of each band but the first.
        context: words in a row.
        lr: peak of the learning rate; it rises over a tenth of the steps and falls to zero along a cosine.
        bfloat16: whether matrix products are in bfloat16, which is faster on processors that support it.
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
    bfloat16: bool = False

    def sized(self, n_layers: int, d_model: int) -> Mini:
        """The same with other layers: heads of 32 or 64, and a rate that falls with the width of the stream."""
        head = 32 if d_model < 256 else 64
        if d_model % head:
            raise InvalidInput(
                f"a width of {d_model}", why=f"its heads are {head} wide", instead=f"Give a multiple of {head}"
            )
        rate = self.lr * math.sqrt(self.d_model / d_model)
        return replace(self, n_layers=n_layers, d_model=d_model, d_mlp=4 * d_model, n_heads=d_model // head, lr=rate)


def vocabulary(lines: Iterable[str], size: int) -> tuple[list[str], list[int]]:
    """The specials and the most frequent words, with their counts; ties by the alphabet, as in fairseq's dictionaries.

    A literal `<unk>` in the text is the special token.
    """
    counts: Counter[str] = Counter()
    n_lines = 0
    for line in lines:
        counts.update(line.split())
        n_lines += 1
    known = sorted((w for w in counts if w not in SPECIALS), key=lambda w: (-counts[w], w))
    chosen, rest = known[: size - len(SPECIALS)], known[size - len(SPECIALS) :]
    special = {END: n_lines, UNKNOWN: counts[UNKNOWN] + sum(counts[w] for w in rest)}
    return [*SPECIALS, *chosen], [*(special.get(w, 0) for w in SPECIALS), *(counts[w] for w in chosen)]


def stream(lines: Iterable[str], words: list[str]) -> Tensor:
    """The whole text as one row of ids, `</s>` after every line."""
    ids = {word: i for i, word in enumerate(words)}
    unknown, end = ids[UNKNOWN], ids[END]
    out: list[int] = [end]
    for line in lines:
        out += [ids.get(word, unknown) for word in line.split()]
        out.append(end)
    return torch.tensor(out)


@dataclass(frozen=True)
class Text:
    """Training lines and held-out lines, as WikiText writes them."""

    lines: list[str]
    held_back: list[str]


def text_of(corpus: str | None) -> Text:
    """The lines of a text file, of a folder of `*.jsonl.xz`, or of the shipped sample.

    A folder's documents are held back by `documents.is_held_back`; of other text, one line in 80 is.
    """
    if corpus is not None and Path(corpus).is_dir():
        lines, held_back, size = list[str](), list[str](), 0
        for document in documents(Path(corpus)):
            if size > MOST_CHARACTERS:
                break
            (held_back if document.is_held_back else lines).extend(_lines(tokenized(document.text)))
            size += len(document.text)
        return Text(lines, held_back)
    texts = [document.text for document in open_corpus(corpus).documents()]
    if not looks_like_wikitext(line for text in texts for line in text.splitlines()):
        texts = [tokenized(text) for text in texts]
    found = [line for text in texts for line in _lines(text)]
    held_out = range(HELD_BACK_ONE_IN - 1, len(found), HELD_BACK_ONE_IN)
    return Text([line for n, line in enumerate(found) if n not in held_out], [found[n] for n in held_out])


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def train(
    text: Text,
    out: Path,
    mini: Mini = Mini(),
    progress: Callable[[dict[str, Any]], None] | None = None,
    until: int | None = None,
) -> Path:
    """Train and save a folder with weights, tokenizer, counts of words and the curve of the loss.

    Training resumes from a `checkpoint.pt` in the folder, which is removed at the end. Ctrl-C waits for the update
    under way and saves it; a second one does not wait.

    Args:
        text: lines; a line is what `</s>` ends.
        progress: called with step and loss a hundred times in all, and at the end with the held-back lines' perplexity.
        until: stop after this many updates; the model so far is saved and the checkpoint stays.

    Raises:
        InvalidInput: too little text for the vocabulary or for one row.
        CheckpointFault: the checkpoint is damaged or of another text or other sizes.
    """
    words, counts = vocabulary(text.lines, mini.words)
    if len(words) <= mini.cutoffs[-1]:
        raise InvalidInput(
            f"a vocabulary of {len(words):,} words",
            why=f"the text does not have more words, and the last band begins at {mini.cutoffs[-1]:,}",
            instead="Give more text, or smaller cutoffs",
        )
    ids = stream(text.lines, words)
    if len(ids) <= mini.context + 1:
        raise InvalidInput(f"{len(ids):,} words of text", why=f"a row has {mini.context}", instead="Give more text")
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
    out.mkdir(parents=True, exist_ok=True)
    last = mini.steps if until is None else min(until, mini.steps)
    curve = _updates(model, ids, mini, out / "checkpoint.pt", last, progress)
    if text.held_back:
        curve.append({"held_back_perplexity": round(perplexity(model, stream(text.held_back, words), mini.context), 2)})
        if progress is not None:
            progress(curve[-1])
    model.eval().save_pretrained(out)
    word_tokenizer(words).save_pretrained(out)
    (out / "token_counts.json").write_text(json.dumps(counts), encoding="utf-8")
    (out / "loss.jsonl").write_text("".join(json.dumps(row) + "\n" for row in curve), encoding="utf-8")
    if last == mini.steps:
        (out / "checkpoint.pt").unlink(missing_ok=True)
    return out


@torch.no_grad()
def perplexity(model: WikiLMForCausalLM, ids: Tensor, context: int) -> float:
    """Per word, line ends and `<unk>` counted as words, over windows of `context` that do not overlap."""
    nats, n = 0.0, 0
    for start in range(0, len(ids) - 1, context):
        row = ids[start : start + context + 1]
        log_p = model(row[None, :-1], use_cache=False).logits[0]
        nats -= float(log_p.gather(-1, row[1:, None]).sum())
        n += len(row) - 1
    return math.exp(nats / max(n, 1))


def _updates(
    model: WikiLMForCausalLM,
    ids: Tensor,
    mini: Mini,
    saved: Path,
    last: int,
    progress: Callable[[dict[str, Any]], None] | None,
) -> list[dict[str, Any]]:
    """AdamW with a rise and a cosine; the loss is the mean surprise in nats, read off the adaptive softmax."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=mini.lr, betas=(0.9, 0.98), weight_decay=0.01)
    made_for = {"mini": json.dumps(asdict(mini)), "words": len(ids)}
    step, curve = 0, list[dict[str, Any]]()
    if saved.exists():
        state = checkpoint.load(saved)
        if state["made_for"] != made_for:
            raise CheckpointFault(
                f"checkpoint {saved}", why="it is of another text or other sizes", instead="Delete it to start again"
            )
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        step, curve = state["step"], state["curve"]

    def save() -> None:
        state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step, "curve": curve}
        checkpoint.save({**state, "made_for": made_for}, saved)

    every = max(1, mini.steps // 100)
    model.train()
    with deferred_interrupt(True) as interrupted:
        while step < last and not interrupted.is_set():
            with torch.autocast("cpu", torch.bfloat16, enabled=mini.bfloat16):
                loss = _loss(model, ids, mini, step)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimiser.param_groups:
                group["lr"] = mini.lr * _share_of_peak(step, mini.steps)
            optimiser.step()
            step += 1
            if step % every == 0 or step == 1:
                curve.append({"step": step, "loss": round(float(loss.detach()), 4)})
                if progress is not None:
                    progress(curve[-1])
                save()
        save()
    if interrupted.is_set():
        raise KeyboardInterrupt
    return curve


def _loss(model: WikiLMForCausalLM, ids: Tensor, mini: Mini, step: int) -> Tensor:
    random = torch.Generator().manual_seed(mini.seed * 1_000_003 + step)
    starts = torch.randint(len(ids) - mini.context, (mini.rows,), generator=random)
    rows = ids[starts[:, None] + torch.arange(mini.context + 1)]
    log_p = model(rows[:, :-1], use_cache=False).logits
    return -log_p.gather(-1, rows[:, 1:, None]).mean()


def _share_of_peak(step: int, steps: int) -> float:
    """The learning rate over its peak: a rise over the first tenth, then a cosine down to zero."""
    rise = max(1, steps // 10)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
