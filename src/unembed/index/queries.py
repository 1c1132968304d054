"""Queries on an index that need no model: where memories fire, top tokens, text search, status and export."""

from __future__ import annotations

import os
from typing import Any, get_args

import numpy as np
from jaxtyping import Int

from unembed.errors import IndexFault, InvalidInput
from unembed.index import text_search
from unembed.index.export import export
from unembed.index.index_files import IndexFiles, shortened
from unembed.index.labels import Labels
from unembed.index.manifest import fault
from unembed.index.truth import LayerTruth, stored_truth
from unembed.names import MemoryIndex, Pole, PromotedBy
from unembed.results import Table
from unembed.validation import as_path, positive_int


class IndexQueries(IndexFiles):
    """Queries that need only the files of an index."""

    @property
    def poles(self) -> tuple[Pole, ...]:
        """The signs of coefficients that the index stores: "positive", and "negative" for gated layers."""
        return tuple(pole for pole in get_args(Pole) if pole in self.trigger_lists)

    def triggers(
        self, layer: int, index: MemoryIndex, top: int = 25, *, pole: Pole = "positive", context: int | None = None
    ) -> Table:
        """Return the texts on which a memory (FFN neuron) fires most, largest coefficient first.

        Args:
            top: largest number of rows.
            pole: "positive" for the largest coefficients or, in gated layers, "negative" for the most negative ones.
            context: number of tokens to return before the token on which the memory fires; all when None.

        Returns:
            Columns rank, coefficient, document, sentence, position (in the document), prefix (the text before the
            token), token (on which the memory fires), next_token.

        Raises:
            OutOfRange: there is no such memory.
        """
        coefficient, position = self.pole(pole)
        layer, index = self.memory(layer, index)
        row = self.row(layer, index)
        n = min(positive_int("top", top), int((position[row] >= 0).sum()))
        columns = {"rank": list(range(1, n + 1)), "coefficient": coefficient[row][:n].tolist()}
        columns |= self._places(position[row][:n], context)
        return self.table(f"Triggers of key {self.memory_name(layer, index, pole)}, {pole} coefficients", columns)

    def trigger_tokens(self, layer: int, index: MemoryIndex, top: int = 25) -> Int[np.ndarray, " trigger"]:
        """Return the ids of the tokens on which a memory (FFN neuron) fires most, as `triggers` orders them."""
        positions = self.pole("positive")[1][self.row(*self.memory(layer, index))]
        return np.asarray(self.passages.token[positions[positions >= 0][:top]], dtype=np.int64)

    def value_tokens(self, layer: int, index: MemoryIndex, top: int = 30, *, bottom: bool = False) -> Table:
        """Return the top tokens of a memory's value vector, best first: columns rank, token_id, token, score.

        Args:
            top: number of tokens.
            bottom: return the tokens that are suppressed most instead.

        Raises:
            OutOfRange: there is no such memory.
            IndexFault: an earlier version built the index, without suppressed tokens.
        """
        layer, index = self.memory(layer, index)
        readings = self.suppressed if bottom else self.readings
        if readings is None:
            raise IndexFault(
                f"index {self.path} has no suppressed tokens",
                why="an earlier version of unembed built it",
                instead="Run the same build again",
            )
        token, score = (part[self.row(layer, index)][: positive_int("top", top)] for part in readings)
        columns = {"rank": list(range(1, len(token) + 1)), "token_id": token.tolist()}
        columns |= {"token": [self.strings[i] for i in token], "score": score.tolist()}
        end = "Bottom" if bottom else "Top"
        return self.table(f"{end} tokens of value {self.memory_name(layer, index)}", columns)

    def promoting(self, token: str | int, top: int = 20, *, by: PromotedBy = "score") -> Table:
        """Return the memories (FFN neurons) that have a token among the top tokens of their value vectors.

        Args:
            token: a token's text, with its leading space, or its id.
            top: largest number of rows.
            by: sort by "score" (largest first) or by "rank" (of the token among the top tokens, then score).

        Returns:
            Columns layer, index, rank, score, top_tokens. In gated layers, value vectors are also searched negated (for
            negative coefficients), and the columns memory and pole show the sign.

        Raises:
            NotOneToken: the text is not a single token.
        """
        if by not in ("score", "rank"):
            raise InvalidInput(f"by={by!r}", why="memories are sorted by 'score' or by 'rank'")
        number = self.token_id(token)
        tokens, scores = self.readings
        rows, ranks = np.divmod(self.entries_of(number), tokens.shape[1])
        score, signed = np.asarray(scores[rows, ranks]), self.has_signs
        negative = np.zeros(len(rows), dtype=bool)
        if signed and self.suppressed is not None:
            low_rows, low_ranks = np.nonzero(np.asarray(self.suppressed[0]) == number)
            rows, ranks = np.concatenate([rows, low_rows]), np.concatenate([ranks, low_ranks])
            score = np.concatenate([score, -np.asarray(self.suppressed[1])[low_rows, low_ranks]])
            negative = np.concatenate([negative, np.ones(len(low_rows), dtype=bool)])
        order = np.lexsort((-score, ranks)) if by == "rank" else np.argsort(-score, kind="stable")
        best = order[: positive_int("top", top)]
        rows, ranks, score, negative = rows[best], ranks[best], score[best], negative[best]
        poles: list[Pole] | None = ["negative" if one else "positive" for one in negative] if signed else None
        columns: dict[str, Any] = self.memory_columns(rows, poles) | {
            "rank": (ranks + 1).tolist(),
            "score": score.tolist(),
            "top_tokens": self.top_tokens(rows, negative),
        }
        return self.table(f"Values that promote {self.strings[number]!r}, {len(order):,} in all", columns)

    def search(self, text: str, top: int = 20, *, pole: Pole | None = None, context: int | None = None) -> Table:
        """Search the stored texts on which memories (FFN neurons) fire most, and return the strongest matches first.

        Args:
            text: words, which must all occur; "quoted phrases"; `begin*` for words with this beginning.
            top: largest number of rows.
            pole: "positive" or, in gated layers, "negative" coefficients; both when None.
            context: number of tokens to return before the token on which the memory fires; all when None.

        Returns:
            Columns layer, index, rank, coefficient, strength (the coefficient divided by the memory's largest) and
            those of `triggers`; if the index stores both signs, also memory and pole.
        """
        self.need("search")
        match = text_search.match_of(text)
        positive_int("top", top)
        passages = self.passages
        segments = text_search.segments_matching(self.path / "search.sqlite", match)
        names = self.poles if pole is None else (pole,)
        parts: list[tuple[np.ndarray, ...]] = []
        for number, name in enumerate(names):
            coefficient, position = self.pole(name)
            flat = np.asarray(position).reshape(-1)
            rows, ranks = np.divmod(text_search.inside(flat, np.asarray(passages.start), segments), position.shape[1])
            found = coefficient[rows, ranks]
            parts.append((
                rows, ranks, np.full(len(rows), number), position[rows, ranks], found, found / coefficient[rows, 0],
            ))  # fmt: skip
        rows, ranks, of, at, coefficients, strength = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(-strength, kind="stable")
        best: list[int] = []
        for some in text_search.some_at_a_time(order):
            # Several memories may fire on the same text; such a text is searched only once.
            places, which = np.unique(at[some], return_inverse=True)
            matching = np.zeros(len(places), dtype=bool)
            texts = [passages.text(passages.read_to(int(p))) for p in places]
            matching[text_search.prefixes_matching(texts, match)] = True
            best += some[matching[which]].tolist()
            if len(best) >= top:
                break
        best = best[:top]
        poles = [names[i] for i in of[best].tolist()] if len(self.poles) > 1 else None
        columns: dict[str, Any] = self.memory_columns(rows[best], poles) | {
            "rank": (ranks[best] + 1).tolist(),
            "coefficient": coefficients[best].tolist(),
            "strength": strength[best].tolist(),
        }
        return self.table(f"Triggers with {shortened(text)!r}", columns | self._places(at[best], context))

    def _places(self, positions: np.ndarray, context: int | None) -> dict[str, list[Any]]:
        if context is not None:
            context = positive_int("context", context, 0)
        return self.passages.place_columns(positions, context)

    def status(self) -> dict[str, Any]:
        """Return model, corpus, settings, state of the build and size of each part, as JSON values."""
        manifest = self.manifest
        parts: dict[str, int] = {}
        for entry in manifest.files:
            parts[entry.part] = parts.get(entry.part, 0) + entry.size
        return {
            "path": str(self.path),
            "state": manifest.state,
            "provenance": self.provenance.to_dict(),
            "weights": manifest.weights,
            "settings": dict(manifest.settings),
            "layers": len(manifest.layers),
            "keys": self.n_keys,
            "poles": list(self.trigger_lists) if manifest.has("triggers") else [],
            "facts": dict(manifest.facts),
            "parts": parts,
            "bytes": sum(parts.values()),
            "labels": len(Labels(self.path).rows(of="all")),
            "truth": None if (truth := self.truth) is None else truth.line(),
        }

    @property
    def truth(self) -> LayerTruth | None:
        """The result of `measure_truth` for each layer; None if it was not run.

        Raises:
            InvalidInput: the file is damaged.
        """
        return stored_truth(self.path)

    def verify(self) -> Table:
        """Check every file against its checksum: columns file, part, bytes, fault (None if the file is intact)."""
        entries = self.manifest.files
        columns = {
            "file": [entry.path for entry in entries],
            "part": [entry.part for entry in entries],
            "bytes": [entry.size for entry in entries],
            "fault": [fault(self.path, entry) for entry in entries],
        }
        return self.table(f"Files of index {self.path}", columns)

    def export(
        self,
        path: str | os.PathLike[str],
        kind: str = "parquet",
        *,
        layer: int | None = None,
        context: int | None = None,
    ) -> int:
        """Write the texts on which memories (FFN neurons) fire most to one file, and return the number of rows.

        Args:
            kind: "parquet", "jsonl" or "csv".
            layer: write only this layer; all when None.
            context: number of tokens before the token on which the memory fires; all when None.

        Raises:
            InvalidInput: the format is unknown, or the file cannot be created.
            UnembedError: the disk is full; an earlier file of that name is left as it was.
        """
        return export(self, as_path(path), kind, layer=layer, context=context)
