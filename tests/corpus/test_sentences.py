"""Sentences of a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unembed.corpus.sentences import sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" The end . It is on . \n", ["The end .", "It is on ."]),
        ("He met Dr. Smith in St. Louis. They ate.", ["He met Dr. Smith in St. Louis.", "They ate."]),
        ('He said " no ! " Then he left .', ['He said " no ! "', "Then he left ."]),
        ("It cost 5.0 dollars, e.g. a lot. 12 people paid.", ["It cost 5.0 dollars, e.g. a lot.", "12 people paid."]),
        ("by the U.S. Army in 1990. F. Scott wrote", ["by the U.S. Army in 1990.", "F. Scott wrote"]),
        (" = = History = = \n \n One . \n", ["= = History = =", "One ."]),
        ("no end", ["no end"]),
        (" \n\n", []),
        ("weigh 0 @.@ 7 kg . <unk> did .", ["weigh 0 @.@ 7 kg .", "<unk> did ."]),
    ],
)
def test_sentences_are_split(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet="aB. ?!\"'\n)(C9", max_size=80))
def test_sentences_lose_nothing(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())
