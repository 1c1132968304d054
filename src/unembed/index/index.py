"""An open index and its queries."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.errors import IndexFault, InvalidInput, UnembedError
from unembed.index.labels import COLUMNS as LABEL_COLUMNS
from unembed.index.labels import HEAD, Label, Labels
from unembed.index.manifest import Manifest, read_manifest
from unembed.index.queries import IndexQueries
from unembed.index.settings import BuildProgress, IndexSettings
from unembed.lazy import offers
from unembed.names import Among, FiredBy, MemoryIndex, Pole, SignedMemory
from unembed.results import Table
from unembed.validation import as_path, as_str, finite_float, positive_int

if TYPE_CHECKING:  # so that an index can be read without importing torch
    import numpy as np

    from unembed.corpus import CorpusSource
    from unembed.gallery import Gallery
    from unembed.index.coefficients import CoefficientsView
    from unembed.index.contexts import ContextsView
    from unembed.index.estimate import Estimate
    from unembed.index.sql import Sql
    from unembed.index.truth import LayerTruth
    from unembed.index.vectors import Vectors
    from unembed.models.decoder import Decoder
    from unembed.sweeps import Ray


_RANKING = ".ranking"
"""The name of the folder that stores the finished steps of a ranking until the ranking is complete."""
_TOP_TOKENS = 30
"""Number of top tokens of each value vector that a ranking of memories uses."""


@offers(
    "build open verify export triggers promoting firing_on similar search memories sql labels add_label withdraw_label"
)
class Index(IndexQueries):
    """Stores for every memory (FFN neuron) the texts on which it fires most, its top tokens, and statistics.

    The texts come from one corpus and are called triggers. An index is a folder of files; any number of processes and
    threads may read it at once.

    Attributes:
        manifest: model, corpus, settings and files of the index.
    """

    def __init__(self, path: Path, manifest: Manifest, lm: Decoder | None = None) -> None:
        """Not for direct use: call `Index.open` or `Index.build`."""
        super().__init__(path, manifest)
        self._lm = lm
        self._vectors: dict[str, Vectors] = {}
        self._opening = threading.RLock()

    @classmethod
    def build(
        cls,
        lm: Decoder,
        corpus: CorpusSource,
        path: str | os.PathLike[str],
        top: int | None = None,
        engine: str | Ray = "local",
        resume: bool = True,
        *,
        settings: IndexSettings | None = None,
        tokens_per_batch: int = 2048,
        progress: BuildProgress | None = None,
    ) -> Index:
        """Build an index, finish one whose build was interrupted, or repair one that was damaged; then open it.

        Args:
            corpus: a corpus, or anything that `open_corpus` can open.
            path: a new or empty folder, or one where a build of the same index was interrupted.
            top: number of triggers stored for each memory and sign of its coefficient; `settings.top` (25) when None.
            engine: what runs the model over the corpus: "local", "ray", or a `Ray` object; all give the same result.
            resume: False to refuse a folder that already contains an index.
            progress: called with the name of a part of the index, the amount done, and the total (None if unknown).

        Raises:
            IndexFault: the folder contains another index, or another process is building in it.
            InvalidInput: the folder contains other files, or a setting has an invalid value.
            CorpusUnreadable: the corpus is empty or cannot be read.
            Unsupported: the model has no memories, or the processor does not support bfloat16.
            UnembedError: the disk is full; run the same call again when there is room.
        """
        from unembed.corpus import open_corpus
        from unembed.index.build import build
        from unembed.models.decoder import require_decoder

        folder = as_path(path)
        manifest = build(
            require_decoder(lm),
            open_corpus(corpus),
            folder,
            _settings(settings, top),
            engine=engine,
            tokens_per_batch=tokens_per_batch,
            resume=resume,
            progress=progress,
        )
        return cls(folder, manifest, lm)

    @staticmethod
    def estimate(
        lm: Decoder,
        corpus: CorpusSource,
        top: int | None = None,
        *,
        settings: IndexSettings | None = None,
        tokens_per_batch: int = 2048,
    ) -> Estimate:
        """Estimate the number of tokens, the seconds and the bytes of a build, by running the model on a small sample.

        Raises:
            CorpusUnreadable: the corpus is empty or cannot be read.
            Unsupported: the model has no memories.
        """
        from unembed.corpus import open_corpus
        from unembed.index.estimate import estimate
        from unembed.models.decoder import require_decoder

        return estimate(require_decoder(lm), open_corpus(corpus), _settings(settings, top), tokens_per_batch)

    @classmethod
    def open(cls, path: str | os.PathLike[str], lm: Decoder | None = None, *, partial: bool = False) -> Index:
        """Open an index.

        Args:
            lm: the model, if it is loaded already; otherwise the first query that needs it loads it by its name.
            partial: open an index whose build is not finished, and query its finished parts.

        Raises:
            IndexFault: there is no index, it is not complete, or it was built for another model.
        """
        folder = as_path(path)
        manifest = read_manifest(folder)
        if manifest.state != "complete" and not partial:
            done = ", ".join(dict.fromkeys(entry.part for entry in manifest.files)) or "nothing"
            raise IndexFault(
                f"index {folder} is not complete",
                why=f"its build has finished {done}",
                instead="Run the same build again: it resumes where it stopped (or open it with partial=True)",
            )
        index = cls(folder, manifest)
        if lm is not None:
            index.attach(lm)
        return index

    def attach(self, lm: Decoder) -> None:
        """Use an already loaded model for queries.

        Raises:
            IndexFault: the index was built for another model.
        """
        from unembed.models.decoder import require_decoder

        if why := self.misfit(require_decoder(lm)):
            raise IndexFault(
                f"index {self.path} was not built for {lm.name}",
                why=why,
                instead="Open its own model, or build another index",
            )
        self._lm = lm

    def is_read_by(self, lens: str | None) -> bool:
        """Return whether the stored tokens were computed with the lens of identity `lens`; None is the logit lens."""
        fitted = self.provenance.basis == "jacobian"
        return self.manifest.settings.get("lens") == lens and fitted == (lens is not None)

    def misfit(self, lm: Decoder) -> str | None:
        """Explain why the index does not belong to a model; None if it does."""
        from unembed.models.fingerprint import weights_fingerprint

        provenance, dtype = self.provenance, lm.dtype_name
        if provenance.dtype != dtype:
            return f"it was built with {provenance.model} in {provenance.dtype}, and this is {dtype}"
        if self.manifest.weights != weights_fingerprint(lm):
            return f"the weights are not those of {provenance.model} that it was built with"
        return None

    @property
    def model(self) -> Decoder:
        """The model of the index, which is loaded by its name at the first use.

        Raises:
            IndexFault: the model that now has this name has other weights than the index's model.
            ModelUnavailable: no model of this name can be loaded.
        """
        from unembed.models.decoder import Decoder
        from unembed.models.loading import open_model

        with self._opening:
            if self._lm is None:
                self.attach(Decoder(open_model(self.provenance.model, dtype=self.provenance.dtype)))
            assert self._lm is not None
            return self._lm

    def firing_on(self, text: str, top: int = 20, *, by: FiredBy = "strength") -> Table:
        """Run the model on a new text, and return the memories (FFN neurons) that fire most on it.

        Args:
            top: number of rows.
            by: "strength" (the coefficient divided by the largest that the index stores for the memory, which makes
                memories comparable) or "coefficient" (its absolute value).

        Returns:
            Columns layer, index, pole (the coefficient's sign), coefficient, strength, place (the number of stored
            triggers with a larger coefficient), position and token (where in the text the memory fires), top_tokens
            (the tokens that its value vector promotes at this sign).
        """
        from unembed.index import active_keys

        return active_keys.firing_on(self, self.model, as_str("text", text), positive_int("top", top), by)

    def similar(
        self,
        layer: int,
        index: MemoryIndex,
        top: int = 20,
        *,
        among: Among = "values",
        pole: Pole = "positive",
    ) -> Table:
        """Return the memories (FFN neurons) whose value vectors (or keys) have the largest cosine similarity, exactly.

        Args:
            top: largest number of rows; the memory itself is left out.
            among: "values" to compare value vectors, "keys" to compare keys (in a gated layer, columns of W_gate).
            pole: "negative" to compare with the negated value vector.

        Returns:
            Columns layer, index, cosine, top_tokens. In gated layers, where coefficients have either sign, value
            vectors are also compared negated: the columns memory and pole show the sign with the larger cosine.
        """
        from unembed.index.vectors import Vectors

        layer, index = self.memory(layer, index)
        with self._opening:
            if as_str("among", among) not in self._vectors:
                self._vectors[among] = Vectors(self.model, among, self.manifest.settings.get("layers"))
        vectors = self._vectors[among]
        sign = SignedMemory(layer, index, pole).sign if among == "values" else 1
        cosines = sign * vectors.cosines(vectors.row(layer, index)).cpu()
        signed = among == "values" and self.is_signed(layer)
        sizes = cosines.abs() if signed else cosines.clone()
        sizes[self.row(layer, index)] = -2.0
        best, rows = sizes.topk(min(positive_int("top", top), len(cosines) - 1))
        negative = (cosines[rows] < 0).numpy() & signed
        poles: list[Pole] | None = ["negative" if one else "positive" for one in negative] if signed else None
        columns = self.memory_columns(rows.numpy(), poles) | {
            "cosine": best.tolist(),
            "top_tokens": self.top_tokens(rows.numpy(), negative),
        }
        name = self.memory_name(layer, index, pole if among == "values" else "positive")
        return self.table(f"{among.capitalize()} most similar to {name}", columns)

    def contexts(self, layer: int, index: MemoryIndex, top: int = 10, *, pole: Pole = "positive") -> ContextsView:
        """Return the texts on which a memory fires most, with its coefficient at every token; this runs the model.

        Raises:
            OutOfRange: there is no such memory.
        """
        from unembed.index.contexts import contexts_view

        return contexts_view(self.model, self, *self.memory(layer, index), positive_int("top", top), pole)

    def coefficients(self, layer: int, index: MemoryIndex, *, bins: int = 48) -> CoefficientsView:
        """Return statistics and a histogram of a memory's coefficients, and texts where they are large or small.

        The statistics are of the whole corpus; the histogram and the texts are of a sample, on which the model is run.

        Raises:
            OutOfRange: there is no such memory.
        """
        from unembed.index.coefficients import coefficients_view

        return coefficients_view(self.model, self, *self.memory(layer, index), positive_int("bins", bins))

    def memories(
        self,
        top: int = 200,
        *,
        layers: Sequence[int] | None = None,
        show_unlearned: bool = False,
        seed: int = 0,
        recompute: bool = False,
        progress: BuildProgress | None = None,
    ) -> Gallery:
        """Rank memories (FFN neurons) by the evidence that they do something a person can name (the gallery).

        Five measures, each with a size (0 to 1) and a p-value, make up the evidence:

        - coherence: how similar the contexts are in which the promoted tokens occur in the corpus, compared with random
          words of the same frequencies;
        - concept: a class of tokens to which the promoted tokens belong;
        - pattern: what the texts on which the memory fires most (its triggers) have in common;
        - agreement: how often a promoted token follows a trigger;
        - effect: how far the promoted tokens' probability falls when the memory is removed on its triggers.

        The score is the mean of the five sizes, where a measure with a p-value above 0.01 counts as 0; the pattern
        counts only where the agreement does. Descriptions are generated from the evidence by fixed rules.

        The best 200 memories of all layers are saved with the index and loaded the next time; with another lens
        they are ranked anew. An interrupted ranking continues where it stopped; a damaged file is replaced, with a
        warning. Rows are sorted by score; `Gallery.varied` lists memories that differ first, as the command `unembed
        memories` does.

        Args:
            top: largest number of memories to return.
            layers: the layers to rank; all when None.
            show_unlearned: include tokens that the model never learned among the promoted ones.
            seed: the seed of the random words.
            recompute: rank again even if a gallery is saved, and replace it.
            progress: called with the name of a step, the amount done, and the total.

        Raises:
            IndexFault: the part `triggers` of the index is not built yet, or the index lacks one of the layers.
            InvalidInput: the model has no tokenizer.
        """
        import numpy as np

        from unembed.gallery import FILE, SAVED, Gallery, SavedProgress, TriggerText, rank_memories
        from unembed.jacobian import lens_identity

        default = layers is None and not show_unlearned and seed == 0
        lens = None if self._lm is None else lens_identity(self._lm)
        if default and positive_int("top", top) <= SAVED and not recompute:
            try:
                if (self.path / FILE).exists():
                    found = Gallery.load(self.path / FILE)
                    if self._lm is None or found.is_read_by(lens):
                        return found.first(top)
            except InvalidInput as fault:
                warnings.warn(f"{fault.what} cannot be used: {fault.why}. Ranking anew", stacklevel=2)
        positions = {pole: stored[1] for pole, stored in self.trigger_lists.items()}
        passages = self.passages
        promoted = self._promoted_by_pole(positions)
        token, following, read = np.asarray(passages.token), passages.next_tokens, passages.read_to
        text = TriggerText(token, positions, self.bounds, following, read, promoted)
        held = [layer for layer, size in enumerate(self.manifest.layers) if size]
        chosen = held if layers is None else sorted({self.model.layer(layer) for layer in layers})
        if missing := [str(layer) for layer in chosen if layer not in held]:
            raise IndexFault(
                f"the memories of layer {', '.join(missing)} in {self.path}",
                why=f"the index contains only layers {', '.join(map(str, held))}",
                instead="Choose one of these, or build an index of all layers",
            )
        n = max(top, SAVED) if default else top
        saved = SavedProgress(self.path / _RANKING, f"{n} {lens} {self.provenance.line()}") if default else None
        gallery = rank_memories(
            self.model,
            text,
            n,
            layers=chosen,
            show_unlearned=show_unlearned,
            provenance=self.provenance,
            seed=seed,
            progress=progress,
            saved=saved,
        )
        if saved is not None:
            with suppress(UnembedError):  # an index may be read-only
                gallery.save(self.path / FILE)
                saved.remove()
        return gallery.first(top)

    def _promoted_by_pole(self, poles: Iterable[str]) -> dict[str, np.ndarray] | None:
        """Return, by sign, the stored tokens that each memory promotes; None if fewer than `_TOP_TOKENS` are stored."""
        stored = {"positive": self.readings, "negative": self.suppressed}
        found = {pole: ends[0] for pole in poles if (ends := stored[pole]) is not None}
        enough = len(found) == len(list(poles)) and all(ids.shape[1] >= _TOP_TOKENS for ids in found.values())
        return found if enough else None

    def measure_truth(
        self,
        per_layer: int = 24,
        *,
        corpus: CorpusSource = None,
        contexts: int = 24,
        seed: int = 0,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> LayerTruth:
        """Check by layer whether adding value vectors raises the tokens listed for them; store the result.

        A random sample of each layer's memories (FFN neurons) is measured. Arguments and errors are those of
        `lm.reading_truth`.
        """
        from unembed.index.truth import measured_truth

        layers = [layer for layer, size in enumerate(self.manifest.layers) if size]
        report = progress or (lambda _what, _done, _total: None)
        return measured_truth(self.model, self.path, layers, per_layer, corpus, contexts, seed, report)

    def sql(self, query: str, *, timeout: float = 60.0) -> Table:
        """Run one SELECT on the tables triggers, values, statistics, vocabulary, documents and labels; return its rows.

        The statement cannot write, and cannot read anything outside the index.

        Raises:
            InvalidInput: it is not a SELECT, DuckDB rejects it, or it ran longer than `timeout` seconds.
        """
        query, timeout = as_str("query", query), finite_float("timeout", timeout)
        with self._opening:
            sql = self._sql
        return self.table(query.strip(), sql.select(query, Labels(self.path).columns(), timeout=timeout))

    @cached_property
    def _sql(self) -> Sql:
        from unembed.index import tables
        from unembed.index.sql import Sql

        paths = {name: f"tables/{name}.parquet" for name in tables.NAMES}
        parts = {entry.path: entry.part for entry in self.manifest.files}
        files = {name: path for name, path in paths.items() if path in parts}
        for part in {parts[path] for path in files.values()}:
            self.need(part)
        return Sql(self.path, files)

    def add_label(
        self,
        layer: int,
        index: int,
        label: str,
        *,
        author: str = "",
        kind: str = "memory",
        notes: Mapping[str, Any] | None = None,
    ) -> int:
        """Add a label to a memory or an attention head, and return its number; see `Label` for the arguments."""
        return self.add_labels([Label(layer, index, label, author, kind, notes)])[0]

    def add_labels(self, labels: Iterable[Label]) -> list[int]:
        """Add labels to memories or attention heads, and return the labels' numbers; after an error, none is added.

        Raises:
            OutOfRange: there is no such layer, memory or head.
            InvalidInput: a label is empty or longer than 10,000 characters, or its notes are not JSON.
        """
        placed = []
        for one in labels:
            layer, index = self._memory_or_head(one.layer, one.index, as_str("kind", one.kind) == HEAD)
            placed.append(replace(one, layer=layer, index=index))
        return Labels(self.path).add(placed)

    def _memory_or_head(self, layer: int, index: int, head: bool) -> tuple[int, int]:
        return (self.model.layer(layer), self.model.head(index)) if head else self.memory(layer, index)

    def withdraw_label(self, number: int, *, author: str = "") -> None:
        """Withdraw a label: it is no longer listed, but stays in the file, and a second row records the withdrawal."""
        Labels(self.path).withdraw(number, author=author)

    def labels(self, layer: int | None = None, index: int | None = None, *, of: str = "memory") -> Table:
        """Return the labels of one memory or attention head, of a layer, or all; withdrawn labels are left out.

        Args:
            layer: only labels of this layer.
            index: only labels of the memory or head with this index.
            of: "memory" for labels of memories, their keys and value vectors; "head" for attention heads; or "all".

        Returns:
            Columns id, layer, index, kind, label, author, made, notes.
        """
        if index is not None:
            layer, index = self._memory_or_head(0 if layer is None else layer, index, of == HEAD)
        rows = Labels(self.path).rows(layer, index, of=of)
        return self.table("Labels", {name: [row[name] for row in rows] for name in LABEL_COLUMNS})


def _settings(settings: IndexSettings | None, top: int | None) -> IndexSettings:
    settings = settings or IndexSettings()
    return settings if top is None else replace(settings, top=top)
