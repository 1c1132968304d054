"""The command below a result that opens the explorer on it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from typer.testing import Result

import unembed
from unembed.cli.explorer_link import edits_in_address, explorer_command, print_explorer_link
from unembed.cli.option_groups import Opening


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


def test_the_default_model_is_not_named():
    assert explorer_command(Opening(), "atlas") == "unembed serve --view atlas"


def test_edits_are_in_the_address_and_a_result_that_the_page_cannot_show_has_no_link(capsys):
    made = [
        unembed.set_coefficient(5, 278, 3.0),
        unembed.scale_head(1, 4, 0.5, positions="last"),
        unembed.add_to_coefficient(2, 7, -1.25, positions=[0, 3]),
        unembed.scale_coefficient(12, (7, 345), 2.0),
        unembed.scale_coefficient(12, (None, 3), 2.0),
    ]
    written = "L5M278:set:3@all;L1H4:scale:0.5@last;L2M7:add:-1.25@0,3;L12E7M345:scale:2@all;L12SM3:scale:2@all"
    assert edits_in_address(made) == written
    assert edits_in_address([]) is None
    print_explorer_link(Opening(), "trace", edits=made[:1])
    assert "L5M278" in capsys.readouterr().err
    print_explorer_link(Opening(), "trace", edits=[*made, unembed.scale_ffn(3, 0.0)])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("value", [1e-8, 123456.789, 1 / 3])
def test_a_number_keeps_all_its_digits(value: float):
    written = edits_in_address([unembed.set_coefficient(0, 1, value)])
    assert written is not None and float(written.split(":")[2].split("@")[0]) == value


def test_the_link_of_a_trace_names_its_position_unless_it_is_the_last(unembed: Callable[..., Result]) -> None:
    for position, named in ((-1, None), (-2, ["1"]), (0, ["0"])):
        lines = unembed("trace", "one two three", "--position", position).stderr.splitlines()
        link = next(line for line in lines if line.startswith("In the explorer: "))
        assert parse_qs(shlex.split(link)[-1].partition("?")[2]).get("position") == named
