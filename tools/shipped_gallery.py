"""Write the gallery that ships with wren: its best memories over the whole shipped corpus.

python -m tools.shipped_gallery
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import unembed
from unembed.corpus import open_corpus
from unembed.gallery import FILE
from unembed.models.shipped_models import shipped_folder


def main() -> None:
    """Index the shipped corpus again and replace the gallery in the package."""
    lm = unembed.load("wren")
    with tempfile.TemporaryDirectory() as folder:
        corpus = open_corpus(detokenize=True)
        gallery = unembed.Index.build(lm, corpus, Path(folder) / "index").memories()
    gallery.save(shipped_folder("wren") / FILE)
    print(f"{len(gallery)} memories; the first: {gallery[0].name}, {gallery[0].description}")


if __name__ == "__main__":
    main()
