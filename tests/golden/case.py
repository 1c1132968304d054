"""What a case is, and the folder with models and indexes in which all of them run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from starlette.testclient import TestClient
from transformers import AutoConfig, AutoModelForCausalLM

import unembed
from unembed import Index, LanguageModel
from unembed.jacobian import cached_lens
from unembed.server.state import ServerState

PROMPT = "The first month of the year is"
OTHER_PROMPT = "The last month of the year is"
SENTENCES = [
    "The first month of the year is January .",
    "She put the book on the table and left the house .",
    "The capital of France is Paris , and the capital of Italy is Rome .",
    "In the spring of 1861 the war began , and in the spring of 1865 the war ended .",
    "The river runs through the old town , and the old town lies by the sea .",
    "He was born in London in 1902 and died in New York in 1971 .",
]


@dataclass(frozen=True)
class Case:
    """A name and what makes its outputs, by their names."""

    name: str
    outputs: Callable[[Place], dict[str, str]]


@dataclass
class Place:
    """The folder in which all cases run, and what they have opened."""

    folder: Path
    opened: dict[Any, LanguageModel] = field(default_factory=dict)
    clients: dict[str, TestClient] = field(default_factory=dict)
    states: list[ServerState] = field(default_factory=list)

    def load(self, model: Any = "wren", **options: Any) -> LanguageModel:
        """`unembed.load`, which opens a model only once; without the lens that an earlier command set."""
        key = (model, *sorted(options.items()))
        if key not in self.opened:
            self.opened[key] = _LOAD(model, **options)
        self.opened[key].lens = None
        return self.opened[key]

    def with_lens(self, model: str) -> LanguageModel:
        """A model of its own, with the lens that a command finds for it."""
        lm = _LOAD(model)
        if (lens := cached_lens(lm)) is not None:
            lm.use_lens(lens)
        return lm

    @cached_property
    def gated(self) -> Path:
        """The folder of the gated model, made when a case first names it."""
        model = self.load("wren")
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            "llama",
            vocab_size=model.d_vocab,
            hidden_size=32,
            intermediate_size=56,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=256,
        )
        made = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_((0.3 if parameter.dim() == 1 else 0.1) * torch.randn_like(parameter))
        made.save_pretrained(Path("gated"))
        assert model.tokenizer is not None
        model.tokenizer.save_pretrained(Path("gated"))
        return Path("gated")

    def index(self, model: str) -> Path:
        """An index of a few sentences, with two labels."""
        path = Path(f"index-{model}")
        if not path.exists():
            index = Index.build(self.with_lens(self.name(model)), SENTENCES * 2, path, top=10)
            index.add_label(1, 5, "months", author="anna")
            index.add_label(1, 9, "months", author="anna")
            index.add_label(2, 3, "places", author="berta", notes={"confidence": 3})
        return path

    def name(self, model: str) -> str:
        """What `--model` takes."""
        return str(self.gated) if model == "gated" else model


_LOAD = unembed.load


@contextmanager
def place() -> Iterator[Place]:
    """A new folder as the working directory, one thread, and a cache of its own."""
    started, threads = Path.cwd(), torch.get_num_threads()
    changed = {"UNEMBED_CACHE": "cache", "UNEMBED_READY_INDEX": "never", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    before = {name: os.environ.get(name) for name in changed}
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        os.chdir(folder)
        os.environ.update({**changed, "UNEMBED_CACHE": f"{folder}/cache"})
        torch.set_num_threads(1)
        made = Place(Path(folder))
        unembed.load = made.load
        try:
            yield made
        finally:
            unembed.load = _LOAD
            for state in made.states:
                state.close()
            os.chdir(started)
            torch.set_num_threads(threads)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
