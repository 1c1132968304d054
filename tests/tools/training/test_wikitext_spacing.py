"""Ordinary text, written as WikiText writes it."""

from __future__ import annotations

import re
from collections import Counter

from tools.training.wikitext_spacing import tokenized

from unembed.corpus import open_corpus
from unembed.corpus.markup import detokenized


def test_tokenized_is_the_way_back_on_real_wikitext() -> None:
    text = "He said: \"It isn't a well-known 3.5 kg (1,400 oz) lobster's claw... is it?\" U.S. Navy, $5. I left."
    assert tokenized(text) == (
        "He said : \" It isn 't a well @-@ known 3 @.@ 5 kg ( 1 @,@ 400 oz ) lobster 's claw ... is it ? \" "
        "U.S. Navy , $ 5 . I left ."
    )
    lines = [line for d in open_corpus(None, max_documents=12).documents() for line in d.text.split("\n")]
    paragraphs = [line.strip() for line in lines if line.strip() and not re.match(r" ?= ", line)]
    words = sum(len(line.split()) for line in paragraphs)
    lost = sum((Counter(line.split()) - Counter(tokenized(detokenized(line)).split())).total() for line in paragraphs)
    assert words > 10_000 and lost < 0.002 * words
