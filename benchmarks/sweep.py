"""What a sweep that keeps the top 25 triggers of every key costs, beside the plain forward and beside other ways.

    python benchmarks/sweep.py [PART ...]      # wren gpt2 experts sentences fast ray; lens lens-wren too, in an environment with TransformerLens
    python benchmarks/sweep.py gpt2 --tiny     # a tiny model, nothing written into RESULTS.md
    .peers/transformer-lens-3.9.0/bin/python benchmarks/sweep.py lens lens-wren

wren, gpt2, experts: against A1, the model's own forward without the unembedding, nothing kept. lens: against TransformerLens's cache
of one point and `torch.topk` merged batch by batch, the exact sweep and the fast ones. sentences: against the loop of the papers' scripts, one sentence at
a time, a Python loop over all keys. fast: the fast passes against A1. ray: two workers of one thread on this machine
against the local engine with two threads.

Each round takes the next batch of the stream; all variants of a round get the same batch, in turning order, and their
times are divided: CPU time on one thread where nothing else is said. Lists have seen a stated number of tokens before
the first round, because the cost falls as they settle. GPT-2 small's shape has random weights and wren's tokens.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata, util
from itertools import islice
from typing import Any, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from measure import Claim, interleaved, ratio, record

import unembed
from unembed.corpus import Batch, Corpus, open_corpus
from unembed.language_model import LanguageModel
from unembed.models.decoder import Decoder
from unembed.sweeps import Ray, Reducer, TopTriggers, fast_difference, sweep
from unembed.sweeps.fast_kernels import Fast, fast_forward
from unembed.sweeps.forward import feed_reducers

MODES = get_args(Fast)
TOP = 25
A1, A2 = "A1 plain forward", "A2 stopped, nothing kept"


@dataclass(frozen=True)
class Size:
    """How much a part does: tokens a batch, tokens before the first round, rounds, and whether it is a trial."""

    tokens: int
    before: int
    rounds: int
    tiny: bool

    def describe(self, seen: int, clock: str = "one thread, CPU time") -> str:
        return f"Batches of {self.tokens} tokens, after {seen:,} tokens; {clock}, {self.rounds} rounds."


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


def gpt2_small(size: Size) -> LanguageModel:
    """GPT-2 small's shape with random weights; the same ones whenever called."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=16384) if size.tiny else GPT2Config()
    return unembed.load(GPT2LMHeadModel(shape).eval())


def mixture(size: Size, *, large: bool = False) -> LanguageModel:
    """A mixture of experts of Qwen3-MoE's kind with random weights: a small one, or a layer of Qwen3-30B-A3B."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "num_hidden_layers": 4, "num_experts": 32, "num_experts_per_tok": 4, "hidden_size": 512,
        "moe_intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    }  # fmt: skip
    if large:
        shape |= {
            "num_hidden_layers": 1, "num_experts": 128, "num_experts_per_tok": 8, "hidden_size": 2048,
            "moe_intermediate_size": 768, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        }  # fmt: skip
    if size.tiny:
        shape |= {"hidden_size": 64, "moe_intermediate_size": 32}
    vocabulary = unembed.load().d_vocab
    return unembed.load(Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=vocabulary, **shape)).eval())


def windows() -> Corpus:
    return open_corpus(segmentation="windows", window=128, overlap=0)


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
        with feed_reducers(lm, [reducer]) as feed:
            feed(batch)

    return step


def each(step: Callable[[Batch], None], batches: list[Batch]) -> Callable[[], None]:
    """The step on the next batch, whenever called."""
    coming: Iterator[Batch] = iter(batches)
    return lambda: step(next(coming))


def settled(lm: LanguageModel, corpus: Corpus, size: Size) -> tuple[TopTriggers, list[Batch], int]:
    """Lists that have seen so many tokens, the batches that follow, and how many tokens those were."""
    stream = corpus.batches(unembed.load(), size.tokens)
    top, seen = TopTriggers(TOP), 0
    top.start(lm)
    step = fed(lm, top)
    while seen < size.before:
        batch = next(stream)
        step(batch)
        seen += batch.n_counted
    return top, list(islice(stream, size.rounds + 1)), seen


def again(top: TopTriggers, lm: LanguageModel) -> TopTriggers:
    """Lists that hold the same."""
    copy = TopTriggers(TOP)
    copy.start(lm)
    copy.load_state(top.state())
    return copy


def quick(lm: LanguageModel, top: TopTriggers, mode: str, stack: ExitStack) -> Callable[[Batch], None]:
    """A fast sweep's step, from the same lists; the model stays fast until the stack is left."""
    stack.enter_context(fast_forward(lm, mode))
    return fed(lm, again(top, lm))


