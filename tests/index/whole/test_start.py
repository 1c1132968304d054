"""Queries that need no model run without the libraries that take seconds to import."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unembed.index import Index

QUERIES = {
    "status": "index.status()",
    "verify": "index.verify()",
    "triggers": "index.triggers(0, 0)",
    "value tokens": "index.value_tokens(0, 0)",
    "suppressed tokens": "index.value_tokens(0, 0, bottom=True); index.value_norm(0, 0)",
    "description": "from unembed.gallery import saved_descriptions; saved_descriptions(index.provenance, str)",
    "ready index": "from unembed.index import cached_index_of_weights; cached_index_of_weights('')",
    "weights": "from unembed.models import known_weights; known_weights('wren')",
    "promoting": "index.promoting(' January')",
    "search": "index.search('year')",
    "sql": "index.sql('SELECT count(*) FROM triggers, labels')",
    "export": "index.export(folder / 'out.csv', 'csv')",
    "labels": "index.add_label(0, 0, 'a name'); index.sql('SELECT * FROM labels')",
}


def imports(program: str, built: Index, tmp_path: Path) -> list[str]:
    start = (
        "import sys; from pathlib import Path; import unembed; "
        f"folder = Path({str(tmp_path)!r}); index = unembed.Index.open({str(built.path)!r}); "
    )
    end = "; print([name for name in ('torch', 'transformers', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", start + program + end], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])


def test_queries_without_a_model_import_neither_torch_nor_pandas(built: Index, tmp_path: Path) -> None:
    copy = Index.open(shutil.copytree(built.path, tmp_path / "copy"))
    assert imports("; ".join(QUERIES.values()), copy, tmp_path) == []


def test_an_import_of_torch_is_detected(built: Index, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        assert imports("import torch", built, tmp_path) == []
