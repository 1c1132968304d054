"""Tiny models in folders, as `--model` opens them, and a way to run the command without a new process."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

from tests.families import D_VOCAB, build

_WORDS = ["The", " first", " month", " of", " the", " year", " is", " January", " [red]", "<b>", "\n"]
WORDS = ["<pad>", "<s>", "</s>", *_WORDS, *string.ascii_letters]
"""Token texts of every tiny model; the rest of its vocabulary are words from ` w66` on."""
PROMPT = "The first month of the year is"


def save_model(folder: Path, family: str = "gpt2", *, n_words: int = D_VOCAB) -> Path:
    """A family's tiny model with a tokenizer of whole words, saved as a user would have it."""
    words = [*WORDS, *(f" w{i}" for i in range(len(WORDS), n_words))][:n_words]
    tokenizer = Tokenizer(Unigram([(word, -float(len(word))) for word in words], unk_id=0))
    tokenizer.pre_tokenizer = Split(Regex(r" ?\S+|\s"), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    build(family).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<pad>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 that the tests only read."""
    return save_model(tmp_path_factory.mktemp("gpt2") / "tiny")


@pytest.fixture
def unembed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run `unembed` with arguments; the result has exit_code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> Result:
        from unembed.cli.commands import app

        torch.manual_seed(0)
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run
