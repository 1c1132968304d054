"""Split a document into sentences.

Geva et al. split WikiText's lines with a dependency parser (`en_core_web_sm`, on words split at spaces), so their
result depends on one release of a trained model. The rule here needs no model and gives the same result everywhere. A
line break ends a sentence, and a heading is a sentence. Within a line, a sentence ends after `.`, `?` or `!` (closing
quotes and brackets included) if a capital, a digit or an opening bracket follows and the word before is not an
abbreviation. Only blank lines are dropped; as in the papers, sentences have no minimum or maximum length.
"""

from __future__ import annotations

import re

_END = re.compile(r"""(?<=\S)\s?[.?!…](?:\s?(?:''|["'”’)\]]))*\s+(?=["'“‘(\[]?\s?[A-Z0-9ÀÖØ-Þ<])""")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]|Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Sr|Jr|Mt|Ft|vs|etc"
    r"|no|No|vol|Vol|pp|cf|ca|c|ed|eds|fig|Fig|Inc|Ltd|Co|Corp|approx|Jan|Feb|Aug|Sept|Oct|Nov|Dec)\s?$"
)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, without blank lines; runs of white space are replaced by one space."""
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
