"""WikiText's markup: find the titles of articles, and convert its tokenised text to ordinary text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_TITLE = re.compile(r"^ ?= (?!=)(.+?) = ?$")


def title(line: str) -> str | None:
    """Return the title if a line is the title of an article (` = Homarus gammarus = `), else None."""
    found = _TITLE.match(line.rstrip("\n"))
    return found.group(1) if found and not found.group(1).endswith(" =") else None


def looks_like_wikitext(first_lines: Iterable[str]) -> bool:
    """Return whether the first line that is not blank is the title of an article."""
    return title(next((line for line in first_lines if line.strip()), "")) is not None


def articles(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (title, text with its headings) of each article; a title is surrounded by blank lines.

    Text before the first title is an article named "".
    """
    name, lines_of_article, blank_before = "", [], True
    for line in lines:
        found = title(line) if blank_before else None
        if found is not None:
            if any(part.strip() for part in lines_of_article):
                yield name, "".join(lines_of_article)
            name, lines_of_article = found, []
        lines_of_article.append(line)
        blank_before = not line.strip()
    if any(part.strip() for part in lines_of_article):
        yield name, "".join(lines_of_article)


_JOINS = [
    (re.compile(r" @([-,.–])@ "), r"\1"),
    (re.compile(r" ([,.;:?!%)\]}])"), r"\1"),
    (re.compile(r"([(\[{$£]) "), r"\1"),
    (re.compile(r" ('(?:s|re|ve|ll|d|m|t)\b|n't\b)"), r"\1"),
    (re.compile(r'" ([^"\n]*?) "'), r'"\1"'),
    (re.compile(r"' ([^'\n]*?) '"), r"'\1'"),
    (re.compile(r"^ +| +$", re.MULTILINE), ""),
]


def detokenized(text: str) -> str:
    """Convert WikiText to ordinary text: ` @-@ ` becomes `-`, ` , ` becomes `, `.

    `<unk>` stays, because the word that it replaced is not known.
    """
    for pattern, put in _JOINS:
        text = pattern.sub(put, text)
    return text
