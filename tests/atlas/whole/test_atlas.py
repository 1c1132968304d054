"""A whole atlas of the embedded model over a small index: built, continued, opened, and with rules that run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tools.atlas_evidence import FIRINGS, WORDS, drawn, evidence, firings, rising

from unembed.atlas import CARD, HEADS, MEMORIES, build_atlas, open_card, read_lines, read_rule
from unembed.atlas.effects import ValueEffects
from unembed.atlas.heads import HEAD_COLUMNS
from unembed.atlas.layer import LayerDescriber
from unembed.atlas.lines import SCHEMA
from unembed.corpus import open_corpus
from unembed.errors import InvalidInput
from unembed.index import Index, IndexSettings
from unembed.index.atlas_of_index import atlas_source
from unembed.language_model import LanguageModel, load
from unembed.memories.truth_of_values import unread_windows
from unembed.memories.values import written_values

LAYERS, PER_LAYER = [1, 6], 160


@pytest.fixture(scope="module", autouse=True)
def lenient() -> Iterator[None]:
    """Describe what a whole atlas would leave out: a few memories on a few documents have hardly anything else."""
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in {"DESCRIBED_HITS": 0.55, "DESCRIBED_RATIO": 2.0, "FEWEST": 1}.items():
            patch.setattr(f"unembed.atlas.layer.{name}", limit)
        yield


@pytest.fixture(scope="module")
def wren() -> LanguageModel:
    return load("wren")


@pytest.fixture(scope="module")
def index(wren: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Index:
    corpus = open_corpus(detokenize=True, max_documents=12)
    folder = tmp_path_factory.mktemp("index") / "wren"
    return Index.build(wren, corpus, folder, settings=IndexSettings(top=60, layers=tuple(LAYERS)))


@pytest.fixture(scope="module")
def atlas(wren: LanguageModel, index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("atlas") / "wren"
    _build(wren, index, folder)
    return folder


def _build(wren: LanguageModel, index: Index, folder: Path, **changed: object) -> None:
    given = {"layers": LAYERS, "per_layer": PER_LAYER} | changed
    windows = unread_windows(wren, None, 8)
    build_atlas(wren, atlas_source(index, wren), folder, windows, index.provenance, **given)  # pyright: ignore[reportArgumentType]


def test_every_memory_that_was_drawn_has_a_line_and_every_column_a_meaning(atlas: Path) -> None:
    lines = read_lines(atlas / MEMORIES)
    assert len(lines) == len(LAYERS) * PER_LAYER  # wren's layers have no gate: one sign
    assert {line.layer for line in lines} == set(LAYERS)
    schema = pq.read_schema(atlas / MEMORIES)
    assert schema.names == list(SCHEMA)
    assert all(schema.field(name).metadata[b"description"] for name in SCHEMA)
    assert pq.read_schema(atlas / HEADS).names == list(HEAD_COLUMNS)
    described = [line for line in lines if line.verdict == "described"]
    assert len(described) > 4, Counter((line.layer, line.verdict) for line in lines)
    assert any(line.test_accuracy_control is not None for line in described)
    assert all(line.input and line.output and line.test_output is not None for line in described)
    assert all(line.output is None for line in lines if line.verdict != "described")


def test_a_stored_rule_runs_and_gives_the_stored_score(wren: LanguageModel, index: Index, atlas: Path) -> None:
    source = atlas_source(index, wren)
    part = LayerDescriber(wren, source, unread_windows(wren, None, 4)).testing
    for line in read_lines(atlas / MEMORIES):
        if line.rule is None:
            continue
        holds = read_rule(json.loads(line.rule)).holds(source.text)
        at = source.positions["positive"][source.starts[line.layer] + line.index]
        fires = np.isin(np.arange(len(holds)), at[at >= 0])
        accuracy = (holds[part & fires].mean() + (~holds)[part & ~fires].mean()) / 2
        assert line.test_accuracy == pytest.approx(accuracy, abs=1e-6)
        assert line.firings == (part & fires).sum()


def test_the_output_score_is_the_rank_of_what_adding_the_value_does(wren: LanguageModel, atlas: Path) -> None:
    """Named tokens rise more than most of the vocabulary when the value is added at the test's passages."""
    described = [line for line in read_lines(atlas / MEMORIES) if line.verdict == "described"]
    test = unread_windows(wren, None, 8)[3::4]
    measured = ValueEffects(wren, {"test": test}, seed=0)
    for line in described[:8]:
        vector = written_values(wren, line.layer, torch.tensor([line.index]))
        effect = measured.of(line.layer, vector, "test").rises[0]
        share = torch.tensor([float((effect < effect[token]).double().mean()) for token in line.token_ids]).mean()
        assert line.test_output == pytest.approx(float(share), abs=0.15)  # of all tokens, not equally frequent ones


