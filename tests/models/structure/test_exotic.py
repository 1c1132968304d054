"""The folder of unusual blocks has one border: the names of its package."""

from __future__ import annotations

import re
from pathlib import Path

import unembed
from unembed.models.structure import exotic

ROOT = Path(unembed.__file__).parent
PACKAGE = "unembed.models.structure.exotic"


def test_the_rest_of_the_package_imports_no_module_inside_the_folder() -> None:
    inside = Path(exotic.__file__ or "").parent
    files = [path for path in ROOT.rglob("*.py") if inside not in path.parents]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert sum(f"from {PACKAGE} import" in text for text in texts.values()) > 5
    assert not [path for path, text in texts.items() if re.search(rf"{re.escape(PACKAGE)}\.\w", text)]
