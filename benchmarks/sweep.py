"""What a sweep that keeps the top 25 triggers of every key costs over the plain forward of the same batches.

A1 is the model's own forward without the unembedding, nothing kept. Each round takes the next batch of the stream; all
variants of a round get the same batch, in turning order, and their CPU times on one thread are divided. The lists have
seen a stated number of tokens before the first round, because the cost falls as they settle.

    python benchmarks/sweep.py [--rounds N] [--model wren|gpt2|all]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from itertools import islice

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from measure import Claim, interleaved, ratio, record

import unembed
from unembed.corpus import Batch, Corpus, open_corpus
from unembed.language_model import LanguageModel
from unembed.models.decoder import Decoder
from unembed.sweeps import Reducer, TopTriggers
from unembed.sweeps.passing import feeding

TOP = 25


class Nothing(Reducer):
    """Asks for the coefficients and keeps none: A2, the pass stopped at the last of them."""

    def start(self, lm: Decoder) -> None:
        self._n = lm.n_layers

    @property
    def needs(self):
        return [("coefficients", layer) for layer in range(self._n)]

    def merge(self, other) -> None:
        pass

    def result(self) -> None:
        pass

    def state(self):
        return {}

    def load_state(self, state) -> None:
        pass


def plain(lm: LanguageModel) -> Callable[[Batch], None]:
    """A1: the body of the model, no unembedding, no hooks."""
    body = lm.hf.get_decoder()

    @torch.no_grad()
    def forward(batch: Batch) -> None:
        arguments = {} if bool(batch.mask.all()) else {"attention_mask": batch.mask.long()}
        body(batch.tokens, use_cache=False, **arguments)

    return forward


def fed(lm: LanguageModel, reducer: Reducer) -> Callable[[Batch], None]:
    """A sweep's step with one reducer; hooks come and go with each call, as they would cost nothing to keep."""

    def step(batch: Batch) -> None:
        with feeding(lm, [reducer]) as feed:
            feed(batch)

    return step


def each(step: Callable[[Batch], None], batches: list[Batch]) -> Callable[[], None]:
    """The step on the next batch, whenever called."""
    coming: Iterator[Batch] = iter(batches)
    return lambda: step(next(coming))


def measured(lm: LanguageModel, corpus: Corpus, encoder: LanguageModel, before: int, rounds: int, tokens: int):
    """Seconds of A1, A2 and the sweep, the lists having seen `before` tokens."""
    stream = corpus.batches(encoder, tokens)
    top, nothing = TopTriggers(TOP), Nothing()
    top.start(lm)
    nothing.start(lm)
    step, seen = fed(lm, top), 0
    while seen < before:
        batch = next(stream)
        step(batch)
        seen += batch.n_counted
    batches = list(islice(stream, rounds + 1))
    variants = {
        "A1 plain forward": each(plain(lm), batches),
        "A2 stopped, nothing kept": each(fed(lm, nothing), batches),
        "sweep": each(step, batches),
    }
    seconds = interleaved(variants, len(batches) - 1)
    held = sum(t.numel() * t.element_size() for t in top.state().values() if isinstance(t, torch.Tensor))
    keys = sum(lm.weights.W_out[n].shape[0] for n in range(lm.n_layers))
    return seconds, held / (keys * TOP * 12), seen


def gpt2_small() -> LanguageModel:
    """GPT-2 small's shape with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return unembed.load(GPT2LMHeadModel(GPT2Config()).eval())


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", choices=("wren", "gpt2", "all"), default="all")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    wren = unembed.load()
    windows = open_corpus(segmentation="windows", window=128, overlap=0)
    for name, lm, before, tokens, target in (
        ("wren", lambda: wren, 100_000, 2048, 1.00),
        ("gpt2", gpt2_small, 16_384, 1024, 1.02),
    ):
        if chosen.model not in (name, "all"):
            continue
        seconds, state, seen = measured(lm(), windows, wren, before, chosen.rounds, tokens)
        claims = [
            Claim("sweep of the top 25 of all keys, to A1", ratio(seconds, "sweep", "A1 plain forward"), target),
            Claim(
                "A2, stopped at the last coefficients, to A1",
                ratio(seconds, "A2 stopped, nothing kept", "A1 plain forward"),
                None,
            ),
            Claim("sweep to A2", ratio(seconds, "sweep", "A2 stopped, nothing kept"), 1.03),
            Claim("memory of the state to keys x t x 12 bytes", state, 1.1),
        ]
        title = {"wren": "Sweep, wren", "gpt2": "Sweep, GPT-2 small's shape"}[name]
        how = f"Windows of 128 tokens, batches of {tokens}, after {seen:,} tokens; one thread, CPU time, {chosen.rounds} rounds."
        record(title, claims, seconds, how)


if __name__ == "__main__":
    main()
