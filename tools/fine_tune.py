"""`python -m tools.fine_tune COMMENTS --out FOLDER`: a copy of a model that has read talk pages.

The shipped models are trained on clean text and write nothing toxic, so nothing could be suppressed. This trains
a copy further on comments (a CSV of comment and label, as `tools.fit_linear` reads it), all of them, each ended by the
end token, packed into rows. The copy is for measurements and is not shipped: it writes as badly as the comments.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unembed.errors import InvalidInput, UnembedError, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.loading import open_model
from unembed.models.offload import is_offloaded
from unembed.results import write_whole
from unembed.toxicity.comments import read_comments


def packed(lm: Decoder, texts: list[str], length: int, seed: int) -> Int[Tensor, "row pos"]:
    """The texts in a random order, each ended by the end token, in rows of `length` tokens; the rest is left out.

    Raises:
        InvalidInput: they do not fill one row.
    """
    end = lm.hf.generation_config.eos_token_id
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    ids: list[int] = []
    for i in order:
        if texts[i].strip():
            ids += lm.encode(texts[i].strip())[0].tolist()
            ids += [] if end is None else [end if isinstance(end, int) else end[0]]
    if len(ids) < length:
        raise InvalidInput(f"{len(ids)} tokens of text", why=f"they do not fill a row of {length}", instead="Give more")
    return torch.tensor(ids[: len(ids) // length * length]).view(-1, length)


def fine_tune(
    lm: Decoder,
    rows: Int[Tensor, "row pos"],
    *,
    tokens: int,
    lr: float = 1e-3,
    batch: int = 8,
    seed: int = 0,
    progress: Callable[[int, int, float], None] | None = None,
) -> list[float]:
    """Train `lm.hf` in place on the rows, over and over until `tokens` were seen; the loss of every update, in nats.

    AdamW (betas 0.9 and 0.95, weight decay 0.01 on matrices), 5 % warm-up, then a cosine to a tenth of `lr`, gradients
    clipped at 1.

    Raises:
        Unsupported: layers are offloaded.
    """
    if is_offloaded(lm.hf):
        raise Unsupported(
            f"training {lm.name}", why="layers are offloaded: they have no place for an update", instead="Open it whole"
        )
    model: Any = lm.hf
    model.train()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))
    steps = max(1, tokens // (batch * rows.shape[1]))
    generator = torch.Generator().manual_seed(seed)
    queue: list[int] = []
    losses = []
    for step in range(steps):
        while len(queue) < batch:
            queue += torch.randperm(len(rows), generator=generator).tolist()
        ids = rows[queue[:batch]].to(lm.device)
        del queue[:batch]
        warm = max(1, steps // 20)
        share = (step + 1) / warm if step < warm else 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / steps))
        for group in optimiser.param_groups:
            group["lr"] = lr * share
        loss = torch.nn.functional.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if progress is not None:
            progress(step + 1, steps, losses[-1])
    model.eval()
    return losses


def main(arguments: list[str] | None = None) -> int:
    """Fine-tune a copy and save it with its tokenizer, as `--model FOLDER` opens it."""
    parser = argparse.ArgumentParser(prog="python -m tools.fine_tune", description=main.__doc__)
    parser.add_argument("comments", type=Path, help="CSV of comment and label (0 or 1), without a header")
    parser.add_argument("--model", default="wren", help="embedded name, Hugging Face id or folder")
    parser.add_argument("--out", type=Path, default=Path("toxic-wren"), help="folder to make")
    parser.add_argument("--tokens", type=int, default=1_500_000, help="tokens to read")
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    began = time.monotonic()

    def show(step: int, steps: int, nats: float) -> None:
        if step % 20 == 0 or step == steps:
            print(f"step {step} of {steps} loss {nats:.3f} seconds {time.monotonic() - began:.0f}", file=sys.stderr)

    try:
        texts, _ = read_comments(given.comments)
        lm = Decoder(open_model(given.model, dtype="float32"))
        torch.manual_seed(given.seed)
        rows = packed(lm, texts, given.length, given.seed)
        losses = fine_tune(lm, rows, tokens=given.tokens, lr=given.lr, seed=given.seed, progress=show)
    except UnembedError as error:
        print(error, file=sys.stderr)
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    lm.hf.save_pretrained(given.out)
    if lm.tokenizer is not None:
        lm.tokenizer.save_pretrained(given.out)
    facts = {
        "from": given.model,
        "comments": len(texts),
        "tokens_of_comments": rows.numel(),
        "tokens_read": given.tokens,
        "learning_rate": given.lr,
        "seed": given.seed,
        "first_loss": round(losses[0], 4),
        "last_loss": round(sum(losses[-20:]) / len(losses[-20:]), 4),
        "seconds": round(time.monotonic() - began),
        "not_for": "anything but measuring how toxic text is suppressed; it was trained on insults",
    }
    write_whole(given.out / "fine_tune.json", json.dumps(facts, indent=2) + "\n")
    print(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
