"""What reports cost: geva2021 on wren, its layer-by-layer part at GPT-2 small's size, and all three beside plain passes.

    python benchmarks/report.py wren         # the whole report: under three minutes on two cores, under 2 GB
    python benchmarks/report.py layers       # Figs. 7 to 11: at most 3 forward passes and one product of all values
    python benchmarks/report.py passes       # the three reports beside plain forward passes over the same text
    python benchmarks/report.py passes --model smollm2 --tokens 60000
    python benchmarks/report.py layers --tokens 1024 --dry     # smaller, nothing written into RESULTS.md

Figs. 7 to 11 need every layer's streams, updates and coefficients at the examples, and the first token of every value.
Examples are as dense as 4,000 are in the shipped text, one in 75 tokens.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import Claim, record

import unembed
from unembed.corpus import open_corpus

CPU_SECONDS, GIGABYTES = 2 * 180, 2.0
TOKENS, WINDOW, BATCH, TOKENS_PER_EXAMPLE = 6144, 128, 2048, 75
SAMPLES: dict[str, dict[str, Any]] = {
    "geva2021": dict(examples=1000, pattern_keys=6, perturbed_keys=2, compositions=100),
    "geva2022": dict(examples=600, exit_examples=200, norm_values=200),
    "elhage2021": dict(sequences=8, tokens=1000, windows=8),
}
"""The samples of `docs/replication.md` on SmolLM2, by study."""


def timed(work: Callable[[], object]) -> float:
    """Processor seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def wren(dry: bool, tokens: int, model: str) -> None:
    """Run the report once in this process, on one thread, and record what it took."""
    lm = unembed.load()
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        report = unembed.report("geva2021", lm, "shipped", folder)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    claims = [
        Claim(f"processor time ({seconds:.0f} s), to two cores for three minutes", seconds / CPU_SECONDS, 1.0),
        Claim(f"peak memory of the process ({peak:.2f} GB), to 2 GB", peak / GIGABYTES, 1.0),
    ]
    agree = sum(finding.verdict == "agrees" for finding in report.findings)
    how = (
        f"4,000 examples, 120 keys with shortened triggers; {agree} of {len(report.findings)} published findings hold."
    )
    publish_or_print("Report geva2021 on wren, shipped text", claims, how, dry)


def layers(dry: bool, tokens: int, model: str) -> None:
    """The examples of items Figs. 7 to 11 over random tokens, beside 3 forwards and one product, all on one thread."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from unembed.corpus import Segment
    from unembed.corpus.batches import bucketed
    from unembed.reports.geva2021.examples import Examples
    from unembed.sweeps.forward import feed_reducers

    torch.manual_seed(0)
    lm = unembed.load(GPT2LMHeadModel(GPT2Config()).eval())
    rows = torch.randint(lm.d_vocab, (tokens // WINDOW, WINDOW))
    segments = [Segment(i, 0, i, WINDOW * i, 0, 0, row) for i, row in enumerate(rows)]
    values, W_U = lm.weights.W_out[0], lm.weights.W_U
    scores = torch.empty(1024, lm.d_vocab)

    @torch.no_grad()
    def forward() -> None:
        for batch in rows.split(BATCH // WINDOW):
            lm.hf(batch, use_cache=False)

    @torch.no_grad()
    def product_of_a_layer() -> None:
        for part in values.split(1024):
            torch.mm(part, W_U, out=scores[: len(part)])

    def ours() -> None:
        positions = list(range(TOKENS_PER_EXAMPLE // 2, len(rows) * WINDOW, TOKENS_PER_EXAMPLE))
        seen = Examples(positions)
        seen.start(lm)
        with feed_reducers(lm, [seen]) as feed:
            for batch in bucketed(iter(segments), BATCH, 64):
                feed(batch)
        assert seen.result()["done"].all()

    timed(lambda: lm.hf(rows[:1], use_cache=False))  # warm
    once, product = timed(forward), timed(product_of_a_layer) * lm.n_layers
    mine = timed(ours)
    note = f"{mine:.0f} s to 3 x {once:.0f} + {product:.0f} s"
    claims = [Claim("to 3 forward passes and one values-by-vocabulary product", mine / (3 * once + product), 1.0, note)]
    how = f"{rows.numel():,} random tokens, GPT-2 small's shape; one thread, CPU time; the product from one layer."
    publish_or_print("Figs. 7 to 11 of geva2021, GPT-2 small's shape", claims, how, dry)


def passes(dry: bool, tokens: int, model: str) -> None:
    """Every report without its control, beside plain forward passes over the text that it is given."""
    lm = unembed.load(model)
    texts, n = [], 0
    for document in open_corpus("shipped").documents():
        texts.append(document.text)
        n += lm.encode(document.text).shape[1]
        if n >= tokens:
            break

    @torch.no_grad()
    def plain() -> None:
        for batch in open_corpus(texts).batches(lm, BATCH):
            lm.hf(batch.tokens, use_cache=False)

    timed(plain)  # warm
    once = timed(plain)
    claims = []
    for study, sample in SAMPLES.items():
        with tempfile.TemporaryDirectory() as folder:
            seconds = timed(lambda s=study, o=sample, f=folder: unembed.report(s, lm, texts, f, control=False, **o))
        claims.append(Claim(f"{study}, to one plain pass", seconds / once, None, f"{seconds:.0f} and {once:.0f} s"))
    options = "; ".join(f"{name} {', '.join(f'{k}={v}' for k, v in own.items())}" for name, own in SAMPLES.items())
    how = f"{n:,} tokens of the shipped text, {len(texts)} articles; no index, no control; {options}. One thread, CPU time."
    publish_or_print(f"Reports on {lm.name}, beside plain passes over the same text", claims, how, dry)


def publish_or_print(title: str, claims: list[Claim], how: str, dry: bool) -> None:
    """Into RESULTS.md, or only to the terminal."""
    if dry:
        print(title, *claims, sep="\n")
    else:
        record(title, claims, how=how)


PARTS = {"wren": wren, "layers": layers, "passes": passes}


def main() -> None:
    """The parts named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all when none")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of the text of `layers` and `passes`")
    parser.add_argument("--model", default="wren", help="of `passes`")
    parser.add_argument("--dry", action="store_true", help="print only, leave RESULTS.md as it is")
    given = parser.parse_args()
    if unknown := sorted(set(given.parts) - set(PARTS)):
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    torch.set_num_threads(1)
    for part in given.parts or PARTS:
        PARTS[part](given.dry, given.tokens, given.model)


if __name__ == "__main__":
    main()
