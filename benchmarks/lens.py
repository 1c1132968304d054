"""Fitting a Jacobian lens at SmolLM2-135M's size, beside plain forward passes over the same contexts.

    python benchmarks/lens.py

30 layers of width 576 with gated FFNs; random weights: no result here depends on what a model learned. One context is
fitted in each round; a fit takes 64 of them.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

try:
    from benchmarks.measure import Claim, interleaved, ratio, record
except ImportError:  # run as a script
    from measure import Claim, interleaved, ratio, record

LENGTH, CONTEXTS, BUDGET_S = 64, 64, 15 * 60
ROUNDS = 2


def smollm2_sized() -> Any:
    import transformers

    import unembed

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    return unembed.load(transformers.LlamaForCausalLM(config).eval())


def main() -> None:
    from unembed.corpus.segments import Batch, Segment
    from unembed.jacobian.sums import JacobianSums

    torch.set_num_threads(1)
    lm = smollm2_sized()
    tokens = torch.randint(lm.d_vocab, (LENGTH,), generator=torch.Generator().manual_seed(0))
    sums, batch = JacobianSums(), Batch.of(0, [Segment(0, 0, 0, 0, 0, 0, tokens)])
    sums.start(lm)

    def plain() -> None:
        with torch.no_grad():
            lm.hf(tokens[None], use_cache=False)

    seconds = interleaved({"a context of the fit": lambda: sums.update(batch), "a plain pass": plain}, ROUNDS)
    whole = CONTEXTS * statistics.median(seconds["a context of the fit"])
    record(
        "Fitting a Jacobian lens",
        [
            Claim("One context of the fit, in plain passes over it", ratio(seconds, *seconds), None),
            Claim(
                f"A fit on {CONTEXTS} contexts of {LENGTH} tokens, of 15 CPU minutes",
                whole / BUDGET_S,
                1.0,
                f"{whole:.0f} CPU seconds",
            ),
        ],
        seconds,
        "SmolLM2-135M's size, all layers, one thread, CPU time, random weights.",
    )


if __name__ == "__main__":
    main()
