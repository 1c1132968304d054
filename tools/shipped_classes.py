"""Write the classes of the shipped models' vocabularies that lie in the package.

python tools/shipped_classes.py
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import unembed
from unembed.concepts import class_files
from unembed.concepts.value_concepts import model_classes
from unembed.version import __version__


def main() -> None:
    """Build every file again and replace those in the package."""
    shutil.rmtree(class_files.SHIPPED, ignore_errors=True)
    class_files.SHIPPED.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UNEMBED_CACHE"] = folder
        for name in ("wren", "attn-0l", "attn-1l", "attn-2l"):
            model_classes(unembed.load(name))
        for path in sorted(Path(folder).glob("*.npz")):
            name = path.name.replace(f"-{__version__}", "")
            shutil.copyfile(path, class_files.SHIPPED / name)
            print(f"{name}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
