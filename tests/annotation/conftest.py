"""Two memories of a tiny model with their top tokens, and annotation files of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unembed
from tests.cli.conftest import save_model
from unembed import annotation


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    lm = unembed.load(save_model(tmp_path_factory.mktemp("annotation") / "tiny"))
    return unembed.value_concepts(lm, [(0, 1), (1, 2)], top=20, embedding=False)


def filled(found, path: Path, patterns: list, annotator: str = "") -> Path:
    annotation.export(found, path)
    sheet = json.loads(path.read_text())
    sheet["annotator"] = annotator
    sheet["vectors"][0]["patterns"] = patterns
    path.write_text(json.dumps(sheet))
    return path
