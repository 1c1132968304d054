"""Train a small TopK sparse autoencoder on the activations of one capture point (Gao et al. 2024).

This takes minutes on a CPU for the shipped models. Features that have been 0 for many steps are revived by an auxiliary
loss: they are trained to reconstruct the error that the active features leave (section 2.3 of the paper).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.corpus import Corpus, open_corpus
from unembed.dictionaries.dictionary import Dictionary
from unembed.dictionaries.files import save_dictionary
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import Point
from unembed.stream.capture_points import require_point
from unembed.stream.massive_activations import MASSIVE
from unembed.stream.run import run
from unembed.validation import positive_int, valid_seed

_DEAD_AFTER = 200
"""Steps without activity after which a feature counts as dead."""
_AUXILIARY = 1 / 32


def train_dictionary(
    lm: Decoder,
    corpus: Corpus | str | Sequence[str],
    layer: int,
    point: Point = "resid_post",
    *,
    features: int = 2048,
    k: int = 32,
    steps: int = 2000,
    batch: int = 1024,
    rate: float = 1e-3,
    seed: int = 0,
    out: str | Path | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> Dictionary:
    """Train a TopK dictionary on the activations of a capture point; a short corpus is read several times.

    Massive activations, such as those of the first position of a text in many models, are left out.

    Args:
        corpus: texts, or what `open_corpus` opens.
        layer: the layer of the activations.
        point: the capture point of the activations.
        features: number of features.
        k: number of features that are not 0 at each position.
        steps: number of updates.
        batch: number of positions in one update.
        rate: the learning rate of Adam, which falls linearly to 0 over the last fifth of the steps.
        seed: the seed of the initial weights and of the order of positions.
        out: a folder to save the dictionary in, in the layout of SAELens.
        progress: called every 100 steps with a dict: step, unexplained (share of the variance), dead (features).

    Raises:
        InvalidInput: k is larger than the number of features, or the corpus is empty.

    Memory: four times the size of the dictionary (weights, gradients, two Adam moments), and the features of one batch.
    """
    lm = require_decoder(lm)
    layer = lm.layer(layer)
    require_point(lm, point, layer)
    features, k, steps = positive_int("features", features), positive_int("k", k), positive_int("steps", steps)
    batch = positive_int("batch", batch)
    if k > features:
        raise InvalidInput(f"k {k}", why=f"it must be at most the number of features, {features}")
    generator = torch.Generator().manual_seed(valid_seed(seed))
    opened = corpus if isinstance(corpus, Corpus) else open_corpus(corpus)
    batches = _activations(lm, opened, layer, point, batch, generator)
    first = next(batches, None)
    if first is None:
        raise InvalidInput("the corpus", why="it has no tokens")
    device = first.device
    # Activations are divided by `scale`, so that the same learning rate suits activations of any size.
    scale = float(first.var(dim=0).sum().sqrt()) or 1.0
    W_dec = torch.nn.functional.normalize(torch.randn(features, lm.d_model, generator=generator), dim=1).to(device)
    weights = {
        "W_enc": W_dec.T.clone(),
        "b_enc": torch.zeros(features, device=device),
        "W_dec": W_dec,
        "b_dec": first.mean(dim=0) / scale,
    }
    parameters = {name: t.float().requires_grad_() for name, t in weights.items()}
    optimiser = torch.optim.Adam(parameters.values(), lr=rate, betas=(0.9, 0.999))
    idle = torch.zeros(features, dtype=torch.long, device=device)
    x: Tensor | None = first
    with torch.enable_grad():
        for step in range(steps):
            assert x is not None
            target = x.float() / scale
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, 5 * (1 - step / steps))
            pre = (target - parameters["b_dec"]) @ parameters["W_enc"] + parameters["b_enc"]
            best = pre.topk(k, dim=1)
            on = torch.zeros_like(pre).scatter(1, best.indices, best.values.relu())
            error = target - on @ parameters["W_dec"] - parameters["b_dec"]
            variance = (target - target.mean(dim=0)).square().sum().clamp_min(1e-12)
            loss = error.square().sum() / variance
            idle = torch.where((on > 0).any(dim=0), 0, idle + 1)
            dead = idle > _DEAD_AFTER
            if bool(dead.any()):
                left = pre.masked_fill(~dead, -torch.inf).topk(min(2 * k, int(dead.sum())), dim=1)
                revived = torch.zeros_like(pre).scatter(1, left.indices, left.values.relu())
                missed = error.detach() - revived @ parameters["W_dec"]
                loss = loss + _AUXILIARY * missed.square().sum() / error.detach().square().sum().clamp_min(1e-12)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            with torch.no_grad():
                parameters["W_dec"].div_(parameters["W_dec"].norm(dim=1, keepdim=True).clamp_min(1e-8))
            if progress is not None and (step % 100 == 0 or step == steps - 1):
                unexplained = float(error.detach().square().sum() / variance)
                progress({"step": step + 1, "unexplained": round(unexplained, 4), "dead": int(dead.sum())})
            x = next(batches)
    found = {name: t.detach() for name, t in parameters.items()}
    # Training used activations divided by `scale`. With biases multiplied by `scale`, the saved dictionary can be
    # applied to the model's activations without this division.
    dictionary = Dictionary(
        found["W_enc"],
        found["b_enc"] * scale,
        (found["W_dec"],),
        found["b_dec"] * scale,
        "topk",
        b_in=found["b_dec"] * scale,
        k=k,
        reads=point,
        writes=point,
        layer=layer,
        name=f"{lm.name} {point} {layer}",
    )
    if out is not None:
        notes = {"model_name": lm.name, "corpus": opened.fingerprint, "steps": steps, "seed": seed}
        save_dictionary(dictionary, out, notes)
    return dictionary


@torch.no_grad()
def _activations(
    lm: Decoder, corpus: Corpus, layer: int, point: Point, size: int, generator: torch.Generator
) -> Iterator[Float[Tensor, "position d_model"]]:
    """Yield batches of activations without end, shuffled in a buffer of eight batches.

    Massive activations, over `MASSIVE` times as long as the median of their text batch, are left out: they would be
    nearly all of the variance, and the dictionary would learn nothing but them.
    """
    buffer: list[Tensor] = []
    n = 0
    while True:
        was_empty = True
        for batch in corpus.batches(lm):
            seen = run(lm, batch.tokens, point, layers=[layer], logits=False, attention_mask=batch.mask)
            rows = seen.at(point, layer)[batch.counted.to(lm.device)]
            lengths = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float32)
            if len(rows):
                rows = rows[lengths <= MASSIVE * lengths.median()]
            was_empty = was_empty and not len(rows)
            buffer.append(rows)
            n += len(rows)
            if n >= 8 * size:
                mixed = torch.cat(buffer)[torch.randperm(n, generator=generator).to(rows.device)]
                full = len(mixed) // 2 // size * size
                yield from mixed[:full].split(size)
                buffer, n = [mixed[full:]], len(mixed) - full
        if was_empty:
            return
        # Use the activations that are left in the buffer before the corpus is read again.
        if n >= 1:
            mixed = torch.cat(buffer)[torch.randperm(n, generator=generator).to(buffer[0].device)]
            yield from mixed.split(size)
            buffer, n = [], 0
