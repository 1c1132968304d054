"""Write the gallery that ships with wren: its best memories over the whole shipped corpus, read by its lens.

python -m tools.shipped_gallery
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import unembed
from unembed.corpus import open_corpus
from unembed.gallery import FILE
from unembed.models.fingerprint import sampled_fingerprint
from unembed.models.shipped_models import shipped_folder, shipped_lens


def main() -> None:
    """Index the shipped corpus again and replace the gallery in the package."""
    lm = unembed.load("wren")
    if (lens := shipped_lens(sampled_fingerprint(lm))) is None:
        raise SystemExit("the package has no lens of these weights: python -m tools.shipped_lens")
    lm.use_lens(unembed.open_lens(lens))
    with tempfile.TemporaryDirectory() as folder:
        corpus = open_corpus(detokenize=True)
        gallery = unembed.Index.build(lm, corpus, Path(folder) / "index").memories()
    gallery.save(shipped_folder("wren") / FILE)
    print(f"{len(gallery)} memories; the first: {gallery[0].name}, {gallery[0].description}")


if __name__ == "__main__":
    main()