def publish(title: str, claims: list[Claim], seconds, how: str, size: Size) -> None:
    """Into RESULTS.md, or only shown."""
    if size.tiny:
        for claim in claims:
            print(f"{title}: {claim.what}: {claim.ratio:.3g} {claim.note}")
    else:
        record(title, claims, seconds, how)


def against_forward(name: str, lm: LanguageModel, size: Size, target: float) -> None:
    top, batches, seen = settled(lm, windows(), size)
    nothing = Nothing()
    nothing.start(lm)
    steps = {A1: plain(lm), A2: fed(lm, nothing), "sweep": fed(lm, top)}
    seconds = interleaved({name: each(step, batches) for name, step in steps.items()}, len(batches) - 1)
    listed = sum(t.numel() * t.element_size() for t in top.state().values() if isinstance(t, torch.Tensor))
    keys = sum(lm.n_memories_of(n) for n in range(lm.n_layers))
    claims = [
        Claim("sweep of the top 25 of all keys, to A1", ratio(seconds, "sweep", A1), target),
        Claim("A2, stopped at the last coefficients, to A1", ratio(seconds, A2, A1), None),
        Claim("sweep to A2", ratio(seconds, "sweep", A2), 1.03),
        Claim("memory of the state to keys x t x 12 bytes", listed / (keys * TOP * 12), 1.1),
    ]
    publish(f"Sweep, {name}", claims, seconds, f"Windows of 128 tokens. {size.describe(seen)}", size)


def wren(size: Size) -> None:
    against_forward("wren", unembed.load(), size, 1.00)


def gpt2(size: Size) -> None:
    against_forward("GPT-2 small's shape", gpt2_small(size), size, 1.02)


def experts(size: Size) -> None:
    """From the beginning of a corpus, where nearly every batch changes every list."""
    small, large = (
        "4 layers of 32 experts of 256, 4 chosen, width 512",
        "Qwen3-30B-A3B's layer, 128 of 768, 8 chosen, width 2,048",
    )
    claims = stretches(mixture(size), small, size) + stretches(mixture(size, large=True), large, size)
    how = (
        f"Windows of 128 tokens. Batches of {size.tokens} tokens, a sweep's default; one thread, CPU time, all batches of a "
        "stretch together. At first nearly every value enters a list, so the target is for the cost amortised over a corpus of "
        "131,072 tokens; the stretches show how it falls."
    )
    publish("Sweep, a mixture of experts", claims, None, how, size)


