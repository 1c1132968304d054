"""Events, scores and contributions of prefixes beside the passes and logit products that they cannot do without.

    python benchmarks/events.py [--examples 96] [--dry]

GPT-2 small's shape with random weights. The limit is the forward passes of the same batches up to the last stream, and
the 2 * layers + 1 logit products of the prefixes' last positions; one thread, CPU time.
"""

from __future__ import annotations

import argparse

import torch
from measure import Claim, interleaved, ratio, record
from transformers import GPT2Config, GPT2LMHeadModel

import unembed
from unembed.corpus import Segment
from unembed.memories.event_sample import EventRecorder, record_events
from unembed.memories.prefix_sampling import example_batches
from unembed.stream.run import forward_arguments


def prefixes(n: int, d_vocab: int) -> list[Segment]:
    """Random tokens; lengths uniform in 1 to 40, about those of cut WikiText sentences."""
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 41, (n,), generator=g).tolist()
    rows = [torch.randint(d_vocab, (length,), generator=g) for length in lengths]
    return [Segment(i, 0, i, 1000 * i, 0, 0, row, 0) for i, row in enumerate(rows)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--examples", type=int, default=96)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--dry", action="store_true", help="print only, leave RESULTS.md as it is")
    given = options.parse_args()
    torch.set_num_threads(1)
    lm = unembed.load(GPT2LMHeadModel(GPT2Config()).eval())
    examples = prefixes(given.examples, lm.d_vocab)
    W_U = lm.weights.W_U

    @torch.no_grad()
    def limit() -> None:
        for batch in example_batches(examples, 4096):
            body = lm.hf.get_decoder()
            out = body(batch.tokens, **forward_arguments(lm, batch.mask.long())).last_hidden_state
            last = out[torch.arange(len(out)), batch.lengths - 1]
            for _ in range(2 * lm.n_layers + 1):
                (last @ W_U).argmax(dim=-1)

    def ours() -> None:
        recorder = EventRecorder()
        recorder.start(lm)
        record_events(lm, examples, recorder)

    seconds = interleaved({"limit": limit, "ours": ours}, rounds=given.rounds)
    claim = Claim("events, scores, contributions, to passes + logit products", ratio(seconds, "ours", "limit"), 1.3)
    if given.dry:
        print(claim, {name: sum(s) / len(s) for name, s in seconds.items()})
    else:
        record(f"Events of {given.examples} prefixes, GPT-2 small's shape", [claim], seconds, "One thread, CPU time.")


if __name__ == "__main__":
    main()
