"""Several prompts, from arguments, a file or standard input, and the end of long ones."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import unembed as package
from tests.cli.conftest import PROMPT
from unembed.cli.commands import app

Run = Callable[..., Result]
OTHER = "The year is"


def shown(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_several_prompts_are_traced_in_their_order(unembed: Run, gpt2_folder: Path) -> None:
    alone: list[dict[str, Any]] = [
        json.loads(shown(unembed("trace", text, "--model", gpt2_folder, "--json"))) for text in (PROMPT, OTHER)
    ]
    both = json.loads(shown(unembed("trace", PROMPT, OTHER, "--model", gpt2_folder, "--json")))
    assert both == {"schema": "unembed.traces/1", "traces": alone}
    text = shown(unembed("trace", PROMPT, OTHER, "--model", gpt2_folder))
    assert text.count("Memories behind") == 2
    rows = list(csv.DictReader(io.StringIO(shown(unembed("trace", PROMPT, OTHER, "--model", gpt2_folder, "--csv")))))
    assert {row["prompt"] for row in rows} == {"0", "1"}
    assert unembed("trace", PROMPT, OTHER, "--model", gpt2_folder, "--html", "x.html").exit_code == 2


def test_prompts_come_from_a_file_and_from_standard_input(unembed: Run, gpt2_folder: Path, tmp_path: Path) -> None:
    arguments = ("lens", PROMPT, OTHER, "--model", gpt2_folder, "--csv")
    expected = shown(unembed(*arguments))
    file = tmp_path / "prompts.txt"
    file.write_text(f"{PROMPT}\n\n{OTHER}\n", encoding="utf-8")
    assert shown(unembed("lens", "--prompts", file, "--model", gpt2_folder, "--csv")) == expected
    read = CliRunner().invoke(app, ["lens", "-", "--model", str(gpt2_folder), "--csv"], input=f"{PROMPT}\n{OTHER}\n")
    assert shown(read) == expected
    assert unembed("lens", "--model", gpt2_folder).exit_code == 2
    missing = unembed("lens", "--prompts", "nowhere.txt", "--model", gpt2_folder)
    assert missing.exit_code == 1 and "cannot read prompts from nowhere.txt" in missing.stderr


def test_the_end_of_a_prompt_is_what_its_last_tokens_give(unembed: Run, gpt2_folder: Path) -> None:
    lm = package.load(gpt2_folder)
    view = json.loads(shown(unembed("trace", PROMPT, "--last", 3, "--model", gpt2_folder, "--json")))
    ids = lm.encode(PROMPT)[:, -3:]
    assert [token["id"] for token in view["tokens"]] == ids[0].tolist()
    assert view["prediction"][0]["id"] == int(lm.run(ids).logits[0, -1].argmax())


def test_windows_of_a_prompt_are_prompts_of_their_own(unembed: Run, gpt2_folder: Path) -> None:
    lm = package.load(gpt2_folder)
    ids = lm.encode(PROMPT)[0]
    found = json.loads(shown(unembed("trace", PROMPT, "--windows", 4, "--model", gpt2_folder, "--json")))["traces"]
    assert [[token["id"] for token in view["tokens"]] for view in found] == [part.tolist() for part in ids.split(4)]
    assert [view["prompt"] for view in found] == [lm.decode(part) for part in ids.split(4)]
    assert found[0]["prediction"][0]["id"] == int(lm.run(ids[:4]).logits[0, -1].argmax())
    lens = list(
        csv.DictReader(io.StringIO(shown(unembed("lens", PROMPT, "--windows", 4, "--model", gpt2_folder, "--csv"))))
    )
    assert {row["prompt"] for row in lens} == {"0", "1"}
    for refused in (("--last", 2), ("--html", "x.html")):
        assert unembed("trace", PROMPT, "--windows", 4, *refused, "--model", gpt2_folder).exit_code == 2


@pytest.mark.parametrize("command", ["trace", "lens"])
def test_a_prompt_beyond_the_context_is_refused_with_the_way_out(unembed: Run, gpt2_folder: Path, command: str) -> None:
    context = package.load(gpt2_folder).n_ctx
    long = " ".join([PROMPT] * 100)
    refused = unembed(command, long, "--model", gpt2_folder)
    assert refused.exit_code == 1
    for option in ("--last", "--windows"):
        assert f"{option} {context}" in refused.stderr
        assert unembed(command, long, option, context, "--model", gpt2_folder).exit_code == 0


def test_a_file_of_prompts_that_windows_wrote_is_read_and_utf_16_is_refused_by_its_name(
    unembed: Run, gpt2_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(f"\ufeff{OTHER}\r\n{OTHER}\r\n".encode())
    told = json.loads(shown(unembed("trace", "--prompts", file, "--model", gpt2_folder, "--json")))
    assert [one["prompt"] for one in told["traces"]] == [OTHER, OTHER]
    file.write_bytes(f"{OTHER}\n".encode("utf-16"))
    refused = unembed("trace", "--prompts", file, "--model", gpt2_folder)
    assert refused.exit_code == 1 and "it is UTF-16, not UTF-8 text. Save it as UTF-8." in refused.stderr


def test_standard_input_is_read_as_a_file_of_prompts_is(gpt2_folder: Path) -> None:
    def told(given: bytes) -> Result:
        return CliRunner().invoke(app, ["trace", "-", "--model", str(gpt2_folder), "--json"], input=given)

    marked = json.loads(shown(told(f"\ufeff{OTHER}\r\nThe\u2028year\r\n".encode())))
    assert [one["prompt"] for one in marked["traces"]] == [OTHER, "The\u2028year"]
    refused = told(b"caf\xe9")
    assert refused.exit_code == 1
    assert "cannot read prompts from standard input: it is not UTF-8 text. Save it as UTF-8." in refused.stderr
