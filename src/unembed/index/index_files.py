"""Open the files of an index when they are needed: memory maps, the vocabulary, and the row of each memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from unembed.errors import IndexFault, InvalidInput, NotOneToken, OutOfRange
from unembed.index.arrays import SUPPRESSED, map_array, open_poles, open_values
from unembed.index.manifest import Manifest, check
from unembed.index.passages import Passages, Sample
from unembed.index.stream_files import open_stream
from unembed.names import MemoryIndex, Pole, memory_name
from unembed.results import Provenance, Table
from unembed.validation import as_expert_pair, as_int, as_str

if TYPE_CHECKING:  # so that an index can be read without importing torch
    from unembed.corpus import TextPieces

_SHOWN_TOKENS = 8


class IndexFiles:
    """The files of an index. Each is opened at its first use; using a part that is not built yet is an error."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Store the manifest; no other file is opened yet."""
        self.path, self.manifest = path, manifest
        self._checked: set[str] = set()
        self.samples: OrderedDict[int, Sample] = OrderedDict()
        """Cached coefficients, by layer, on a sample of the corpus; see `index.coefficients`."""

    def __repr__(self) -> str:
        facts, layers = self.manifest.facts, self.manifest.layers
        read = f" ({facts['tokens']:,} tokens)" if "tokens" in facts else ""
        return (
            f"Index of {self.provenance.model} over {self.provenance.corpus}{read}: {self.top} triggers for each key, "
            f"{len(layers)} layers, {sum(layers):,} memories, {self.manifest.state}, in {self.path}"
        )

    @property
    def provenance(self) -> Provenance:
        """What the index was computed from: model, corpus, version of unembed."""
        return self.manifest.provenance

    @property
    def top(self) -> int:
        """Number of texts stored for each memory (FFN neuron) and sign of its coefficient."""
        return int(self.manifest.settings["top"])

    def need(self, part: str) -> None:
        """Check that a part is built and, the first time, that its files are intact.

        Raises:
            IndexFault: it is not built yet, or a file is damaged.
        """
        if not self.manifest.has(part):
            raise IndexFault(
                f"index {self.path} has no {part} yet",
                why="its build is not finished",
                instead="Run the same build again",
            )
        if part not in self._checked:
            for entry in self.manifest.files:
                if entry.part == part:
                    check(self.path, entry)
            self._checked.add(part)

    @cached_property
    def strings(self) -> list[str]:
        """The text of every token."""
        from unembed.index import tables  # imports pyarrow, which most queries do not need

        self.need("vocabulary")
        return tables.read_column(self.path / "tables/vocabulary.parquet", "token")

    @cached_property
    def _by_string(self) -> dict[str, int]:
        return {text: i for i, text in reversed(list(enumerate(self.strings)))}

    @cached_property
    def passages(self) -> Passages:
        """The corpus of the index, as tokens with their text."""
        self.need("tokens")
        return open_stream(self.path, self.strings)

    def text_pieces(self) -> TextPieces:
        """Return the corpus as text, segment by segment, so that it can be tokenised in other windows."""
        from unembed.corpus import TextPieces

        passages = self.passages
        cut = self.manifest.settings.get("cut", {}).get("segmentation", "sentences")

        def text(i: int) -> str:
            return passages.text(np.asarray(passages.token[passages.start[i] : passages.start[i + 1]]))

        # Consecutive windows are joined as they are. Between sentences, a space is inserted, because the segmentation
        # has removed it.
        return TextPieces("the index's corpus", passages.document, text, " " if cut == "sentences" else "")

    @cached_property
    def trigger_lists(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Stored coefficients and positions, both (keys, top), by sign of the coefficient."""
        self.need("triggers")
        return open_poles(self.path, self.n_keys, self.top)

    def pole(self, pole: Pole) -> tuple[np.ndarray, np.ndarray]:
        """Return the stored coefficients of one sign, and their positions in the corpus, both (keys, top).

        Raises:
            InvalidInput: the index has no coefficients of this sign.
        """
        if as_str("pole", pole) not in self.trigger_lists:
            poles = " and ".join(self.trigger_lists)
            raise InvalidInput(f"pole {pole!r}", why=f"this index stores only {poles} coefficients")
        return self.trigger_lists[pole]

    @cached_property
    def readings(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids and scores of the top tokens of every value vector, both (keys, k)."""
        self.need("values")
        return open_values(self.path, "values", self.n_keys)

    @cached_property
    def suppressed(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Ids and scores of the tokens that every value vector suppresses most, (keys, k); None in an older index."""
        self.need("values")
        if not any(entry.path.startswith(SUPPRESSED) for entry in self.manifest.files):
            return None
        return open_values(self.path, SUPPRESSED, self.n_keys)

    @cached_property
    def _by_token(self) -> tuple[np.ndarray, np.ndarray]:
        n = self.readings[0].size
        return (
            map_array(self.path, "values/by_token/entry.npy", shape=(n,), dtype=(np.int32, np.int64)),
            map_array(self.path, "values/by_token/start.npy", shape=(None,), dtype=np.int64),
        )

    def entries_of(self, token: int) -> np.ndarray:
        """Return the places of a token in the lists of top tokens, best score first: row * k + rank, counted from 0."""
        entry, start = self._by_token
        return np.asarray(entry[int(start[token]) : int(start[token + 1])])

    @cached_property
    def statistics(self) -> dict[str, np.ndarray]:
        """Statistics of every memory (FFN neuron), each an array of shape (keys,).

        value_norm is the length of the value vector; mean, variance, least, largest and active_fraction are of the
        coefficient over the corpus.
        """
        from unembed.index import tables

        self.need("triggers")
        path = self.path / "tables/statistics.parquet"
        names = ("mean", "variance", "least", "largest", "active_fraction", "value_norm")
        return {name: np.asarray(tables.read_column(path, name), dtype=np.float64) for name in names}

    @cached_property
    def firing_shares(self) -> dict[Pole, np.ndarray] | None:
        """By sign of the coefficient, the share of tokens on which each memory fires; None in an older index.

        In gated layers a memory fires where its absolute coefficient is at least half of its usual size
        (`sweeps.FIRES`).
        """
        from unembed.index import tables

        self.need("triggers")
        path = self.path / "tables/statistics.parquet"
        if "negative_share" not in tables.column_names(path):
            return None
        poles: tuple[Pole, ...] = get_args(Pole)
        return {pole: np.asarray(tables.read_column(path, f"{pole}_share"), dtype=np.float64) for pole in poles}

    def usual_size(self, layer: int, index: MemoryIndex) -> float:
        """Return the root mean square of a memory's coefficient over the corpus.

        In layers without gates, only positions where it is above 0 count; if there are none, all count.
        """
        row, found = self.row(layer, index), self.statistics
        square = float(found["mean"][row] ** 2 + found["variance"][row])
        active = 1.0 if self.has_signs else float(found["active_fraction"][row]) or 1.0
        return (square / active) ** 0.5

    def value_norm(self, layer: int, index: MemoryIndex) -> float:
        """Return the length of a memory's value vector, multiplied by the gain of the norm after the FFN, if any."""
        return float(self.statistics["value_norm"][self.row(layer, index)])

    @cached_property
    def bounds(self) -> np.ndarray:
        """The first row of each layer in the arrays, and at the end the number of rows."""
        return np.concatenate([[0], np.cumsum(self.manifest.layers)])

    @property
    def n_keys(self) -> int:
        """Number of memories (FFN neurons) of all layers."""
        return int(self.bounds[-1])

    def experts_of(self, layer: int) -> tuple[int, int] | None:
        """Return the number of a layer's routed experts and of memories in each; None for a layer without experts."""
        stored = self.manifest.settings.get("experts")
        return None if not stored or stored[layer] is None else (int(stored[layer][0]), int(stored[layer][1]))

    def memory_name(self, layer: int, number: int, pole: Pole = "positive") -> str:
        """Write the name of a memory: L5M278, or L12E7M345 in a layer of experts; -L5M278 for negative coefficients."""
        return memory_name(layer, number, self.experts_of(layer), pole)

    def memory(self, layer: int, index: MemoryIndex) -> tuple[int, int]:
        """Return layer and index of a memory as numbers from 0; negative numbers count from the end.

        `index` may also be a pair (expert, index in the expert).

        Raises:
            OutOfRange: there is no such layer or memory.
        """
        layers = self.manifest.layers
        if isinstance(index, tuple):
            experts = self.experts_of(layer) if -len(layers) <= as_int("layer", layer) < len(layers) else None
            expert, within = as_expert_pair("memory", index)
            n, width = experts or (0, 0)
            if experts is None or not within >= 0 or (expert is not None and not (0 <= expert < n and within < width)):
                why = (
                    "its FFN is not a mixture of experts"
                    if experts is None
                    else f"it has {n} experts of {width} memories each"
                )
                raise OutOfRange(f"expert {expert}, memory {within} of layer {layer}", why=why)
            index = n * width + within if expert is None else expert * width + within
        layer, index = as_int("layer", layer), as_int("memory", index)
        for what, number, n in (("layer", layer, len(layers)), (f"memory in layer {layer}:", index, None)):
            n = layers[layer] if n is None else n
            if not -n <= number < n:
                known = f"{self.provenance.model} has {n}, counted 0 to {n - 1}"
                raise OutOfRange(f"{what} {number}", why=known if n else "the index was built without this layer")
        return layer % len(layers), index % layers[layer]

    def row(self, layer: int, index: MemoryIndex) -> int:
        """Return the row of a memory in every array.

        Raises:
            OutOfRange: there is no such layer or memory.
        """
        layer, index = self.memory(layer, index)
        return int(self.bounds[layer]) + index

    def memory_columns(self, rows: np.ndarray, poles: Sequence[Pole] | None = None) -> dict[str, list[Any]]:
        """Return the columns layer and index of a table of memories, given by their rows in the arrays.

        If memories belong to experts, or `poles` are given, there is also a column with the memories' names.
        """
        layer = np.searchsorted(self.bounds, rows, side="right") - 1
        columns: dict[str, list[Any]] = {"layer": layer.tolist(), "index": (rows - self.bounds[layer]).tolist()}
        if poles is not None or self.manifest.settings.get("experts"):
            signs: list[Pole] = ["positive" for _ in rows] if poles is None else list(poles)
            columns["memory"] = [
                self.memory_name(*one) for one in zip(columns["layer"], columns["index"], signs, strict=True)
            ]
        return columns if poles is None else columns | {"pole": list(poles)}

    def token_id(self, token: str | int) -> int:
        """Return the id of a token given by its text or id.

        Raises:
            NotOneToken: the text is not one token.
            OutOfRange: the id is not in the vocabulary.
        """
        if not isinstance(token, str):
            token = as_int("token", token)
            if not 0 <= token < len(self.strings):
                raise OutOfRange(f"token {token}", why=f"the ids of the vocabulary are 0 to {len(self.strings) - 1}")
            return token
        if token not in self._by_string:
            spaced = f" {token}"
            hint = f"Try {spaced!r} with its leading space" if spaced in self._by_string else ""
            model = self.provenance.model
            raise NotOneToken(
                f"{token!r} is not one token", why=f"the vocabulary of {model} has no such token", instead=hint
            )
        return self._by_string[token]

    def top_tokens(self, rows: np.ndarray, negative: np.ndarray | None = None) -> list[list[str]]:
        """Return the eight tokens that the memory in each row promotes most.

        Args:
            negative: True for rows whose coefficient is negative, so that the tokens with the lowest scores are
                promoted; all are positive when None. An older index does not store those tokens; the lists are then
                empty.
        """
        ids = np.asarray(self.readings[0][rows, :_SHOWN_TOKENS])
        if negative is not None and negative.any():
            low = self.suppressed
            ids = ids.copy()
            ids[negative] = -1 if low is None else low[0][rows[negative], :_SHOWN_TOKENS]
        return [[self.strings[i] for i in row if i >= 0] for row in ids.tolist()]

    def is_signed(self, layer: int) -> bool:
        """Return whether the index stores positive and negative coefficients of a layer's memories."""
        return self.has_signs and self.manifest.layers[layer] > 0

    @property
    def has_signs(self) -> bool:
        """Whether the index stores positive and negative coefficients; False before the part `triggers` is built."""
        return self.manifest.has("triggers") and "negative" in self.trigger_lists

    def table(self, title: str, columns: Any) -> Table:
        """Make a table with the index's provenance."""
        return Table(title, columns, self.provenance)


def shortened(text: str) -> str:
    """Shorten a text so that it fits a title."""
    return text if len(text) <= 40 else text[:39] + "…"
