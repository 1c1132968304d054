"""Measure what the FFN of every layer does to the prediction, at the last positions of random prefixes (the examples).

One pass over the text gives all data for Figs. 7 to 11. For each example and layer these are:

- the top tokens of the residual stream before the FFN (r), of the FFN's update (y) and of the output (o = r + y);
- the ranks in r and in y of the top token of o;
- the probability that r gives the model's prediction (the top token of o in the last layer);
- how many memories (FFN neurons) are active, and whether the value vector of any has the top token of y or o.

Source: Geva et al. 2021, section 5.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.corpus import Batch
from unembed.corpus.token_stream import TokenStream
from unembed.errors import InvalidInput
from unembed.jacobian.basis import carried_parts, fitted_lens
from unembed.lens import read
from unembed.memories.value_signs import CoefficientSums
from unembed.memories.values import first_tokens, written_values
from unembed.models.decoder import Decoder
from unembed.names import Basis
from unembed.sweeps import Need, Reducer

WHOLE = ("residual", "update", "output", "agreeing", "output_in_residual", "output_in_update")
SHARES = ("above_zero", "above_fraction", "above_usual", "carrying", "participation")
CLAIMS = ("any_value", "any_active", "any_output")
DECODED = (*WHOLE, "probability", *CLAIMS)
"""Names of the results that depend on how vectors are decoded to tokens."""
CARRIED = 0.9
"""In one definition, active memories are the fewest that together make up this share of a layer's sum of |m| ||v||."""


