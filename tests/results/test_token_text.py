"""Token text on screens: nothing invisible, nothing interpreted, nothing that two texts share."""

from __future__ import annotations

import html
import io
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unembed.results import character_at, characters, join_bytes, visible, visible_html, visible_rich, whole_character

SHOWN = {
    " January": "·January",
    "a b": "a·b",
    "\n\n": "↵↵",
    "\tx": "⇥x",
    "\r": "␍",
    "\x1b[31mred": "␛[31mred",
    "\x00": "␀",
    "\x7f": "␡",
    "zero\u200bwidth": "zero⟨U+200B⟩width",
    "\u202eevil": "⟨U+202E⟩evil",
    "\ufeff": "⟨U+FEFF⟩",
    "\u00a0": "⟨U+00A0⟩",
    "\u2028": "⟨U+2028⟩",
    "\u0301": "◌\u0301",
    "e\u0301": "e\u0301",
    " \u0301": "·◌\u0301",
    "·": "⟨U+00B7⟩",
    "⟨0xE2⟩": "⟨U+27E8⟩0xE2⟨U+27E9⟩",
    "\ufe0f": "⟨U+FE0F⟩",
    "[bold]x[/bold]": "[bold]x[/bold]",
    "<b>&": "<b>&",
    "日本": "日本",
    "": "",
}


@pytest.mark.parametrize(("token", "shown"), SHOWN.items())
def test_each_kind_of_character_is_shown(token: str, shown: str) -> None:
    assert visible(token) == shown
    assert visible_rich(token).plain == shown


def test_bytes_that_are_not_utf8_are_named() -> None:
    assert visible(b"\xe2\x80 a") == "⟨0xE2⟩⟨0x80⟩·a"
    assert visible(" é".encode()) == "·é"
    assert visible("\udce2") == "⟨0xE2⟩"


def test_prose_keeps_its_spaces_but_not_its_control_characters() -> None:
    assert visible("two words · \x1b[0m", prose=True) == "two words · ␛[0m"


def test_rich_never_reads_a_token_as_markup() -> None:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="truecolor", width=80).print(
        visible_rich("[red]x[/red]\x1b]0;t\x07")
    )
    assert "[red]x[/red]" in out.getvalue()
    assert "\x1b]0;" not in out.getvalue()


def test_html_never_reads_a_token_as_markup() -> None:
    shown = visible_html("<script>alert('x')</script> &")
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert shown.startswith("<bdi>")


@given(st.text())
def test_nothing_invisible_is_left(token: str) -> None:
    shown = visible(token)
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp") for char in shown)
    shown.encode("utf-8")


@given(st.text(), st.text())
def test_different_tokens_look_different(one: str, other: str) -> None:
    assert (visible(one) == visible(other)) == (one == other)


@given(st.text(alphabet=" ·⟨⟩U+027B8xE\n↵◌\u0301\u200b\udce2", max_size=12))
def test_marks_can_be_read_back(token: str) -> None:
    assert _read_back(visible(token)) == token


@given(st.text())
def test_the_three_forms_agree(token: str) -> None:
    shown = visible(token)
    assert visible_rich(token).plain == shown
    assert html.unescape(re.sub(r"</?(span|bdi)[^<>]*>", "", visible_html(token))) == shown


@pytest.mark.parametrize("text", ["The city 北京 😀 is", "é", "plain", "", "a\xadb", "😀😀"])
def test_bytes_of_one_character_are_joined(text: str) -> None:
    raw = [bytes([byte]).decode("utf-8", errors="backslashreplace") for byte in text.encode()]
    pieces = join_bytes(raw)
    assert "".join(piece for piece, _ in pieces) == text
    assert [count for _, count in pieces] == [len(char.encode()) for char in text]
    assert [character_at(raw, i) for i in range(len(raw))] == [char for char in text for _ in char.encode()]


def test_bytes_that_make_no_character_stay_apart() -> None:
    tokens = ["\\xe5", " x", "\\xff", "\\x8c", "\\xe5"]
    assert join_bytes(tokens) == [(token, 1) for token in tokens]


@pytest.mark.parametrize("cut", [1, 2])
def test_a_byte_is_shown_as_the_character_of_which_its_neighbours_hold_the_rest(cut: int) -> None:
    raw = [bytes([byte]).decode("utf-8", errors="backslashreplace") for byte in "北".encode()]
    begun, rest = "".join(raw[:cut]), "".join(raw[cut:])
    assert whole_character(f"in {begun}", f"{rest} is") == ("in ", "北 is")
    assert whole_character("in ", begun, f"{rest} is") == ("in ", "北")
    assert whole_character(begun, raw[cut], "".join(raw[cut + 1 :])) == ("", "北")


@pytest.mark.parametrize(
    ("before", "token", "after"),
    [("in", " word", " x"), ("", "\\xe5", " x"), ("\\xff", "\\x97", ""), ("北", "\\x8c", "京")],
)
def test_a_token_without_the_rest_of_its_character_stays(before: str, token: str, after: str) -> None:
    assert whole_character(before, token, after) == (before, token)


def _read_back(shown: str) -> str:
    """The token again, by a reader written independently of the writer."""
    simple = {"·": " ", "↵": "\n", "⇥": "\t", "◌": "", "␡": "\x7f"}

    def one(match: re.Match[str]) -> str:
        if match["point"]:
            return chr(int(match["point"], 16))
        if match["byte"]:
            return chr(0xDC00 + int(match["byte"], 16))
        return simple.get(match[0], match[0])

    return re.sub(r"⟨U\+(?P<point>[0-9A-F]+)⟩|⟨0x(?P<byte>[0-9A-F]{2})⟩|.", one, shown, flags=re.DOTALL)


def test_every_position_of_a_character_has_it_as_its_head() -> None:
    assert characters([" city", "\\xe5", "\\x8c", "\\x97", "\\xff"]) == [" city", *"北北北", "\\xff"]
