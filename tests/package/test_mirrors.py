"""The tests of a module lie at its path: `src/unembed/a/b.py` is tested by `tests/a/test_b.py`.

A module with many tests may have several files (`test_b_aspect.py`); a package is tested by a file beside its folder.
Tests of a room as a whole lie in the room's folder `whole`, tests of the whole package in the folders `ELSEWHERE`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"browser", "faults", "golden", "package", "parity", "real"}


def source_of(test: Path) -> Path | None:
    """The module or package that a file of tests is of, None where there is none."""
    folder = test.parent if test.parts[0] in ("benchmarks", "tools") else Path("src/unembed") / test.parent
    words = test.stem.split("_")[1:]
    for n in range(len(words), 0, -1):
        source = ROOT / folder / "_".join(words[:n])
        if source.with_suffix(".py").is_file() or (source / "__init__.py").is_file():
            return source
    return None


def test_every_file_of_tests_lies_at_the_path_of_its_module() -> None:
    tests = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(tests) > 150
    mirrored = [path for path in tests if path.parts[0] not in ELSEWHERE and path.parent.name != "whole"]
    assert [str(path) for path in mirrored if source_of(path) is None] == []


@pytest.mark.parametrize("path", ["stream/test_generate.py", "test_trace_of_nothing/test_trace.py", "test_bench.py"])
def test_a_file_without_a_module_is_found(path: str) -> None:
    assert source_of(Path(path)) is None


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("stream/test_generation_steps.py", "src/unembed/stream/generation_steps"),
        ("memories/test_clustering.py", "src/unembed/memories/clustering"),
        ("index/test_memory_search.py", "src/unembed/index/memory_search"),
        ("benchmarks/test_index.py", "benchmarks/index"),
    ],
)
def test_the_module_is_the_longest_name_that_fits(path: str, source: str) -> None:
    assert source_of(Path(path)) == ROOT / source
