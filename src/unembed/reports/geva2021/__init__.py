"""The report on Geva et al. 2021, "Transformer Feed-Forward Layers Are Key-Value Memories", for any decoder.

One pass over the corpus finds the prefixes on which each memory (FFN neuron) has its largest coefficients (its
triggers), and measures how each layer changes predictions. The study also decodes all value vectors to tokens, and
removes tokens from the triggers of sampled memories. Where the paper leaves a choice open, or its released code differs
from its text, there is an option; see `Options`.
"""

from __future__ import annotations

from typing import Any

from unembed.reports.geva2021 import paper
from unembed.reports.geva2021.measurements import Measurements, by_lens, control_corpus, measure
from unembed.reports.geva2021.options import Options
from unembed.reports.geva2021.parts import PARTS, aggregation, refinement
from unembed.reports.geva2021.parts.values import QUANTITIES as OF_VALUES
from unembed.reports.options import facts_of_memories
from unembed.reports.published import PRINTED, Origin
from unembed.reports.study import Study
from unembed.stream.massive_activations import LEFT_OUT


def _facts(m: Measurements) -> dict[str, Any]:
    of_examples = {} if m.example_text is m.text else {"tokens of the examples' text": m.example_text.lengths.sum()}
    return {
        **facts_of_memories(m.lm),
        "vocabulary": m.lm.d_vocab,
        "corpus": m.corpus_name,
        "tokens": int(m.text.lengths.sum()),
        "sentences": m.text.n_segments,
        **{name: int(tokens) for name, tokens in of_examples.items()},
        "examples": len(m.positions),
        **({LEFT_OUT: m.left_out} if m.left_out else {}),
        "tokens left out": 0 if m.hidden is None else int(m.hidden.sum()),
        "seed": m.seed,
    }


STUDY = Study(
    "geva2021",
    "Feed-forward layers as key-value memories, in {model}",
    "Every experiment of Geva et al. 2021 on this model and text, each number next to the published one. Layers "
    "count from 0 here and from 1 in the paper.",
    "Mor Geva, Roei Schuster, Jonathan Berant, Omer Levy: Transformer Feed-Forward Layers Are Key-Value Memories. "
    "EMNLP 2021 (arXiv 2012.14913). Their model: WikiLM, 16 layers of 4,096 memories, 267,744 words, WikiText-103.",
    Options,
    measure,
    PARTS,
    _facts,
    control_corpus,
    (Origin("words of the model", f"{paper.D_VOCAB:,}", PRINTED, "released dictionary"),),
    by_lens=by_lens,
    of_values=(
        *OF_VALUES,
        *aggregation.COMPOSITION,
        *refinement.REFINEMENT,
        *refinement.LAST_LAYER,
    ),
)
QUANTITIES, run, report_of = STUDY.quantities, STUDY.run, STUDY.report
