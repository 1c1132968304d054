"""WikiText's markup: titles, articles, and its tokenisation in both directions."""

from __future__ import annotations

from unembed.corpus.markup import articles, detokenized, title


def test_wikitext_markup() -> None:
    assert title(" = Homarus gammarus = \n") == "Homarus gammarus"
    assert title(" = = Description = = \n") is None and title("a = b = c") is None
    lines = [" \n", " = A = \n", " \n", " text \n", " = = B = = \n", " \n", " = C = \n", " \n", " y \n"]
    assert [name for name, _ in articles(lines)] == ["A", "C"]
    assert "".join(text for _, text in articles(lines)) == "".join(lines[1:])
    raw = " a 0 @.@ 7 kg – 5 @,@ 000 well @-@ known ( 24 in ) , called \" red \" ; it 's <unk> do n't . "
    assert detokenized(raw) == "a 0.7 kg – 5,000 well-known (24 in), called \"red\"; it's <unk> don't."
