"""Messages of other libraries are quoted by the sentence, never cut."""

from __future__ import annotations

import pytest

from unembed.errors import ModelUnavailable, first_sentence

LONG = "a word " * 60 + "at the end"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("It failed. Report it upstream.", "It failed."),
        ("No file model.safetensors in  /a/b.c\nThe traceback follows", "No file model.safetensors in /a/b.c"),
        ("Loading ... failed: see v1.2.3 for more", "Loading ... failed: see v1.2.3 for more"),
        (LONG, LONG),
        ("", "ValueError"),
    ],
)
def test_the_first_sentence_is_whole(text: str, sentence: str) -> None:
    assert first_sentence(ValueError(text)) == sentence
    assert str(ModelUnavailable("model x", why=first_sentence(ValueError(text)))).count("\n") == 0


def test_a_message_that_ends_with_a_sign_gets_no_second_one() -> None:
    for ending in (".", "!"):
        assert str(ModelUnavailable("model x", why=f"it is gone{ending}", instead="Name another")) == (
            "model x: it is gone. Name another."
        )
