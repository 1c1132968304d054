"""The loop: batches, gradients, two optimisers, checkpoints, a curve.

Nothing is drawn after the start: batch n depends on the seed and n, so a run that is killed and resumed gives the bits
of one that was not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unembed.errors import CheckpointFault
from unembed.sweeps.local import deferred_interrupt
from unembed.training import checkpoint
from unembed.training.muon import Muon
from unembed.training.networks import AttentionOnly, Wren, build, loss
from unembed.training.recipes import WINDOW, Phase, Recipe
from unembed.training.windows import EncodedCorpus, Windows, repeated

Progress = Callable[[dict[str, Any]], None]

MICRO_BATCH = 4096  # tokens whose logits are in memory at once


class Run:
    """One training run in a folder (`checkpoint.pt`, `loss.jsonl`), begun anew or gone on with."""

    def __init__(self, recipe: Recipe, corpus: EncodedCorpus, folder: Path, *, compiled: bool = True) -> None:
        """Draw the weights from the recipe's seed, or read the checkpoint."""
        self.recipe, self.corpus, self.folder = recipe, corpus, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.step = self.n_tokens = 0
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            self.network: Wren | AttentionOnly = build(recipe.shape)
        self.muon, self.adam = _optimisers(self.network, recipe)
        self.windows = self._windows(pass_=0, place=0)
        self._loss = torch.compile(loss, dynamic=False) if compiled else loss
        if self.checkpoint_path.exists():
            self._restore()

    @property
    def checkpoint_path(self) -> Path:
        """Where the state lies."""
        return self.folder / "checkpoint.pt"

    def train(self, *, until: int | None = None, save_every: int = 100, progress: Progress | None = None) -> None:
        """Make updates until the recipe's end or step `until`, whichever is first; the state is on disk afterwards.

        Ctrl-C waits for the update under way and saves it; a second one does not wait.
        """
        end = self.recipe.steps if until is None else min(until, self.recipe.steps)
        began = time.monotonic()
        with deferred_interrupt(True) as interrupted:
            while self.step < end and not interrupted.is_set():
                nats = self._update(self.recipe.phase(self.step))
                if self.step % 10 == 0 or self.step == end:
                    row = {"step": self.step, "tokens": self.n_tokens, "loss": round(nats, 4)}
                    self._log(row | {"seconds": round(time.monotonic() - began, 1)}, progress)
                if self.step % save_every == 0:
                    self.save()
            self.save()
        if interrupted.is_set():
            raise KeyboardInterrupt

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "net": self.network.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "step": self.step,
            "tokens": self.n_tokens,
            "pass_": self.windows.pass_,
            "place": self.windows.place,
            "rows": self.windows.rows,
        }
        checkpoint.save(state, self.checkpoint_path)

    def _update(self, phase: Phase) -> float:
        """One step of both optimisers; the loss in nats per token."""
        if phase.windows != self.windows.rows:
            # The same place in the text, counted in batches of the new size.
            place = self.windows.place * self.windows.rows // phase.windows
            self.windows = self._windows(pass_=self.windows.pass_, place=place, rows=phase.windows)
        if isinstance(self.network, Wren):
            self._begin_new_positions(phase)
        factor = self.recipe.lr_factor(self.step)
        for optimiser, peak in ((self.muon, self.recipe.muon_lr), (self.adam, self.recipe.adam_lr)):
            for group in optimiser.param_groups:
                group["lr"] = peak * factor
        for group in self.muon.param_groups:
            group["weight_decay"] = phase.weight_decay
        batch = repeated(self.windows.next(), phase.repeated_windows, phase.periods, [self.recipe.seed, self.step])
        rows = split_into_rows(batch, phase.context)
        parts = rows.split(max(1, MICRO_BATCH // phase.context))
        nats = 0.0
        for part in parts:
            share = len(part) / len(rows)
            entropy, objective = self._loss(self.network, part, phase.sparsity)
            (objective * share).backward()
            nats += entropy.item() * share
        nn.utils.clip_grad_norm_([p for group in self.adam.param_groups for p in group["params"]], 1.0)
        self.muon.step()
        self.adam.step()
        self.network.zero_grad(set_to_none=True)
        self.step += 1
        self.n_tokens += rows.shape[0] * phase.context
        return nats

    @torch.no_grad()
    def _begin_new_positions(self, phase: Phase) -> None:
        """Where a phase first sees positions beyond those of all before, these begin as the mean of the later known."""
        before = [other for other in self.recipe.phases if other.until <= self.step]
        known = max((other.context for other in before), default=phase.context)
        if phase.context > known and self.step == before[-1].until:
            positions = self.network.wpe.weight
            positions[known : phase.context] += positions[known // 2 : known].mean(0)

    def _restore(self) -> None:
        state = checkpoint.load(self.checkpoint_path)
        try:
            self.network.load_state_dict(state["net"])
            self.muon.load_state_dict(state["muon"])
            self.adam.load_state_dict(state["adam"])
            self.step, self.n_tokens = state["step"], state["tokens"]
            self.windows = self._windows(pass_=state["pass_"], place=state["place"], rows=state["rows"])
        except (KeyError, RuntimeError, ValueError) as fault:
            raise CheckpointFault(
                f"checkpoint {self.checkpoint_path}",
                why=f"it is not of this recipe: {fault}",
                instead="Give another folder, or delete it to begin anew",
            ) from fault

    def _windows(self, *, pass_: int, place: int, rows: int | None = None) -> Windows:
        rows = rows or self.recipe.phases[0].windows
        return Windows(self.corpus, rows=rows, width=WINDOW, seed=self.recipe.seed, pass_=pass_, place=place)

    def _log(self, row: dict[str, Any], progress: Progress | None) -> None:
        with (self.folder / "loss.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        if progress is not None:
            progress(row)


def split_into_rows(windows: Tensor, context: int) -> Tensor:
    """Windows (n, WINDOW + 1) as rows of context + 1 tokens; the last token of a row is the first of the next."""
    return torch.cat([windows[:, start : start + context + 1] for start in range(0, windows.shape[1] - 1, context)])


def _optimisers(network: nn.Module, recipe: Recipe) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for hidden matrices; Adam for tables of tokens and positions, norms and biases."""
    tables = ("wte.weight", "lm_head.weight")
    named = dict(network.named_parameters())
    hidden = [p for name, p in named.items() if p.ndim == 2 and name not in (*tables, "wpe.weight")]
    is_hidden = {id(p) for p in hidden}
    rest = [p for name, p in named.items() if id(p) not in is_hidden and name not in tables]
    muon = Muon(hidden)
    groups = [{"params": [named[name] for name in tables if name in named]}, {"params": rest}]
    return muon, torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0)
