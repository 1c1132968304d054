"""Classes read from a file are those that would be built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unembed
from unembed.concepts.class_files import embedding_clusters, vocabulary_classes
from unembed.concepts.token_classes import Classes

TOKENS = [" January", " May", " June", " July", " dog", " cat", "ing", "1984", "\ud800", "é"]


def same(left: Classes, right: Classes) -> bool:
    texts = (left.tokens, left.names, left.kinds, left.evidence) == (
        *(right.tokens, right.names, right.kinds, right.evidence),
    )
    numbers = [(getattr(left, name), getattr(right, name)) for name in ("sizes", "starts", "classes")]
    return texts and all(np.array_equal(a, b) for a, b in numbers)


def test_the_shipped_classes_are_what_the_code_builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))
    lm = unembed.load()
    strings = lm.vocabulary.strings(torch.arange(lm.d_vocab))
    assert same(vocabulary_classes(strings), Classes.build(strings))
    from unembed.memories.clustering.value_clusters import cluster

    for name in ("wren", "attn-0l", "attn-1l", "attn-2l"):
        W_E = unembed.load(name).weights.W_E.detach().float()
        expected = cluster(W_E, len(W_E) // 20).numpy()
        found = embedding_clusters(W_E.numpy(), lambda: pytest.fail("not shipped: run tools/shipped_classes.py"))
        assert np.array_equal(found, expected)
    assert not list(tmp_path.iterdir())  # read from the package, so nothing was written


def test_other_classes_are_built_once_and_read_from_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    built = vocabulary_classes(TOKENS)
    assert same(built, Classes.build(TOKENS))
    monkeypatch.setattr(Classes, "build", lambda tokens: pytest.fail("built again"))
    assert same(vocabulary_classes(TOKENS), built)
    with pytest.raises(pytest.fail.Exception):
        vocabulary_classes([*TOKENS, " another"])


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"text"])
def test_a_damaged_file_is_built_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: bytes) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))
    built = vocabulary_classes(TOKENS)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    assert same(vocabulary_classes(TOKENS), built)
    assert path.stat().st_size > len(damage)


def test_a_cache_that_cannot_be_written_to_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "file"))
    assert same(vocabulary_classes(TOKENS), Classes.build(TOKENS))


def test_neighbours_are_added_as_if_counted_one_by_one() -> None:
    tokens = [f" word{chr(97 + i)}" for i in range(12)]
    clusters = np.array([0, 1, 0, 1, 0, 2, 0, 1, 1, 0, 3, 3])
    plain = Classes.build(tokens)
    classes = plain.with_neighbours(clusters)
    assert classes.names == (*plain.names, "neighbours 0", "neighbours 1")
    for token, cluster in enumerate(clusters):
        expected = [*plain.of(token), *([len(plain.names) + cluster] if cluster < 2 else [])]
        assert classes.of(token).tolist() == expected
    assert classes.sizes.tolist() == [*plain.sizes, 5, 4]
