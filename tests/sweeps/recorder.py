"""A reducer that keeps everything, to compare with; tiny models with a tokenizer of letters; texts for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tests.families import D_VOCAB, build
from unembed.corpus.segments import Batch
from unembed.language_model import LanguageModel, load
from unembed.models.decoder import Decoder
from unembed.sweeps import Reducer
from unembed.sweeps.reducers.reducer import Need


class Everything(Reducer):
    """All values of a point at counted positions, with what is known of each position."""

    def __init__(self, point: str = "coefficients") -> None:
        self.point = point

    def start(self, lm: Decoder) -> None:
        self._layers = range(lm.n_layers)
        self._values: dict[int, list[Tensor]] = {layer: [] for layer in self._layers}
        self._facts: list[dict[str, Tensor]] = []

    @property
    def needs(self) -> Collection[Need]:
        return [(self.point, layer) for layer in self._layers]

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        self._values[layer].append(tensor[batch.counted].clone())

    def update(self, batch: Batch) -> None:
        at = batch.counted
        self._facts.append(
            {
                "position": batch.positions[at],
                "column": batch.columns.expand(batch.shape)[at],
                "document": batch.documents[:, None].expand(batch.shape)[at],
                "next": batch.next_tokens[at],
                "length": batch.prefix_lengths[at],
                "row": (torch.arange(batch.shape[0])[:, None].expand(batch.shape) + 100_000 * batch.number)[at],
                "token": batch.tokens[at],
            }
        )

    def merge(self, other: Any) -> None:
        raise NotImplementedError

    def result(self) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Per layer (n, width), and facts of each of the n positions, in the order of the corpus."""
        facts = {name: torch.cat([f[name] for f in self._facts]) for name in self._facts[0]}
        order = facts["position"].argsort()
        return [torch.cat(v)[order] for v in self._values.values()], {n: t[order] for n, t in facts.items()}

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        pass


@cache
def lettered(family: str, dtype: torch.dtype = torch.float32, bos: bool = False) -> LanguageModel:
    """A family's tiny model with a tokenizer of letters; with `bos`, id 1 opens every text."""
    letters = [chr(n) for n in range(32, 32 + D_VOCAB - 3)]
    ids = {"<pad>": 0, "<s>": 1, "<unk>": 2} | {letter: n for n, letter in enumerate(letters, start=3)}
    backend: Any = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", bos_token="<s>")
    return load(build(family, dtype), tokenizer=tokenizer)


def texts(n: int = 40, seed: int = 0, longest: int = 90) -> list[str]:
    """Documents of one-line sentences of random letters, many of them short and some of them equal."""
    random = Random(seed)
    stems = ["the cat ", "a", "of ", "the dog sat", "zebra "]
    return [
        "\n".join(
            random.choice(stems)
            + "".join(random.choices("abcde ", k=random.randrange(random.choice((3, 12, longest)))))
            for _ in range(random.randrange(1, 6))
        )
        for _ in range(n)
    ]
