"""Geva et al. 2022, "Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in the Vocabulary Space".

The report on this paper covers sections 4 to 6 and the appendix, for any decoder with feed-forward layers. Where the
paper leaves a choice open, there is an option; see `Options`.
"""

from __future__ import annotations

from typing import Any

from unembed.reports.geva2022.measurements import Measurements, by_lens, measure
from unembed.reports.geva2022.options import Options
from unembed.reports.geva2022.parts import PARTS, concepts, events, layers, score_effects
from unembed.reports.geva2022.parts.applications import EARLY_EXIT, TOXICITY
from unembed.reports.geva2022.published import CONTRADICTION
from unembed.reports.options import facts_of_memories
from unembed.reports.study import Study
from unembed.stream.massive_activations import LEFT_OUT


def _facts(m: Measurements) -> dict[str, Any]:
    return {
        **facts_of_memories(m.lm),
        "examples": len(m.sample),
        **({LEFT_OUT: m.left_out} if m.left_out else {}),
        "corpus": m.corpus.name,
        "basis of scores": m.options.basis,
        "clusters of values": m.clusters.n_clusters,
        "tokens left out": 0 if m.hidden is None else int(m.hidden.sum()),
        "seed": m.seed,
        "intervals": "95 %: exact for shares of examples, bootstrap over examples, vectors or prefixes otherwise",
    }


STUDY = Study(
    "geva2022",
    "What the sub-updates of {model} promote",
    "Concepts in values, events, and extreme sub-updates, next to what the paper found. Layers count from 0 here "
    "and from 1 in the paper.",
    "Geva, Caciularu, Wang, Goldberg: Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in the "
    "Vocabulary Space. EMNLP 2022.",
    Options,
    measure,
    PARTS,
    _facts,
    lambda m: m.corpus,
    notes=(CONTRADICTION,),
    by_lens=by_lens,
    of_values=(
        *score_effects.QUANTITIES,
        *concepts.QUANTITIES,
        *events.QUANTITIES,
        *layers.QUANTITIES,
        *TOXICITY,
        *EARLY_EXIT,
    ),
)
QUANTITIES, run, report_of = STUDY.quantities, STUDY.run, STUDY.report
