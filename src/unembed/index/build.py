"""Build an index part by part, so that the same call resumes an interrupted build.

| part | built from | can be rebuilt alone |
|---|---|---|
| `vocabulary` | tokenizer | yes |
| `tokens` (and documents) | corpus | yes |
| `triggers` (and statistics) | a sweep of `tokens`, with a checkpoint | yes |
| `values` | the weights | yes |
| `tables`, `search` | the arrays | yes |

A build that was interrupted and resumed writes exactly the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unembed.corpus import Corpus, Document
from unembed.corpus.token_stream import TokenizedCorpus
from unembed.index import tables
from unembed.index.arrays import SUPPRESSED, by_token, open_poles, open_values, smallest, write_array
from unembed.index.lock import build_lock
from unembed.index.manifest import NAME as MANIFEST_NAME
from unembed.index.manifest import FileEntry, Manifest, write_file, write_manifest
from unembed.index.passages import Passages
from unembed.index.plan import check_place, planned, resumable
from unembed.index.settings import BuildProgress, IndexSettings
from unembed.index.stream_files import open_stream, write_stream
from unembed.index.text_search import write_search
from unembed.memories.values import value_ends, written_values
from unembed.models.decoder import Decoder
from unembed.results import make_folder
from unembed.sweeps import (
    FiringCounts,
    FiringShare,
    MeanVariance,
    Moments,
    Ray,
    RoutedShare,
    Routing,
    Triggers,
    fast_difference,
    sweep,
    usual_sizes,
)

CHECKPOINT = ".sweep"
FIRST_TOKENS = 2048
"""Number of tokens in the batch on which the usual size of each memory's coefficient in gated layers is measured."""


def build(
    lm: Decoder,
    corpus: Corpus,
    folder: Path,
    settings: IndexSettings,
    *,
    engine: str | Ray = "local",
    tokens_per_batch: int = 2048,
    resume: bool = True,
    progress: BuildProgress | None = None,
) -> Manifest:
    """Build the parts of an index that are missing or damaged, and mark the index as complete; see `Index.build`."""
    wanted = planned(lm, corpus, settings)
    check_place(folder)
    make_folder(folder)
    with build_lock(folder):
        if (folder / MANIFEST_NAME).exists():
            manifest = resumable(folder, wanted, resume)
        else:
            manifest = wanted
            write_manifest(folder, manifest)
        return _Builder(lm, corpus, folder, settings, engine, tokens_per_batch, progress).finish(manifest)