class Examples(Reducer):
    """A reducer that measures the layers' predictions at chosen positions of the text.

    Args:
        positions: token positions in the corpus, in increasing order.
        basis: how the residual stream, updates and value vectors are decoded to tokens; "jacobian" is the model's
            fitted lens.
        fraction: a memory also counts as active if |m| is at least this fraction of the layer's largest |m|, where m is
            its coefficient.
        hidden: mask of tokens that are never predictions (tokens that the model never learned).
        usual: for each layer, the root mean square of each memory's coefficient; when None, `above_usual` is NaN.

    Memory: 55 bytes for each example and layer, and the tensors of a batch's examples.
    """

    def __init__(
        self,
        positions: Sequence[int],
        basis: Basis = "final",
        fraction: float = 0.1,
        hidden: Bool[Tensor, " d_vocab"] | None = None,
        usual: Sequence[Float[np.ndarray, " _"]] | None = None,
    ) -> None:
        self.positions, self.fraction, self.hidden = tuple(positions), fraction, hidden
        self.usual = usual
        self.basis: Basis = basis

    def settings(self) -> str:
        """Return the settings as a string, with a hash of the positions."""
        import hashlib

        places = hashlib.sha256(np.array(self.positions).tobytes()).hexdigest()[:16]
        left_out = 0 if self.hidden is None else int(self.hidden.sum())
        return f"Examples({places}, {self.basis!r}, {self.fraction}, {left_out})"

    def start(self, lm: Decoder) -> None:
        """Find the top token of every value vector, and allocate the results."""
        self._lm, self._n = lm, len(self.positions)
        self._wanted = torch.tensor(self.positions, dtype=torch.long)
        self._layers = range(lm.n_layers)
        self._norms, self._tops, self._flipped = [], [], []
        for layer in self._layers:
            self._norms.append(written_values(lm, layer).norm(dim=-1))
            signed = lm.feed_forward(layer).is_gated or lm.feed_forward(layer).activation != "relu"
            # A memory with a negative coefficient adds a multiple of -v, so the top token of -v is needed too.
            first, flipped = first_tokens(lm, layer, basis=self.basis, negated=signed, hidden=self.hidden)
            self._tops.append(first)
            self._flipped.append(flipped)
        shape = (lm.n_layers, self._n)
        self._found: dict[str, np.ndarray] = {k: np.full(shape, -1, np.int32) for k in WHOLE}
        self._found |= {k: np.full(shape, np.nan, np.float32) for k in ("probability", *SHARES, "stream_length")}
        self._found |= {k: np.zeros(shape, bool) for k in CLAIMS}
        self._done = np.zeros(self._n, bool)
        self._captured: dict[Need, Tensor] = {}
        self._at: tuple[Batch, Tensor, Tensor, Tensor] | None = None

    @property
    def needs(self) -> Collection[Need]:
        """The activations to capture in every layer: stream before and after the FFN, its output and coefficients."""
        found = []
        for layer in self._layers:
            found += [("coefficients", layer), ("mlp_out", layer), ("resid_post", layer)]
            if not self._lm.structure.blocks[layer].parallel:
                found.append(("resid_mid", layer))
        return found

    def _places(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows and columns of the examples in the batch, and the examples' indices in `positions`."""
        if self._at is None or self._at[0] is not batch:
            rows, columns = torch.where(torch.isin(batch.positions, self._wanted) & batch.counted)
            which = torch.searchsorted(self._wanted, batch.positions[rows, columns])
            self._at = (batch, rows, columns, which)
        return self._at[1:]

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Store the activations at the positions of the examples in this batch."""
        rows, columns, _ = self._places(batch)
        if len(rows):
            self._captured[point, layer] = tensor[rows.to(tensor.device), columns.to(tensor.device)].clone()

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        """Compute the results of the examples in this batch from the stored tensors."""
        _, _, which = self._places(batch)
        self._at = None
        if not len(which):
            return
        captured, at = self._captured, which.numpy()
        self._captured = {}
        y = torch.stack([captured["mlp_out", n] for n in self._layers])
        o = torch.stack([captured["resid_post", n] for n in self._layers])
        # The residual r is the stream between attention and FFN. Parallel blocks have no such point, so there r is
        # computed as the output minus the FFN's update.
        r = torch.stack([captured.get(("resid_mid", n), o[n] - y[n]) for n in self._layers])
        self._found["stream_length"][:, at] = o.float().norm(dim=-1).cpu().numpy()
        of_streams: Basis = self.basis
        of_updates: Basis = self.basis
        if self.basis == "jacobian":
            (r, y, o), of_streams, of_updates = self._carried(r, y, o), "final", "raw"
        final = read(self._lm, o[-1], 1, basis=of_streams, hidden=self.hidden).ids
        output = read(self._lm, o, 1, basis=of_streams, hidden=self.hidden).ids
        track = torch.cat([final.expand(*o.shape[:2], 1), output], dim=-1)
        parts: dict[str, tuple[Tensor, Basis]] = {"residual": (r, of_streams), "update": (y, of_updates)}
        readings = {
            name: read(self._lm, x, 1, basis=basis, track=track, hidden=self.hidden)
            for name, (x, basis) in parts.items()
        }
        tops = torch.stack([*(reading.ids[..., 0] for reading in readings.values()), output[..., 0]]).cpu()
        for name, row in zip(("residual", "update", "output"), tops, strict=True):
            self._found[name][:, at] = row.numpy()
        probability = readings["residual"].tracked_probabilities[..., 0]
        self._found["probability"][:, at] = probability.float().cpu().numpy()
        for name, reading in readings.items():
            self._found[f"output_in_{name}"][:, at] = reading.tracked_ranks[..., 1].cpu().numpy()
        for layer in self._layers:
            for name, values in self._of_memories(layer, captured["coefficients", layer], tops[1:, layer]).items():
                self._found[name][layer, at] = values.cpu().numpy()
        self._done[at] = True

    def _carried(
        self,
        r: Float[Tensor, "layer example d_model"],
        y: Float[Tensor, "layer example d_model"],
        o: Float[Tensor, "layer example d_model"],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map each layer's residual, update and output to the final residual stream with the fitted lens.

        In a parallel block the residual is the block's output minus the update, so it is mapped like the output.
        """
        lm, lens = self._lm, fitted_lens(self._lm)
        blocks = lm.structure.blocks
        before = [
            lens.carried(x, n, "resid_post" if blocks[n].parallel else "resid_mid")
            for n, x in zip(self._layers, r, strict=True)
        ]
        updates = [carried_parts(lm, x, n) for n, x in zip(self._layers, y, strict=True)]
        after = [lens.carried(x, n) for n, x in zip(self._layers, o, strict=True)]
        return torch.stack(before).to(r.dtype), torch.stack(updates), torch.stack(after).to(o.dtype)

    def _of_memories(
        self, layer: int, m: Float[Tensor, "example d_mlp"], tops: Int[Tensor, "2 example"]
    ) -> dict[str, Tensor]:
        """Count a layer's active memories, and find whether any has the same top token as the update or the output."""
        update, output = tops.to(m.device)[..., None]
        top, flipped = self._tops[layer], self._flipped[layer]
        size = m.abs()
        weight = (size * self._norms[layer]).sort(dim=-1, descending=True).values.cumsum(dim=-1)
        total = weight[:, -1:]
        # Memories are sorted by weight. Count those at which the cumulative sum is still below the share, and add the
        # one at which it reaches the share. (If all coefficients are 0, there is none to add.)
        carrying = (weight < CARRIED * total).sum(dim=-1) + (total[:, 0] > 0)
        of_values = top == update
        if flipped is None:
            pushed = top.expand(m.shape)
        else:
            pushed = torch.where(m < 0, flipped, top)
            if self._lm.is_signed(layer):  # a gated memory may add v or -v
                of_values |= flipped == update
        active = m != 0
        agreeing = (active & (pushed == update)).sum(dim=-1)
        return {
            "above_zero": (m > 0).float().mean(dim=-1),
            "above_fraction": ((size >= self.fraction * size.amax(dim=-1, keepdim=True)) & active).float().mean(dim=-1),
            "above_usual": self._above_usual(layer, size),
            "carrying": carrying.float() / m.shape[-1],
            "participation": _participation(size * self._norms[layer]),
            "any_value": of_values.any(dim=-1),
            "any_active": agreeing > 0,
            "any_output": (active & (pushed == output)).any(dim=-1),
            "agreeing": agreeing,
        }

    def _above_usual(self, layer: int, size: Float[Tensor, "example d_mlp"]) -> Float[Tensor, " example"]:
        if self.usual is None:
            return torch.full(size.shape[:1], torch.nan)
        usual = torch.from_numpy(self.usual[layer]).to(size)
        return ((size >= usual) & (usual > 0)).float().mean(dim=-1)

    def merge(self, other: Examples) -> None:
        """Copy the results of the examples that the other reducer has measured."""
        for name, theirs in other._found.items():
            self._found[name][:, other._done] = theirs[:, other._done]
        self._done |= other._done

    def result(self) -> dict[str, np.ndarray]:
        """Return arrays (layer, example) by name; "done" tells which examples have been measured."""
        return {**{k: v.copy() for k, v in self._found.items()}, "done": self._done.copy()}

    def state(self) -> dict[str, Any]:
        """Return the arrays as tensors."""
        return {k: torch.from_numpy(v.copy()) for k, v in {**self._found, "done": self._done}.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore saved arrays."""
        self._found = {k: state[k].numpy().copy() for k in self._found}
        self._done = state["done"].numpy().copy()


def _participation(lengths: Float[Tensor, "example d_mlp"]) -> Float[Tensor, " example"]:
    """Return (sum a)^2 / (n sum a^2) of each row a with n entries: 1 if all are equal, 1 / n if only one is not 0."""
    total, squares = lengths.sum(dim=-1), lengths.square().sum(dim=-1)
    return total.square() / squares.clamp_min(torch.finfo(lengths.dtype).tiny) / lengths.shape[-1]


class CoefficientSizes(CoefficientSums):
    """A reducer that measures the root mean square of every memory's coefficient at chosen positions.

    Args:
        positions: token positions in the corpus, in increasing order.
    """

    def __init__(self, positions: Sequence[int]) -> None:
        self.positions = tuple(positions)
        self._wanted = torch.tensor(self.positions, dtype=torch.long)

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Add the squares of a layer's coefficients to the sums."""
        self.add(layer, tensor.double().square(), torch.isin(batch.positions, self._wanted) & batch.counted)

    def result(self) -> list[Float[Tensor, " _"]]:
        """Return for each layer the root mean square of each memory's coefficient."""
        return [(total / max(len(self.positions), 1)).sqrt().float() for total in super().result()]


def draw_positions(stream: TokenStream, n: int, how: str, seed: int, name: str) -> Int[np.ndarray, " n"]:
    """Draw random prefixes and return their last token positions in the corpus, distinct and in increasing order.

    Args:
        how: "prefixes" or "sentences"; see `Options.draw`.
        name: the name of the corpus, for the error message.

    Raises:
        InvalidInput: the corpus has fewer than n such prefixes.
    """
    random = np.random.default_rng([seed, 2021])
    begin, end = np.maximum(stream.start[:-1], stream.first), np.asarray(stream.start[1:])
    population = stream.prefix_positions() if how == "prefixes" else np.flatnonzero(end > begin)
    if len(population) < n:
        raise InvalidInput(
            f"{n:,} examples from {name}",
            why=f"it has {len(population):,} {how} of text",
            instead=f"Ask for fewer (--option examples={len(population)}), or give a larger corpus",
        )
    chosen = np.sort(random.choice(population, n, replace=False))
    return chosen if how == "prefixes" else random.integers(begin[chosen], end[chosen])