def stretches(lm: LanguageModel, name: str, size: Size) -> list[Claim]:
    """The sweep to the forward of the same batches: amortised over the corpus, and over stretches of it."""
    ends = [1, 2] if size.tiny else [n // size.tokens for n in (8_192, 32_768, 131_072)]
    top, seconds, before = TopTriggers(TOP), [{A1: 0.0, "sweep": 0.0} for _ in ends], [0, *ends]
    top.start(lm)
    steps = {A1: plain(lm), "sweep": fed(lm, top)}
    for number, batch in enumerate(islice(windows().batches(unembed.load(), size.tokens), ends[-1]), start=1):
        if number == 1:
            steps[A1](batch)
        of_stretch = seconds[next(n for n, end in enumerate(ends) if number <= end)]
        for called in steps if number % 2 else reversed(steps):
            start = time.process_time()
            steps[called](batch)
            of_stretch[called] += time.process_time() - start
    whole = sum(s["sweep"] for s in seconds) / sum(s[A1] for s in seconds)
    claims = [Claim(f"{name}: sweep to A1, amortised over {ends[-1] * size.tokens:,} tokens", whole, 1.1)]
    for first, end, spent in zip(before, ends, seconds, strict=False):
        what = f"{name}: of it, tokens {first * size.tokens:,} to {end * size.tokens:,}"
        claims.append(Claim(what, spent["sweep"] / spent[A1], None))
    state = sum(t.numel() * t.element_size() for t in top.state().values() if isinstance(t, torch.Tensor))
    keys = sum(lm.n_memories_of(n) for n in range(lm.n_layers))
    return [*claims, Claim(f"{name}: bytes of the state, to 12 a trigger and pole", state / (keys * 2 * TOP * 12), 1.1)]


def lens(size: Size) -> None:
    """GPT-2 small's shape, two threads: a topk uses one of them, and the wall clock sees that."""
    torch.set_num_threads(2)
    _lens(lambda: gpt2_small(size), size, "GPT-2 small's shape", "two threads, wall time", time.perf_counter)


def lens_wren(size: Size) -> None:
    """Wren's shape, one thread: the smaller the matrices, the more a topk costs beside them."""
    _lens(unembed.load, size, "wren's shape", "one thread, CPU time", time.process_time)


def _lens(
    opened: Callable[[], LanguageModel], size: Size, shape: str, clock_text: str, clock: Callable[[], float]
) -> None:
    """TransformerLens as its users write it: the cache of one point, topk merged batch by batch.

    `run_with_cache` computes the logits unless told not to. The target was set beside the call as it is; what remains
    for one who knows `return_type=None` is measured too.
    """
    if util.find_spec("transformer_lens") is None:
        print("no TransformerLens here: run this part with .peers/transformer-lens-3.9.0/bin/python")
        return
    import transformer_lens as tl  # pyright: ignore[reportMissingImports]

    lm = opened()
    theirs = tl.HookedTransformer(
        tl.HookedTransformerConfig(
            n_layers=lm.n_layers, d_model=lm.d_model, n_ctx=lm.n_ctx, d_head=lm.d_head, n_heads=lm.n_heads,
            d_mlp=lm.d_mlp, d_vocab=lm.d_vocab, act_fn="relu" if lm.name == "wren" else "gelu_new", seed=0,
            device="cpu",
        )
    )  # fmt: skip
    top, batches, seen = settled(lm, windows(), size)
    lists = [
        (torch.full((TOP, lm.d_mlp), -torch.inf), torch.zeros(TOP, lm.d_mlp, dtype=torch.long)) for _ in theirs.blocks
    ]

    @torch.no_grad()
    def cached(batch: Batch, return_type: str | None = "logits") -> None:
        _, cache = theirs.run_with_cache(
            batch.tokens, return_type=return_type, names_filter=lambda n: n.endswith("mlp.hook_post")
        )
        for n, (values, places) in enumerate(lists):
            found = cache["post", n].flatten(0, 1)
            best, row = found.topk(min(TOP, len(found)), dim=0)
            both = torch.cat([values, best])
            where = torch.cat([places, batch.positions.flatten()[row]])
            best, row = both.topk(TOP, dim=0)
            lists[n] = best, where.gather(0, row)

    called, no_logits = "TransformerLens", "TransformerLens without logits"
    steps = {A1: plain(lm), called: cached, no_logits: lambda batch: cached(batch, None), "sweep": fed(lm, top)}
    changes = {mode: fast_difference(lm, batches[0], mode) for mode in MODES}
    with ExitStack() as stack:
        steps |= {mode: quick(opened(), top, mode, stack) for mode in MODES}
        seconds = interleaved({name: each(step, batches) for name, step in steps.items()}, len(batches) - 1, clock)
    peer = f"TransformerLens {metadata.version('transformer-lens')} run_with_cache + topk"
    without = f"{peer}, return_type=None"
    claims = [
        Claim(f"sweep, to {peer}", ratio(seconds, "sweep", called), 0.6),
        Claim(f"sweep, to {without}", ratio(seconds, "sweep", no_logits), None),
    ]
    for mode in MODES:
        note = f"coefficients change by up to {changes[mode]:.1g}"
        claims += [
            Claim(f"fast sweep in {mode}, to {peer}", ratio(seconds, mode, called), 0.6, note),
            Claim(f"fast sweep in {mode}, to {without}", ratio(seconds, mode, no_logits), None, note),
        ]
    claims += [
        Claim(f"{peer}, to A1", ratio(seconds, called, A1), None),
        Claim(f"{without}, to A1", ratio(seconds, no_logits, A1), None),
    ]
    publish(f"Sweep beside TransformerLens, {shape}", claims, seconds, size.describe(seen, clock_text), size)


def sentences(size: Size) -> None:
    """The papers' loop: one sentence at a time, for every key its best position, and a list of Python numbers each."""
    torch.set_num_threads(2)
    lm = gpt2_small(size)
    top, batches, seen = settled(lm, open_corpus(), size)
    state, lists = top.state(), []
    for layer in range(lm.n_layers):
        values, at = state[f"{layer}.1.values"].tolist(), state[f"{layer}.1.positions"].tolist()
        lists.append([list(zip(v, p, strict=True)) for v, p in zip(values, at, strict=True)])

    def loop(batch: Batch) -> None:
        for row, length in enumerate(batch.lengths.tolist()):
            run = lm.run(batch.tokens[row : row + 1, :length], "coefficients", logits=False)
            for layer, coefficients in enumerate(run["coefficients"][:, 0]):
                best, column = coefficients.max(dim=0)
                places = (int(batch.starts[row]) + column).tolist()
                for key, (value, place) in enumerate(zip(best.tolist(), places, strict=True)):
                    entries = lists[layer][key]
                    lowest = min(range(TOP), key=lambda slot: entries[slot][0])
                    if value > entries[lowest][0]:
                        entries[lowest] = value, place

    steps = {"loop of the papers": loop, "sweep": fed(lm, top)}
    seconds = interleaved({name: each(s, batches) for name, s in steps.items()}, size.rounds, time.perf_counter)
    claims = [Claim("sweep, to one sentence at a time", ratio(seconds, "sweep", "loop of the papers"), 1 / 5)]
    how = f"GPT-2 small's shape, sentences. {size.describe(seen, 'two threads, wall time')} Both start from the same lists."
    publish("Sweep beside the papers' loop", claims, seconds, how, size)


def fast(size: Size) -> None:
    """Every mode on a model of its own, as all modes of a round stand beside each other."""
    lm = gpt2_small(size)
    top, batches, seen = settled(lm, windows(), size)
    steps = {A1: plain(lm), "exact sweep": fed(lm, top)}
    changes = {mode: fast_difference(lm, batches[0], mode) for mode in MODES}
    with ExitStack() as stack:
        steps |= {mode: quick(gpt2_small(size), top, mode, stack) for mode in MODES}
        seconds = interleaved({name: each(step, batches) for name, step in steps.items()}, len(batches) - 1)
    claims = [
        Claim(
            f"fast sweep in {m}, to A1", ratio(seconds, m, A1), 0.85, f"coefficients change by up to {changes[m]:.1g}"
        )
        for m in MODES
    ]
    claims.append(Claim("exact sweep, to A1", ratio(seconds, "exact sweep", A1), None))
    publish("Fast sweep", claims, seconds, f"GPT-2 small's shape, windows of 128 tokens. {size.describe(seen)}", size)


def ray(size: Size) -> None:
    """The whole wall time of a sweep, workers started included, the cluster there already."""
    if util.find_spec("ray") is None:
        print("no Ray here: pip install 'unembed[ray]'")
        return
    import ray as cluster  # pyright: ignore[reportMissingImports]

    from unembed.sweeps.ray.workers import import_ray

    import_ray().init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="WARNING")
    torch.set_num_threads(2)
    lm = unembed.load()
    texts = [document.text for document in open_corpus(max_documents=2 if size.tiny else None).documents()]
    corpus = open_corpus(texts * max(1, size.rounds))
    counted, found, seconds = 0, {}, {"local": [], "ray": []}
    for name, engine in (("local", "local"), ("ray", Ray(workers=2, cpus=1))):
        began = time.perf_counter()
        [found[name]] = sweep(lm, corpus, [TopTriggers(TOP)], engine=engine, tokens_per_batch=size.tokens)
        seconds[name].append(time.perf_counter() - began)
        counted = found[name].tokens_seen
    cluster.shutdown()
    near = all(torch.allclose(a, b, rtol=1e-3) for a, b in zip(found["local"].values, found["ray"].values, strict=True))
    assert near, "two threads round differently, and no more than that"
    claims = [Claim("Ray with two workers, to two threads", ratio(seconds, "ray", "local"), 1.15)]
    how = f"wren over {counted:,} tokens, batches of {size.tokens}; wall time once each, the start of the workers included."
    publish("Sweep on Ray", claims, seconds, how, size)


PARTS: dict[str, tuple[Callable[[Size], None], Size]] = {
    "wren": (wren, Size(2048, 100_000, 15, False)),
    "gpt2": (gpt2, Size(1024, 16_384, 15, False)),
    "experts": (experts, Size(2048, 131_072, 7, False)),
    "lens": (lens, Size(1024, 16_384, 8, False)),
    "lens-wren": (lens_wren, Size(1024, 100_000, 12, False)),
    "sentences": (sentences, Size(1024, 8_192, 5, False)),
    "fast": (fast, Size(1024, 16_384, 10, False)),
    "ray": (ray, Size(2048, 0, 4, False)),
}


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, help="ray: how often the corpus is repeated")
    parser.add_argument("--tiny", action="store_true", help="a trial, nothing written")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    for name in chosen.parts or PARTS:
        torch.set_num_threads(1)
        part, size = PARTS[name]
        before, rounds = (500, 2) if chosen.tiny else (size.before, size.rounds)
        part(Size(size.tokens, before, chosen.rounds or rounds, chosen.tiny))


if __name__ == "__main__":
    main()
