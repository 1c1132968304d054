"""The training loop: batches, gradients, two optimisers, checkpoints, the loss curve.

No random number is drawn after the start: batch n depends on the seed and n, so a run that is killed and resumed
gives the bits of an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tools.training import checkpoint
from tools.training.gradients import Objective, OneProcess, mean_nats
from tools.training.muon import Muon
from tools.training.networks import AttentionOnly, Wren, build
from tools.training.readable import add_agreement, add_distance, add_lens, only_changing, revive, upper_values
from tools.training.recipes import WINDOW, Phase, Recipe
from tools.training.windows import EncodedCorpus, Windows, repeated
from unembed.errors import CheckpointFault
from unembed.sweeps.interrupt import deferred_interrupt

Progress = Callable[[dict[str, Any]], None]

SAVE_EVERY = 240.0  # seconds between checkpoints
MEASURE_EVERY = 1_000_000  # tokens between measurements on held-back text
MEASURED_ROWS = 128  # rows of 256 tokens that are measured on
REVIVED_ON = 51_200  # tokens in which a memory fires or counts as dead
CHANGING = "changing.npy"  # in a run's folder: which values phases with `agreement` change (see `_changing`)
VALUES = 2  # the group of the memories' values among Adam's


class Run:
    """One training run in a folder (`checkpoint.pt`, `loss.jsonl`, `held_back.jsonl`), new or resumed."""

    def __init__(
        self,
        recipe: Recipe,
        corpus: EncodedCorpus,
        folder: Path,
        *,
        held_back: EncodedCorpus | None = None,
        compiled: bool = True,
        engine: type[OneProcess] = OneProcess,
    ) -> None:
        """Draw the weights from the recipe's seed, or read the checkpoint.

        Args:
            recipe: sizes and phases.
            corpus: the training text.
            folder: where checkpoint and curves are written.
            held_back: the text on which the run is measured.
            compiled: whether the network goes through `torch.compile`.
            engine: computes the gradients of a batch.

        Raises:
            CheckpointFault: the checkpoint is damaged, or of another recipe or vocabulary; or `changing.npy` is.
        """
        self.recipe, self.corpus, self.folder, self.held_back = recipe, corpus, folder, held_back
        folder.mkdir(parents=True, exist_ok=True)
        self.step = self.n_tokens = 0
        self.began = 0  # the step at which the optimisers started from zero
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            self.network: Wren | AttentionOnly = build(recipe.shape)
        self.muon, self.adam = _optimisers(self.network, recipe)
        self.changing = _changing(folder / CHANGING, recipe)
        self.windows = self.windows_at(pass_=0, place=0)
        if self.checkpoint_path.exists():
            self._restore()
        self._gradients = engine(self.network, compiled=compiled)

    def close(self) -> None:
        """Stop the engine's processes."""
        self._gradients.close()

    @property
    def checkpoint_path(self) -> Path:
        """The path of the state."""
        return self.folder / "checkpoint.pt"

    def train(
        self, *, until: int | None = None, save_every: float = SAVE_EVERY, progress: Progress | None = None
    ) -> None:
        """Make updates until the recipe's end or step `until`, whichever is first; the state is on disk afterwards.

        Ctrl-C waits for the current update and saves it; a second one does not wait.

        Args:
            until: the step to stop at.
            save_every: seconds between checkpoints.
            progress: called with each row of the loss curve.

        Raises:
            CheckpointFault: the next phase has `agreement`, and there is no `changing.npy`. The state is on disk.
        """
        wanted = self.recipe.steps if until is None else min(until, self.recipe.steps)
        end = wanted if self.changing else min(wanted, self.recipe.agreement_begins)
        began = saved = time.monotonic()
        with deferred_interrupt(True) as interrupted:
            while self.step < end and not interrupted.is_set():
                before = self.n_tokens
                nats, firing = self._update(self.recipe.phase(self.step))
                if self.step % 10 == 0 or self.step == end:
                    row = {"step": self.step, "tokens": self.n_tokens, "loss": round(nats, 4)}
                    row |= {"firing": round(firing, 1)} if firing else {}
                    self._log("loss.jsonl", row | {"seconds": round(time.monotonic() - began, 1)}, progress)
                if self.n_tokens // MEASURE_EVERY > before // MEASURE_EVERY or self.step == end:
                    self._measure(progress)
                if time.monotonic() - saved > save_every:
                    self.save()
                    saved = time.monotonic()
            self.save()
        if interrupted.is_set():
            raise KeyboardInterrupt
        if self.step < wanted:
            raise CheckpointFault(
                f"training from step {self.step:,}",
                why=f"only some values change there, and no {self.folder / CHANGING} marks them",
                instead="Write it with python -m tools.changing_values",
            )

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "net": self.network.state_dict(),
            "vocabulary": self.corpus.vocabulary,
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "step": self.step,
            "tokens": self.n_tokens,
            "began": self.began,
            "pass_": self.windows.pass_,
            "place": self.windows.place,
            "rows": self.windows.rows,
        }
        checkpoint.save(state, self.checkpoint_path)

    def _update(self, phase: Phase) -> Objective:
        """One step of both optimisers; the loss in nats per token, and how many memories fire if that is penalised."""
        if phase.windows != self.windows.rows:
            # The same position in the text, counted in batches of the new size.
            place = self.windows.place * self.windows.rows // phase.windows
            self.windows = self.windows_at(pass_=self.windows.pass_, place=place, rows=phase.windows)
        if isinstance(self.network, Wren):
            self._begin_new_positions(phase)
            self._revive(phase)
        factor = self.recipe.lr_factor(self.step, began=self.began)
        for optimiser, peak in ((self.muon, self.recipe.muon_lr), (self.adam, self.recipe.adam_lr)):
            for group in optimiser.param_groups:
                group["lr"] = peak * factor
        for group in self.muon.param_groups:
            group["weight_decay"] = phase.weight_decay
        self.adam.param_groups[VALUES]["weight_decay"] = phase.value_decay
        batch = repeated(self.windows.next(), phase.repeated_windows, phase.periods, [self.recipe.seed, self.step])
        rows = split_into_rows(batch, phase.context)
        objective = self._gradients.add(rows, sparsity=phase.sparsity)
        changed = list[Tensor]()
        if isinstance(self.network, Wren):
            changed = self._add_prices(self.network, phase, rows)
        clipped = self.adam.param_groups[:VALUES]
        nn.utils.clip_grad_norm_([p for group in clipped for p in group["params"]], 1.0)
        self.muon.step()
        with only_changing(changed, self.changing if changed else []):
            self.adam.step()
        self.network.zero_grad(set_to_none=True)
        self.step += 1
        self.n_tokens += rows.shape[0] * phase.context
        return objective

    def _add_prices(self, network: Wren, phase: Phase, rows: Tensor) -> list[Tensor]:
        """Add the gradients of the prices in `readable`; the values of which a part stays as it is in this phase."""
        if phase.nearness:
            add_distance(network, phase.nearness, self.step)
        if phase.agreement:
            add_agreement(network, phase.agreement, rows, self.step, self.changing)
        if phase.lens:
            add_lens(network, phase.lens, rows, self.step)
        return upper_values(network) if phase.agreement else []

    @torch.no_grad()
    def _begin_new_positions(self, phase: Phase) -> None:
        """Start positions that no earlier phase reached as the mean of the later known ones."""
        before = [other for other in self.recipe.phases if other.until <= self.step]
        known = max((other.context for other in before), default=phase.context)
        if phase.context > known and self.step == before[-1].until:
            positions = self.network.wpe.weight
            positions[known : phase.context] += positions[known // 2 : known].mean(0)

    def _revive(self, phase: Phase) -> None:
        """At the first step of a phase that says so, give memories that never fire new keys."""
        first = max((other.until for other in self.recipe.phases if other.until <= self.step), default=0)
        if phase.revive and self.step == first and isinstance(self.network, Wren):
            n_rows = min(REVIVED_ON, len(self.corpus.tokens)) // phase.context
            rows = self.corpus.tokens[: n_rows * phase.context].reshape(n_rows, phase.context)
            revive(self.network, torch.from_numpy(rows.astype(np.int64)), seed=self.recipe.seed)

    def _restore(self) -> None:
        state = checkpoint.load(self.checkpoint_path)
        try:
            if state["vocabulary"] != self.corpus.vocabulary:
                raise ValueError(
                    f"it has read text of vocabulary {state['vocabulary'] or 'unknown'}, "
                    f"and this text is encoded with vocabulary {self.corpus.vocabulary or 'unknown'}"
                )
            self.network.load_state_dict(state["net"])
            self.muon.load_state_dict(state["muon"])
            self.adam.load_state_dict(state["adam"])
            self.step, self.n_tokens = state["step"], state["tokens"]
            self.began = state.get("began", 0)
            self.windows = self.windows_at(pass_=state["pass_"], place=state["place"], rows=state["rows"])
        except (KeyError, RuntimeError, ValueError) as fault:
            raise CheckpointFault(
                f"checkpoint {self.checkpoint_path}",
                why=f"it is not of this recipe: {fault}",
                instead="Give another folder, or delete it to start again",
            ) from fault
        for name in ("loss.jsonl", "held_back.jsonl"):
            self._forget_rows_after(self.folder / name, self.step)

    def windows_at(self, *, pass_: int, place: int, rows: int | None = None) -> Windows:
        """The windows of the text from a position on, `rows` in a batch."""
        rows = rows or self.recipe.phases[0].windows
        return Windows(self.corpus, rows=rows, width=WINDOW, seed=self.recipe.seed, pass_=pass_, place=place)

    def _measure(self, progress: Progress | None) -> None:
        """Log nats a token of held-back text, in rows taken at even distances."""
        if self.held_back is None:
            return
        tokens, context = self.held_back.tokens, min(256, self.recipe.shape.context)
        n_rows = min(MEASURED_ROWS, (len(tokens) - 1) // context)
        if not n_rows:
            return
        starts = np.linspace(0, len(tokens) - 1 - context, n_rows).astype(np.int64)
        rows = torch.from_numpy(tokens[starts[:, None] + np.arange(context + 1)].astype(np.int64))
        nats = mean_nats(self.network, rows)
        bits = nats / math.log(2) * len(tokens) / int(self.held_back.n_bytes.sum())
        row = {"step": self.step, "tokens": self.n_tokens, "held_back": round(nats, 4)}
        self._log("held_back.jsonl", row | {"bits_per_byte": round(bits, 4)}, progress)

    def _log(self, name: str, row: dict[str, Any], progress: Progress | None) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(row) + "\n")
        if progress is not None:
            progress(row)

    @staticmethod
    def _forget_rows_after(path: Path, step: int) -> None:
        """Drop rows that a killed run logged after its last checkpoint; they are logged again."""
        if path.exists():
            lines = [line for line in path.read_text().splitlines() if json.loads(line)["step"] <= step]
            path.write_text("".join(f"{line}\n" for line in lines))


def split_into_rows(windows: Tensor, context: int) -> Tensor:
    """Windows (n, WINDOW + 1) as rows of context + 1 tokens; the last token of a row is the first of the next."""
    return torch.cat([windows[:, start : start + context + 1] for start in range(0, windows.shape[1] - 1, context)])


def _changing(path: Path, recipe: Recipe) -> list[Tensor]:
    """Which values of each layer of the upper half change in phases with `agreement`: none, where there is no file.

    Raises:
        CheckpointFault: the file is not one truth value for each of them.
    """
    shape = (recipe.shape.n_layers - recipe.shape.n_layers // 2, recipe.shape.d_mlp)
    if not path.exists():
        return []
    try:
        changing = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as fault:
        raise CheckpointFault(f"file {path}", why=f"it cannot be read: {fault}", instead="Write it again") from fault
    if changing.dtype != bool or changing.shape != shape:
        raise CheckpointFault(
            f"file {path}",
            why=f"it has {changing.dtype} numbers of shape {changing.shape}, and the recipe has {shape} values",
            instead="Write it again from a model of these sizes",
        )
    return list(torch.from_numpy(changing))


def _optimisers(network: nn.Module, recipe: Recipe) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for hidden matrices but the values; Adam for these, tables of tokens and positions, norms and biases.

    Muon moves every direction equally, which fills values with directions that no token needs.
    """
    tables = ("wte.weight", "lm_head.weight")
    named = dict(network.named_parameters())
    values = [p for name, p in named.items() if name.endswith("w_out.weight")]
    apart = {id(p) for p in values}
    hidden = [
        p for name, p in named.items() if p.ndim == 2 and name not in (*tables, "wpe.weight") and id(p) not in apart
    ]
    apart |= {id(p) for p in hidden}
    rest = [p for name, p in named.items() if id(p) not in apart and name not in tables]
    muon = Muon(hidden)
    groups = [{"params": [named[name] for name in tables if name in named]}, {"params": rest}, {"params": values}]
    return muon, torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0)
