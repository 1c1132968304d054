"""Table 1 of Geva et al. 2021: five keys of WikiLM and the patterns of their triggers.

With the paper's checkpoint in `UNEMBED_WIKILM` and the training text of WikiText-103 (or a part) in `UNEMBED_WIKITEXT`,
the triggers of the five keys must show the patterns. Everywhere, a look-alike must: a small WikiLM in which one key
fires on a word, next to keys of random weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import unembed
from tests.models.architectures.test_wikilm import wikilm
from unembed.corpus import Corpus, open_corpus
from unembed.corpus.token_stream import TokenStream
from unembed.models.architectures.word_level import SPECIALS, word_tokenizer
from unembed.models.decoder import Decoder
from unembed.reports.geva2021.triggers import KeyTriggers, reducer
from unembed.sweeps import sweep

TOP = 25
PATTERNS = {
    (0, 449): r"\bsubstitutes$",
    (5, 2546): r"\bbases?$",
    (9, 2997): r"\bpart of\b",
    (12, 2989): r"(?:\b(?:until|till|to|between|from)|\d(?: [ap] ?\.? ?m\.?)?|\band \d+)$",
    (15, 1935): r"\b(?:episodes?|series|season|television|broadcast|aired|network|show|NBC|ABC|CBS|BBC|Fox|viewers)\b",
}
"""Layer (from 0) and number of each key, and what ends its triggers, or is in them, in most cases."""


def triggers_of(lm: Decoder, corpus: Corpus, keys: Sequence[tuple[int, int]]) -> list[list[str]]:
    """The texts of the keys' triggers."""
    (lists,) = sweep(lm, corpus, [reducer("prefixes", TOP)], tokens_per_batch=2048)
    text, found = TokenStream.of(corpus.segments(lm)), KeyTriggers.of_sweep(lists)
    rows = [found.positions[found.row(layer, found.key(layer, key))] for layer, key in keys]
    return [[lm.decode(text.prefix(p, special=False).tolist()) for p in row.tolist() if p >= 0] for row in rows]


def share(prefixes: Sequence[str], pattern: str) -> float:
    """The share of prefixes with the pattern."""
    return float(np.mean([bool(re.search(pattern, prefix.strip())) for prefix in prefixes]))


@pytest.mark.skipif("UNEMBED_WIKILM" not in os.environ, reason="the paper's checkpoint is not here (UNEMBED_WIKILM)")
def test_five_keys_of_wikilm_have_the_patterns_of_table_1() -> None:
    lm, corpus = unembed.load(os.environ["UNEMBED_WIKILM"]), open_corpus(os.environ["UNEMBED_WIKITEXT"])
    for prefixes, (key, pattern) in zip(triggers_of(lm, corpus, list(PATTERNS)), PATTERNS.items(), strict=True):
        assert len(prefixes) == TOP
        assert share(prefixes, pattern) > 0.5, (key, prefixes)


def test_a_key_that_fires_on_a_word_has_its_pattern_and_random_keys_have_not() -> None:
    random = np.random.default_rng(0)
    words = [*SPECIALS, "substitutes", *(f"w{i}" for i in range(96 - len(SPECIALS)))]
    texts = [" ".join(random.choice(words[len(SPECIALS) :], 12)) for _ in range(150)]
    lm = unembed.load(wikilm(), tokenizer=word_tokenizer(words))
    corpus = open_corpus(texts, markup="plain")
    layer, key, word = 0, 5, words.index("substitutes")
    at_word, elsewhere = [], []
    for text in texts[:60]:
        ids = lm.encode(text)
        x = lm.run(ids, "mlp_in")["mlp_in"][layer, 0]
        at_word += list(x[ids[0] == word])
        elsewhere += list(x[ids[0] != word])
    with torch.no_grad():
        site = lm.hf.model.layers[layer].fc1
        site.weight[key] = 3 * (torch.stack(at_word).mean(0) - torch.stack(elsewhere).mean(0))
        site.bias[key] = 0
    lm = unembed.load(lm.hf, tokenizer=lm.tokenizer)
    found = triggers_of(lm, corpus, [(layer, key), *((layer, n) for n in range(6, 12))])
    assert len(found[0]) == TOP and share(found[0], PATTERNS[0, 449]) > 0.7
    assert max(share(prefixes, PATTERNS[0, 449]) for prefixes in found[1:] if prefixes) < 0.5
