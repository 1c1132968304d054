"""Write ordinary text as WikiText does, for models that are trained on both: spaces around punctuation."""

from __future__ import annotations

import re

_SPLITS = [
    (re.compile(r"(?<=\d)([.,])(?=\d)"), r" @\1@ "),
    (re.compile(r"(?<=[\w>])([-–])(?=[\w<])"), r" @\1@ "),
    (re.compile(r"(?<![\w>])'(?=[\w<])|(?<=[\w>])'(?!\w)"), " ' "),
    (re.compile(r"(?<=[\w>])('(?:s|re|ve|ll|d|m|t)\b)"), r" \1"),
    (re.compile(r"(?<!@)([,;:?!%()\[\]{}\"“”…]|\.\.+)(?!@)"), r" \1 "),
    # A full stop gets a space before it, except after an initial, a title or an abbreviation with several full stops,
    # or before a lower-case letter.
    (
        re.compile(
            r"(?<![.@])(?<!\b[A-Z])(?<!\b(?:No|St|Dr|Mr|Co|Jr|Lt))(?<!\bMrs)(?<!\.[A-Z])\.(?! +[a-z])(?=[\W]|$)(?![.@])"
        ),
        " . ",
    ),
    (re.compile(r"(?<=[£$])(?=\d)"), " "),
    (re.compile(r"[^\S\n]+"), " "),
]


def tokenized(text: str) -> str:
    """Convert ordinary text to WikiText's tokenisation: spaces around punctuation, ` @-@ ` for `-`, ` @.@ ` for `.`.

    This is the inverse of `unembed.corpus.markup.detokenized`, except for some abbreviations.
    """
    for pattern, put in _SPLITS:
        text = pattern.sub(put, text)
    return "\n".join(line.strip() for line in text.split("\n"))
