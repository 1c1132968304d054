"""Mark spaces and invisible characters in tokens for display. All code that displays tokens uses this module.

| in the token | shown as |
|---|---|
| space | `·` |
| newline, tab | `↵`, `⇥` |
| other control characters | their control picture, `␀` to `␟`, `␡` |
| a byte that is not UTF-8 | `⟨0xE2⟩` |
| zero-width, bidirectional controls, odd spaces, private and unassigned code points | `⟨U+200B⟩` |
| a combining mark without a base character | `◌` before it |
| one of the marks above, meant literally | `⟨U+00B7⟩` |

Because the marks themselves are escaped, different texts never look the same.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

_NAMED = {" ": "·", "\n": "↵", "\t": "⇥", "\x7f": "␡"}
_OPEN, _CLOSE, _CARRIER = "⟨", "⟩", "◌"
_MARKS = frozenset([*_NAMED.values(), _OPEN, _CLOSE, _CARRIER, *(chr(0x2400 + code) for code in range(0x20))])
# These characters are invisible, although Unicode classifies them as letters or marks: variation selectors, fillers,
# the grapheme joiner.
_DRAWN_AS_NOTHING = frozenset(
    chr(code)
    for code in (
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    )
)
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})


def visible(token: str | bytes, *, prose: bool = False) -> str:
    """Return the token as plain text in which everything invisible is marked.

    Args:
        token: a token's text, or its bytes, which need not be valid UTF-8. A lone surrogate U+DC80 to U+DCFF in a text
            represents a byte, as in Python's `surrogateescape`.
        prose: True for titles, names and sentences: spaces, and characters that look like the marks, stay as they are.
    """
    return "".join(text for text, _ in _pieces(token, prose))


def quoted(token: str) -> str:
    """Return a token as it is named in a sentence or a title: `"·Paris"`."""
    return f'"{visible(token)}"'


def visible_rich(token: str | bytes, *, style: str = "", prose: bool = False) -> Any:
    """Return the token as a `rich.text.Text` with dimmed marks; square brackets are not interpreted as markup."""
    from rich.text import Text

    text = Text(style=style)
    for piece, is_dim in _dimmed(token, prose):
        text.append(piece, style="dim" if is_dim else None)
    return text


def visible_html(token: str | bytes, *, prose: bool = False) -> str:
    """Return the token as escaped HTML in a `<bdi>`, so that right-to-left letters do not reorder other text."""
    parts = [
        f'<span class="mark">{html.escape(piece)}</span>' if is_dim else html.escape(piece)
        for piece, is_dim in _dimmed(token, prose)
    ]
    return f"<bdi>{''.join(parts)}</bdi>"


def _dimmed(token: str | bytes, prose: bool) -> list[tuple[str, bool]]:
    """Return (text to display, is dimmed) for each character.

    Marks are dimmed unless the token consists of marks only.
    """
    pieces = list(_pieces(token, prose))
    has_letters = any(not is_mark for _, is_mark in pieces)
    return [(piece, is_mark and has_letters) for piece, is_mark in pieces]


def _pieces(token: str | bytes, prose: bool) -> Iterator[tuple[str, bool]]:
    """Yield, for each character, the text to display, and whether this text is a mark that stands for the character."""
    text = token.decode("utf-8", "surrogateescape") if isinstance(token, bytes) else token
    previous = ""
    for char in text:
        if prose and (char == " " or char in _MARKS):
            yield char, False
        elif char in _NAMED:
            yield _NAMED[char], True
        elif char < " ":
            yield chr(0x2400 + ord(char)), True
        elif 0xDC80 <= ord(char) <= 0xDCFF:
            yield f"{_OPEN}0x{ord(char) - 0xDC00:02X}{_CLOSE}", True
        elif char in _MARKS or _is_hidden(char):
            yield f"{_OPEN}U+{ord(char):04X}{_CLOSE}", True
        elif unicodedata.category(char) in ("Mn", "Me") and (
            not previous or previous in _MARKS or _is_hidden(previous)
        ):
            yield _CARRIER, True
            yield char, False
        else:
            yield char, False
        previous = char


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN_CATEGORIES or char in _DRAWN_AS_NOTHING


_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")
_BEGUN = re.compile(r"\\x[c-f][0-9a-f](\\x[89ab][0-9a-f]){0,2}$")
_CONTINUED = re.compile(r"(\\x[89ab][0-9a-f])+")
"""Escaped bytes, such as `\\xe5`, that begin (`_BEGUN`) and continue (`_CONTINUED`) a character in UTF-8."""
_LONGEST_CHARACTER = 4


def join_bytes(tokens: Sequence[str]) -> list[tuple[str, int]]:
    r"""Join consecutive tokens that contain the bytes of one character.

    In a token's text, a byte that is not a character by itself is written `\xe5`. Bytes that do not form a character
    together stay separate.

    Returns:
        The texts, each with the number of tokens that it consists of.

    >>> join_bytes([" city", "\\xe5", "\\x8c", "\\x97", "\\xff"])
    [(' city', 1), ('北', 3), ('\\xff', 1)]
    """
    pieces: list[tuple[str, int]] = []
    start = 0
    while start < len(tokens):
        pieces.append(_first_piece(tokens[start : start + _LONGEST_CHARACTER]))
        start += pieces[-1][1]
    return pieces


def character_at(tokens: Sequence[str], position: int) -> str:
    r"""Return the token at a position; if it contains a part of a character, return that character.

    >>> character_at([" city", "\\xe5", "\\x8c", "\\x97"], 2)
    '北'
    """
    return characters(tokens)[position]


def characters(tokens: Sequence[str]) -> list[str]:
    r"""Return the text of each token; for a token that contains a part of a character, that character.

    >>> characters([" city", "\\xe5", "\\x8c", "\\x97"])
    [' city', '北', '北', '北']
    """
    return [text for text, count in join_bytes(tokens) for _ in range(count)]


def whole_character(before: str, token: str, after: str = "") -> tuple[str, str]:
    r"""Join a token with the bytes before and after it that belong to the same character.

    Args:
        before: the text before the token.
        token: the text of the token.
        after: the text of the next token.

    Returns:
        `before` without the bytes of the joined character, and the character. If the token contains no part of a
        character, or other parts of the character are missing, `before` and `token` are returned unchanged.

    >>> whole_character("in \\xe5\\x8c", "\\x97", " city")
    ('in ', '北')
    """
    if not _ESCAPED.search(token):
        return before, token
    begun = _BEGUN.search(before)
    head = begun[0] if begun else ""
    rest = _CONTINUED.match(after)
    for tail in ("", rest[0] if rest else ""):
        text, _ = _first_piece([head + token + tail])
        if text != head + token + tail:
            return before[: len(before) - len(head)], text
    return before, token


def _first_piece(tokens: Sequence[str]) -> tuple[str, int]:
    if _ESCAPED.search(tokens[0]):
        for count in range(1, len(tokens) + 1):
            escaped = _ESCAPED.sub(lambda byte: chr(0xDC00 + int(byte[1], 16)), "".join(tokens[:count]))
            try:
                return escaped.encode("utf-8", "surrogateescape").decode("utf-8"), count
            except UnicodeError:  # the character is incomplete, or the text has a surrogate
                continue
    return tokens[0], 1
