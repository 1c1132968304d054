"""WikiText's markup: titles, articles, and its tokenisation in both directions."""

from __future__ import annotations

import re
from collections import Counter

from unembed.corpus import open_corpus
from unembed.corpus.markup import articles, detokenized, title, tokenized


def test_wikitext_markup() -> None:
    assert title(" = Homarus gammarus = \n") == "Homarus gammarus"
    assert title(" = = Description = = \n") is None and title("a = b = c") is None
    lines = [" \n", " = A = \n", " \n", " text \n", " = = B = = \n", " \n", " = C = \n", " \n", " y \n"]
    assert [name for name, _ in articles(lines)] == ["A", "C"]
    assert "".join(text for _, text in articles(lines)) == "".join(lines[1:])
    raw = " a 0 @.@ 7 kg – 5 @,@ 000 well @-@ known ( 24 in ) , called \" red \" ; it 's <unk> do n't . "
    assert detokenized(raw) == "a 0.7 kg – 5,000 well-known (24 in), called \"red\"; it's <unk> don't."


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