class _Builder:
    """Builds the parts of an index in order; each is listed in the manifest before the next one starts."""

    def __init__(
        self,
        lm: Decoder,
        corpus: Corpus,
        folder: Path,
        settings: IndexSettings,
        engine: str | Ray,
        tokens_per_batch: int,
        progress: BuildProgress | None,
    ) -> None:
        self._lm, self._corpus, self._folder, self._settings = lm, corpus, folder, settings
        self._engine, self._tokens_per_batch = engine, tokens_per_batch
        self._progress = progress or (lambda part, done, total: None)

    def finish(self, manifest: Manifest) -> Manifest:
        """Build the missing parts, and return the manifest of the complete index."""
        self._layers = manifest.layers
        self._chosen = [n for n, size in enumerate(manifest.layers) if size]
        parts: dict[str, Callable[[], list[FileEntry]]] = {
            "vocabulary": self._vocabulary,
            "tokens": self._tokens,
            "triggers": self._triggers,
            "values": self._values,
            "tables": self._tables,
            "search": self._search,
        }
        for part, make in parts.items():
            if not manifest.has(part):
                if part == "triggers":
                    manifest = self._with_fast_difference(manifest)
                files = (*manifest.files, *make())
                order = {name: i for i, name in enumerate(parts)}
                files = tuple(sorted(files, key=lambda entry: (order[entry.part], entry.path)))
                manifest = replace(manifest, state="building", files=files)
                write_manifest(self._folder, manifest)
        if manifest.state != "complete":
            manifest = replace(manifest, state="complete", facts=self._facts())
            write_manifest(self._folder, manifest)
        self._clear()
        return manifest

    def _with_fast_difference(self, manifest: Manifest) -> Manifest:
        """Measure how much the setting `fast` changes the first batch's coefficients, and note it in the manifest."""
        if self._settings.fast is None:
            return manifest
        first = next(self._tokenized.batches(self._lm, self._tokens_per_batch))
        change = fast_difference(self._lm, first, self._settings.fast)
        notes = {"fast": self._settings.fast, "largest_change": float(f"{change:.2g}")}
        provenance = manifest.provenance
        return replace(manifest, provenance=replace(provenance, notes={**provenance.notes, **notes}))

    def _write(self, name: str, part: str, write: Callable[[Path], None]) -> FileEntry:
        return write_file(self._folder, name, part, write)

    def _array(self, name: str, part: str, array: np.ndarray) -> FileEntry:
        return self._write(name, part, lambda path: write_array(path, array))

    @property
    def _tokenized(self) -> TokenizedCorpus:
        """The corpus as tokens, read from the finished part `tokens`."""
        return TokenizedCorpus(self._corpus.name, self._corpus.fingerprint, open_stream(self._folder, []))

    @property
    def _passages(self) -> Passages:
        return open_stream(self._folder, tables.read_column(self._folder / "tables/vocabulary.parquet", "token"))

    def _vocabulary(self) -> list[FileEntry]:
        strings = self._lm.token_strings(torch.arange(self._lm.d_vocab))
        return [self._write("tables/vocabulary.parquet", "vocabulary", lambda p: tables.write_vocabulary(p, strings))]

    def _tokens(self) -> list[FileEntry]:
        every = 1 << 14
        shown = 0

        def report(done: int) -> None:
            nonlocal shown
            if done - shown >= every:
                shown = done
                self._progress("tokens", done, None)

        names: list[str] = []

        def read_documents() -> Iterator[Document]:
            for document in self._corpus.documents():
                names.append(document.name)
                yield document

        files = write_stream(self._folder, self._corpus.segments(self._lm, read_documents()), report)
        stream = open_stream(self._folder, [])
        documents = self._write(
            "tables/documents.parquet",
            "tokens",
            lambda p: tables.write_documents(p, names, stream.document, stream.origin),
        )
        return [*files, documents]

    def _triggers(self) -> list[FileEntry]:
        routed = any(self._lm.experts_of(n) for n in self._chosen)
        first = next(self._tokenized.batches(self._lm, FIRST_TOKENS))
        usual = usual_sizes(self._lm, first, self._chosen)
        found, moments, firing, *routing = sweep(
            self._lm,
            self._tokenized,
            [
                self._settings.top_triggers(),
                MeanVariance(layers=self._chosen),
                FiringShare(usual, layers=self._chosen),
                *([RoutedShare([n for n in self._chosen if self._lm.experts_of(n)])] if routed else []),
            ],
            engine=self._engine,
            checkpoint=self._folder / CHECKPOINT,
            tokens_per_batch=self._tokens_per_batch,
            fast=self._settings.fast,
            progress=lambda at: self._progress("triggers", at.tokens, round(at.tokens / max(at.share, 1e-9))),
        )
        entries = []
        for pole, (coefficient, position) in poles_of(found).items():
            entries.append(self._array(f"triggers/{pole}/coefficient.npy", "triggers", coefficient))
            places = smallest(position, len(self._tokenized.stream))
            entries.append(self._array(f"triggers/{pole}/position.npy", "triggers", places))
        columns = self._statistics(moments, firing) | self._routed_share(routing)
        entries.append(
            self._write(
                "tables/statistics.parquet", "triggers", lambda p: tables.write_statistics(p, columns, self._layers)
            )
        )
        return entries

    def _routed_share(self, routing: Sequence[Routing]) -> dict[str, np.ndarray]:
        """Return, for every memory, the share of token positions that the router sent to its expert.

        The share is 1 for memories that belong to no routed expert.
        """
        parts = []
        for layer, n in enumerate(self._layers) if routing else ():
            share = torch.ones(n)
            if n and (experts := self._lm.experts_of(layer)) is not None:
                share[: experts[0] * experts[1]] = routing[0].share(layer).float().repeat_interleave(experts[1])
            parts.append(share)
        return {"routed": torch.cat(parts).numpy()} if parts else {}

    def _statistics(self, moments: Moments, firing: FiringCounts) -> dict[str, np.ndarray]:
        lm, positive, negative = self._lm, torch.cat(firing.positive), torch.cat(firing.negative)
        norms = torch.cat([written_values(lm, n).detach().float().norm(dim=-1).cpu() for n in self._chosen])
        return {
            "mean": torch.cat(moments.mean).float().numpy(),
            "variance": torch.cat(moments.variance).float().numpy(),
            "least": torch.cat(moments.least).float().numpy(),
            "largest": torch.cat(moments.largest).float().numpy(),
            "active": (positive + negative).numpy(),
            "active_fraction": ((positive + negative) / max(1, firing.count)).float().numpy(),
            "positive_share": (positive / max(1, firing.count)).float().numpy(),
            "negative_share": (negative / max(1, firing.count)).float().numpy(),
            "value_norm": norms.numpy(),
        }

    def _values(self) -> list[FileEntry]:
        promoted, suppressed = value_ends(
            self._lm,
            self._settings.top_tokens,
            layers=self._chosen,
            progress=lambda done, total: self._progress("values", done, total),
        )
        sizes = [n for n in self._layers if n]

        def by_key(padded: Tensor) -> np.ndarray:
            return torch.cat([row[:n] for row, n in zip(padded, sizes, strict=True)]).numpy()

        ids, scores = by_key(promoted.ids), by_key(promoted.scores)
        entry, start = by_token(ids, scores, self._lm.d_vocab)
        return [
            self._array("values/token.npy", "values", ids),
            self._array("values/score.npy", "values", scores),
            self._array(f"{SUPPRESSED}/token.npy", "values", by_key(suppressed.ids)),
            self._array(f"{SUPPRESSED}/score.npy", "values", by_key(suppressed.scores)),
            self._array("values/by_token/entry.npy", "values", entry),
            self._array("values/by_token/start.npy", "values", start),
        ]

    def _poles(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return open_poles(self._folder, sum(self._layers), self._settings.top)

    def _tables(self) -> list[FileEntry]:
        self._progress("tables", 0, 1)
        token, score = open_values(self._folder, "values", sum(self._layers))
        return [
            self._write(
                "tables/triggers.parquet",
                "tables",
                lambda p: tables.write_triggers(p, self._poles(), self._layers, self._passages),
            ),
            self._write(
                "tables/values.parquet", "tables", lambda p: tables.write_values(p, token, score, self._layers)
            ),
        ]

    def _search(self) -> list[FileEntry]:
        passages = self._passages
        used = np.unique(
            np.concatenate([passages.segment(at[at >= 0]) for _, at in self._poles().values()] or [np.zeros(0, int)])
        )

        def texts() -> Iterator[tuple[int, str]]:
            for i, segment in enumerate(used.tolist()):
                if i % 1024 == 0:
                    self._progress("search", i, len(used))
                begin, end = int(passages.first[segment]), int(passages.start[segment + 1])
                yield segment, passages.text(passages.token[begin:end])

        return [self._write("search.sqlite", "search", lambda p: write_search(p, texts()))]

    def _facts(self) -> dict[str, Any]:
        passages = self._passages
        return {
            "tokens": len(passages.token),
            "segments": len(passages.start) - 1,
            "documents": int(passages.document[-1]) + 1,
        }

    def _clear(self) -> None:
        """Remove temporary files of interrupted builds."""
        for path in self._folder.rglob(".*.writing"):
            path.unlink(missing_ok=True)
        checkpoint = self._folder / CHECKPOINT
        if checkpoint.is_dir():
            shutil.rmtree(checkpoint)
        checkpoint.unlink(missing_ok=True)


def poles_of(found: Triggers) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the largest ("positive") and most negative ("negative") coefficients, with positions, each (keys, t)."""
    poles = {"positive": (torch.cat(found.values).float().numpy(), torch.cat(found.positions).numpy())}
    if found.negative_values is not None and found.negative_positions is not None:
        poles["negative"] = (
            torch.cat(found.negative_values).float().numpy(),
            torch.cat(found.negative_positions).numpy(),
        )
    return poles
