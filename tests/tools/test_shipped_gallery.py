"""The gallery that ships is one of wren's weights, over the corpus that ships, read by the lens that ships."""

from __future__ import annotations

import unembed
from unembed.corpus import open_corpus
from unembed.gallery import FILE, Gallery
from unembed.models.fingerprint import sampled_fingerprint
from unembed.models.shipped_models import shipped_folder


def test_the_shipped_gallery_is_of_the_shipped_weights_and_text():
    lm = unembed.load("wren")
    gallery = Gallery.load(shipped_folder("wren") / FILE)
    assert gallery.provenance.notes["sampled_fingerprint"] == sampled_fingerprint(lm)
    assert gallery.provenance.corpus == open_corpus(detokenize=True).fingerprint
    scores = [row.score for row in gallery]
    assert len(scores) == 200 and scores == sorted(scores, reverse=True)
    lm.use_lens()
    assert gallery.provenance.basis == "jacobian"
    assert all(row.truth is not None and row.is_borne_out for row in gallery)
    for row in list(gallery)[:20]:
        assert set(row.top_tokens) <= set(lm.values.top_tokens(row.layer, row.index, k=60))
