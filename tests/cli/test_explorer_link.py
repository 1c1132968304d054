"""The command below a result that opens the explorer on it."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import parse_qs

import pytest

import unembed
from unembed.cli.explorer_link import edits_in_address, explorer_command, position_in_address
from unembed.cli.option_groups import Opening


@pytest.fixture(scope="module")
def wren() -> unembed.LanguageModel:
    """The shipped model, to name its memories."""
    return unembed.load("wren")


def test_a_shell_reads_every_option_back_as_it_was_given():
    opening = Opening(model="my model's folder", tokenizer="a b", dtype="bfloat16", offline=True)
    prompt = "50% of $5 & 'more' →\n"
    command = explorer_command(
        opening, "trace", index=Path("my index"), prompt=prompt, token=None, edits="L0M1:set:2@all"
    )
    words = shlex.split(command)
    assert words[:3] == ["unembed", "serve", "--offline"]
    given = dict(zip(words[3::2], words[4::2], strict=True))
    screen, _, query = given.pop("--view").partition("?")
    assert given == {"--model": "my model's folder", "--tokenizer": "a b", "--dtype": "bfloat16", "--index": "my index"}
    assert screen == "trace" and parse_qs(query) == {"prompt": [prompt], "edits": ["L0M1:set:2@all"]}


def test_the_default_model_and_the_last_position_are_not_named(wren):
    assert explorer_command(Opening(), "atlas") == "unembed serve --view atlas"
    assert [position_in_address(wren, "one two three", n) for n in (-1, -2, 0)] == [None, "1", "0"]


def test_edits_of_memories_and_heads_are_in_the_address_and_others_are_left_out(wren):
    made = [
        unembed.set_coefficient(5, 278, 3.0),
        unembed.scale_head(1, 4, 0.5, positions="last"),
        unembed.add_to_coefficient(2, 7, -1.25, positions=[0, 3]),
        unembed.scale_ffn(3, 0.0),
    ]
    assert edits_in_address(wren, made) == "L5M278:set:3@all;L1H4:scale:0.5@last;L2M7:add:-1.25@0,3"
    assert edits_in_address(wren, made[3:]) is None


@pytest.mark.parametrize("value", [1e-8, 123456.789, 1 / 3])
def test_a_number_keeps_all_its_digits(wren, value: float):
    written = edits_in_address(wren, [unembed.set_coefficient(0, 1, value)])
    assert written is not None and float(written.split(":")[2].split("@")[0]) == value
