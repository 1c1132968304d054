"""A document's sentences.

The papers split WikiText's lines at the dependency parser's boundaries (`en_core_web_sm`, on words split at spaces).
That needs one release of one trained model; the rule here needs nothing and gives the same answer everywhere. A line
end
ends a sentence, headings are sentences of their own, and inside a line a sentence ends after `.`, `?` or `!` (closing
quotes and brackets included) when a capital, a digit or an opening sign follows and the word before is no abbreviation.
Nothing is dropped but blank lines, and nothing has a least or largest length, as in the papers.
"""

from __future__ import annotations

import re

_END = re.compile(r"""(?<=\S)\s?[.?!…](?:\s?(?:''|["'”’)\]]))*\s+(?=["'“‘(\[]?\s?[A-Z0-9ÀÖØ-Þ<])""")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]|Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Sr|Jr|Mt|Ft|vs|etc"
    r"|no|No|vol|Vol|pp|cf|ca|c|ed|eds|fig|Fig|Inc|Ltd|Co|Corp|approx|Jan|Feb|Aug|Sept|Oct|Nov|Dec)\s?$"
)


def sentences(text: str) -> list[str]:
    """The sentences of a text, blank lines left out, each as written but for spaces at its ends."""
    found: list[str] = []
    for line in text.splitlines():
        start = 0
        for end in _END.finditer(line):
            before, sign = line[start : end.start()], end.group().strip()
            if sign == "." and _ABBREVIATION.search(before):
                continue
            found.append(line[start : end.end()])
            start = end.end()
        found.append(line[start:])
    return [stripped for sentence in found if (stripped := " ".join(sentence.split()))]
