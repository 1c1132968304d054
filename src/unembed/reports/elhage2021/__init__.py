"""The report on "A Mathematical Framework for Transformer Circuits" (Elhage et al. 2021), for any model.

Analyses that need two attention layers are left out for models with one. Some results are exact for attention-only
models and approximate for others; the report states which.
"""

from __future__ import annotations

from typing import Any

from unembed.attention.weights.paper import SOURCE
from unembed.reports.elhage2021.measurements import Measurements, by_lens
from unembed.reports.elhage2021.options import Options
from unembed.reports.elhage2021.parts import PARTS
from unembed.reports.published import SUMMARY, Origin
from unembed.reports.study import Study


def _facts(m: Measurements) -> dict[str, Any]:
    only = all(b.feed_forward is None for b in m.lm.structure.blocks)
    return {
        "model": m.lm.name,
        "layers": m.lm.n_layers,
        "heads a layer": m.lm.n_heads,
        "kind": "no layers" if not m.lm.n_layers else "attention only" if only else "with FFNs",
        "basis": m.basis,
        "corpus": m.corpus.name,
        "seed": m.seed,
        "intervals": "95 %, bootstrap over windows, tokens, triples or sources; all heads are measured",
    }


_OF_OUTPUTS = {
    *("copying", "skip-trigrams", "bugs", "induction by weights", "one position"),
    *("copying in deeper models", "skip-trigrams in deeper models", "bugs in deeper models"),
    "primitive in-context learning in deeper models",  # it removes heads with high copying scores
}
"""Names of the quantities for which outputs of heads are decoded with the unembedding. A fitted lens changes these."""
STUDY = Study[Measurements](
    "elhage2021",
    "Transformer circuits of {model}",
    "Attention heads by their weights and by what they do, next to what the paper found.",
    SOURCE,
    Options,
    Measurements,
    PARTS,
    _facts,
    lambda m: m.corpus,
    (
        Origin(
            "order of paths", "second order need not come first; second-layer heads should", SUMMARY, "Two-layer models"
        ),
        Origin("composition", "K-composition stands out, Q and V do not", SUMMARY, "Two-layer models"),
        Origin("loss by order, in nats", "not in the text at hand", SUMMARY, "Two-layer models: term importance"),
        Origin("in-context learning and ablation", "Olsson et al. 2022, in words", SUMMARY, "not this paper"),
    ),
    by_lens=by_lens,
    of_values=tuple(q for part in PARTS for q in part.quantities if q.name in _OF_OUTPUTS),
)
QUANTITIES, run, report_of = STUDY.quantities, STUDY.run, STUDY.report