def test_an_interrupted_build_continues_to_the_same_atlas(
    wren: LanguageModel, index: Index, atlas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "atlas"
    with monkeypatch.context() as patch:
        patch.setattr("unembed.atlas.build.head_columns", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            _build(wren, index, folder)
    with pytest.raises(InvalidInput, match="other settings"):
        _build(wren, index, folder, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr("unembed.atlas.build.LayerDescriber", _interrupt)  # both layers are finished
        _build(wren, index, folder)
    assert {path.name for path in folder.iterdir()} == {path.name for path in atlas.iterdir()}
    assert (folder / MEMORIES).read_bytes() == (atlas / MEMORIES).read_bytes()
    assert (folder / CARD).read_text() == (atlas / CARD).read_text()
    with pytest.raises(InvalidInput, match="it is not empty"):
        _build(wren, index, folder)


def _interrupt(*_given: object, **_named: object) -> None:
    raise KeyboardInterrupt


def test_the_card_counts_the_lines_and_reads_back(atlas: Path) -> None:
    card, lines = open_card(atlas), read_lines(atlas / MEMORIES)
    described = [line for line in lines if line.verdict == "described"]
    assert card.memories == len(lines)
    assert card.described == card.drawn == len(described)
    assert sum(card.of_verdict.values()) == len(lines)
    assert card.passes["input"].value == pytest.approx(np.mean([bool(line.input_passes) for line in described]))
    assert card.passes["output"].value == pytest.approx(np.mean([bool(line.output_passes) for line in described]))
    assert card.to_dict() == json.loads((atlas / CARD).read_text()) | {"examples": card.to_dict()["examples"]}
    text = (atlas / "README.md").read_text()
    assert f"{card.described} of {card.memories} memories" in text
    assert "<title>Atlas of wren</title>" in (atlas / "index.html").read_text()


def test_a_folder_without_an_atlas_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no atlas"):
        open_card(tmp_path)


def test_a_text_of_too_few_documents_is_refused(wren: LanguageModel, index: Index) -> None:
    source = atlas_source(index, wren)
    few = replace(source, document=source.document % 3)
    with pytest.raises(InvalidInput, match="at least 4 documents"):
        LayerDescriber(wren, few, unread_windows(wren, None, 4))


def test_the_evidence_of_a_line_is_what_it_was_tested_on(wren: LanguageModel, index: Index, atlas: Path) -> None:
    source = atlas_source(index, wren)
    describer = LayerDescriber(wren, source, unread_windows(wren, None, 8))
    lines = drawn(read_lines(atlas / MEMORIES), 3, seed=1)
    assert len(lines) == 3 and lines != drawn(read_lines(atlas / MEMORIES), 3, seed=2)
    for line in lines:
        assert line.rule is not None
        holds, shown = read_rule(json.loads(line.rule)).holds(source.text), firings(source, describer, line)
        at = source.positions["positive"][source.starts[line.layer] + line.index]
        tested = [p for p in at if p >= 0 and describer.testing[p]][:FIRINGS]
        assert [row.strip()[0] for row in shown] == ["+" if holds[p] else "-" for p in tested]
        token = [source.text.strings[source.text.token[p]].replace("\n", "\\n") for p in tested]
        assert all(f"[{one}]" in row for one, row in zip(token, shown, strict=True))
        vector = written_values(wren, line.layer, torch.tensor([line.index]))
        rises = describer.measured.of(line.layer, vector, "test").rises[0][describer.words.tokens]
        ids = describer.words.tokens[rises.argsort(descending=True)][:WORDS].tolist()
        assert rising(wren, source, describer, line) == [text.strip() for text in wren.token_strings(ids)]
        assert all(part in evidence(wren, source, describer, line) for part in (line.description or "", *shown))
