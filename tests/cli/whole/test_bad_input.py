"""Bad input: one line on stderr that says what to do, nothing on stdout, exit 1 (usage: 2), nothing half-written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.cli.conftest import PROMPT, save_model
from tests.families import build

Run = Callable[..., Result]


def refused(result: Result) -> str:
    """The one line of a command that failed."""
    assert result.exit_code == 1, (result.exit_code, result.stdout, result.exception)
    assert result.stdout == ""
    assert result.stderr.startswith("unembed: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


BAD: dict[str, tuple[tuple[object, ...], str]] = {
    "empty prompt": (("trace", ""), "empty"),
    "prompt longer than the context": (("trace", "The" + " first" * 80), "64"),
    "layer too high": (("trace", PROMPT, "--layer", 2), "counted 0 to 1"),
    "position too high": (("trace", PROMPT, "--position", 7), "0 to 6"),
    "layer of an edit": (("trace", PROMPT, "--set", "5.1=1"), "counted 0 to 1"),
    "index of an edit": (("trace", PROMPT, "--set", "0.9999=1"), "9999"),
    "layer of a value": (("value", 7, 0), "counted 0 to 1"),
    "index of a value": (("value", 0, 4000), "4000"),
    "no leading space": (("trace", PROMPT, "--token", "January"), "Try ' January' with its leading space"),
    "several tokens": (("explain", PROMPT, "--token", " first month"), "is not one token"),
    "other is several tokens": (("explain", PROMPT, "-t", " is", "--against", " of the"), "is not one token"),
    "unknown dtype": (("trace", PROMPT, "--dtype", "int3"), "float32"),
    "no device's name": (("trace", PROMPT, "--device", ":"), "Use cpu, or one that unembed doctor lists"),
    "a device that is not here": (("trace", PROMPT, "--device", "cuda:97"), "device 'cuda:97'"),
    "a device without numbers": (("trace", PROMPT, "--device", "meta"), "it holds no numbers"),
    "page in a missing folder": (("trace", PROMPT, "--html", "/nowhere/at/all.html"), "Create it first"),
    "seed too large": (("trace", PROMPT, "--seed", 2**70), "4294967295"),
    "negative seed": (("trace", PROMPT, "--seed", -1), "seed"),
    "no token": (("trace", PROMPT, "--token", ""), "Give a token"),
    "layer of a ranking": (("memories", "--layer", 9), "counted 0 to 1"),
}

_NO_JSON, _NO_TEXT = "it is not JSON (line 1, column 1)", "it is not UTF-8 text"
BAD_FILES: dict[str, tuple[tuple[str, ...], str]] = {
    f"{' '.join(command[:2])} {file}": ((*command, file), helps)
    for *command, file, helps in (
        ("annotate", "import", "words.txt", _NO_JSON),
        ("annotate", "import", "bytes", _NO_TEXT),
        ("annotate", "import", "missing", "No such file"),
        ("annotate", "import", "folder", "Is a directory"),
        ("annotate", "agreement", "words.txt", _NO_JSON),
        ("steer", PROMPT, "--edits", "words.txt", _NO_JSON),
        ("steer", PROMPT, "--edits", "bytes", _NO_TEXT),
        ("toxicity", "evaluate", "--prompts", "bytes", _NO_TEXT),
        ("toxicity", "evaluate", "--prompts", "missing", "No such file"),
        ("toxicity", "evaluate", "--prompts", "empty", "no prompts"),
        ("trace", "--prompts", "bytes", _NO_TEXT),
        ("trace", "--prompts", "folder", "Is a directory"),
        ("early-exit", "evaluate", "words.txt", "it is not a saved rule"),
        ("trace", PROMPT, "--index", "words.txt", "it is not a folder"),
        ("trace", PROMPT, "--index", "folder", "contains no manifest.json"),
        ("trace", PROMPT, "--index", "missing", "no such folder"),
        ("index", "status", "damaged index", "it is not JSON (line 1, column 2)"),
        ("index", "verify", "words.txt", "it is not a folder"),
        ("trace", PROMPT, "--model", "words.txt", "it is a file"),
        ("trace", PROMPT, "--model", "./missing", "there is no such folder"),
        ("trace", PROMPT, "--model", "folder", "no config.json"),
        ("trace", PROMPT, "--model", "", "a model without a name"),
        ("trace", PROMPT, "--model", "no weights", "it contains no weights"),
        ("trace", PROMPT, "--model", "damaged config", "config.json cannot be read: it is not JSON"),
    )
}


@pytest.mark.parametrize(("arguments", "helps"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_one_line_in_our_words(
    unembed: Run,
    gpt2_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    helps: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("These are words.\n")
    Path("bytes").write_bytes(b"\x92\x00\xff" * 40)
    Path("empty").touch()
    for name, file, text in (
        ("folder", "other", ""),
        ("damaged index", "manifest.json", "{,"),
        ("damaged config", "config.json", "{,"),
        ("no weights", "config.json", (gpt2_folder / "config.json").read_text()),
    ):
        Path(name).mkdir()
        (Path(name) / file).write_text(text)
    ours = arguments[0] in ("annotate", "index") or "--model" in arguments
    line = refused(unembed(*arguments, *(() if ours else ("--model", gpt2_folder))))
    assert helps in line
    assert not re.search(r"codec|Expecting|Errno|Traceback", line)


@pytest.mark.parametrize(("arguments", "helps"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line_that_helps(
    unembed: Run, gpt2_folder: Path, arguments: tuple[object, ...], helps: str
) -> None:
    assert helps in refused(unembed(*arguments, "--model", gpt2_folder))


def test_an_unknown_model_without_network(unembed: Run) -> None:
    line = refused(unembed("trace", PROMPT, "--model", "nobody/no-such-model", "--offline"))
    assert "not in the local cache" in line
    assert "wren" in line


def test_a_folder_that_is_not_a_model_is_refused(unembed: Run, tmp_path: Path) -> None:
    assert "config.json" in refused(unembed("trace", PROMPT, "--model", tmp_path))
    assert "no such folder" in refused(unembed("trace", PROMPT, "--model", tmp_path / "absent" / "model"))


@pytest.mark.parametrize("command", [("trace", PROMPT), ("lens", PROMPT), ("steer", PROMPT, "--promote", "January")])
def test_a_folder_without_a_tokenizer_names_the_option(
    unembed: Run, gpt2_folder: Path, tmp_path: Path, command: tuple[object, ...]
) -> None:
    build("gpt2").save_pretrained(tmp_path / "bare")
    line = refused(unembed(*command, "--model", tmp_path / "bare"))
    assert "was opened without a tokenizer" in line and "--tokenizer" in line
    if command[0] == "trace":
        assert unembed(*command, "--model", tmp_path / "bare", "--tokenizer", gpt2_folder).exit_code == 0


def test_a_message_of_transformers_is_not_cut(unembed: Run, tmp_path: Path) -> None:
    folder = save_model(tmp_path / ("deep" * 20) / ("deeper" * 20))
    (folder / "model.safetensors").unlink()
    assert str(folder) in refused(unembed("trace", PROMPT, "--model", folder)).split("folder", 1)[1]


@pytest.mark.parametrize("name", ["long" * 2000, "~nobody-of-that-name/model"])
def test_an_impossible_folder_name_is_refused(unembed: Run, name: str) -> None:
    assert "Give a folder" in refused(unembed("trace", PROMPT, "--model", name))


def test_a_folder_with_damaged_weights(unembed: Run, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "tiny")
    (folder / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      not weights")
    assert str(folder) in refused(unembed("trace", PROMPT, "--model", folder))


def test_tokens_outside_the_vocabulary(unembed: Run, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "tiny", n_words=120)  # the model has 97 rows
    assert "96" in refused(unembed("trace", "The w110", "--model", folder))


def test_weights_that_are_not_finite_are_refused(unembed: Run, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "tiny")
    model = build("gpt2")
    model.transformer.h[1].mlp.c_proj.weight.data[0, 0] = float("nan")  # pyright: ignore
    model.save_pretrained(folder)
    line = refused(unembed("trace", PROMPT, "--model", folder))
    assert "NaN" in line or "not finite" in line


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried 9 bytes."
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("unable to mmap 13810920 bytes from file <model.safetensors>: Cannot allocate memory (12)"),
    ],
    ids=["python", "cpu", "gpu", "file"],
)
def test_out_of_memory_suggests_a_way_on(
    unembed: Run, gpt2_folder: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("unembed.language_model.LanguageModel.trace", fails)
    line = refused(unembed("trace", PROMPT, "--model", gpt2_folder))
    assert "not enough memory" in line
    assert "bfloat16" in line


def test_an_unexpected_error_is_not_hidden(unembed: Run, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("unembed.language_model.LanguageModel.trace", fails)
    assert isinstance(unembed("trace", PROMPT, "--model", gpt2_folder).exception, RuntimeError)


def test_ctrl_c_is_one_line_and_130(unembed: Run, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unembed.language_model.LanguageModel.trace", interrupted)
    result = unembed("trace", PROMPT, "--model", gpt2_folder)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "unembed: Interrupted.\n")


def test_a_page_that_cannot_be_written_leaves_nothing(
    unembed: Run, gpt2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unembed.results.files.os.replace", full)
    line = refused(unembed("trace", PROMPT, "--model", gpt2_folder, "--html", tmp_path / "page.html"))
    assert "No space left on device" in line
    assert list(tmp_path.iterdir()) == []


USAGE: dict[str, tuple[object, ...]] = {
    "no prompt": ("trace",),
    "unknown command": ("trce", PROMPT),
    "unknown option": ("trace", PROMPT, "--nonsense"),
    "edit without a value": ("trace", PROMPT, "--set", "3.5"),
    "edit that is no number": ("trace", PROMPT, "--set", "3.5=much"),
    "unknown basis": ("trace", PROMPT, "--basis", "sideways"),
    "frozen basis of a value": ("value", 0, 0, "--basis", "frozen"),
    "two forms on stdout": ("trace", PROMPT, "--json", "--csv"),
    "top of zero": ("trace", PROMPT, "--top", 0),
}


@pytest.mark.parametrize("arguments", USAGE.values(), ids=USAGE)
def test_wrong_usage_ends_with_2(unembed: Run, arguments: tuple[object, ...]) -> None:
    result = unembed(*arguments, "--model", "/nowhere/at/all") if len(arguments) > 1 else unembed(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage" in result.stderr


def test_control_characters_in_an_error_are_removed(unembed: Run, gpt2_folder: Path) -> None:
    assert "\x1b" not in refused(unembed("trace", PROMPT, "--model", gpt2_folder, "--token", "\x1b[2J"))


def test_a_reader_that_closes_early_is_not_an_error(gpt2_folder: Path) -> None:
    command = f"'{sys.executable}' -m unembed trace 'The first' --model '{gpt2_folder}' --json | head -c 1"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.stderr) == ("{", "")


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "unembed", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **options)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full, which Linux has")
@pytest.mark.parametrize(
    "arguments", [("models",), ("models", "--json"), ("--version",), ("trace", "--help")], ids=" ".join
)
def test_output_that_cannot_be_written_is_one_line(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = process(*arguments, stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "cannot write the output: No space left" in done.stderr


def test_a_closed_pipe_ends_the_command_silently() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = process("models", "--json", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_page_never_takes_the_place_of_a_pipe_or_device(unembed: Run, gpt2_folder: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "device or a pipe" in refused(unembed("trace", PROMPT, "--model", gpt2_folder, "--html", pipe))
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (b"caf\xe9 is", "'caf\\xe9 is': it is not UTF-8: byte 0xE9 at offset 3 begins no valid character. Convert it"),
        ("café is".encode(), "it is UTF-8, but the locale makes Python expect another encoding. Set PYTHONUTF8=1"),
    ],
)
def test_a_prompt_that_is_not_unicode_is_refused_with_a_remedy(gpt2_folder: Path, prompt: bytes, says: str) -> None:
    command = [sys.executable, "-m", "unembed", "trace", prompt, "--model", str(gpt2_folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ASCII}, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and done.stdout == ""
    assert says in done.stderr


def test_a_word_with_half_a_character_is_refused(unembed: Run, gpt2_folder: Path) -> None:
    line = refused(unembed("trace", PROMPT, "--token", "\ud83d", "--model", gpt2_folder))
    assert "half of a character" in line and "surrogate" in line


def test_a_terminal_of_plain_letters_gets_plain_bars_and_json_that_can_be_read(unembed: Run, gpt2_folder: Path) -> None:
    def ran(*more: str) -> str:
        done = process(
            "trace", PROMPT, "--model", str(gpt2_folder), *more, stdout=subprocess.PIPE, env={**os.environ, **ASCII}
        )
        assert done.returncode == 0 and done.stderr.isascii()
        return done.stdout

    drawn = ran()
    assert drawn.isascii() and "|###" in drawn and " > " in drawn and "\\u2588" not in drawn
    plain = unembed("trace", PROMPT, "--model", gpt2_folder, "--json")
    assert json.loads(ran("--json")) == json.loads(plain.stdout)


TRAIN = ("train", "dictionary", "--features", 8, "--active", 2, "--steps", 1)
TOXIC = ("toxicity", "evaluate", "--prompts", "none.jsonl")


@pytest.mark.parametrize(
    "command",
    [
        ("index", "build", "--max-documents", 1),
        TRAIN,
        TOXIC,
    ],
)
def test_a_folder_below_a_file_is_refused(unembed: Run, tmp_path: Path, command: tuple[object, ...]) -> None:
    (tmp_path / "file").write_text("a text")
    result = unembed(*command, "--cache" if command is TOXIC else "--out", tmp_path / "file" / "below")
    assert result.exit_code == 1 and "Not a directory" in result.stderr.splitlines()[-1]
    assert (tmp_path / "file").read_text() == "a text"
