"""Early exit: stop at the layer where the prediction has settled, decided by sub-updates, classifiers or confidence.

    rule = unembed.early_exit.fit(lm, corpus, method="sub_updates")
    rule.evaluate(corpus); rule.generate("Once upon a time"); rule.save("rule.npz")

Contains the examples, the rules, their thresholds, and generation that skips layers. Source: Geva et al. 2022, section
6.2.
"""

from unembed.control.early_exit.baselines import PAPER_SWEEP
from unembed.control.early_exit.benchmark import compare, compare_reading
from unembed.control.early_exit.decision_cost import decision_cost
from unembed.control.early_exit.examples import Examples, examples, examples_of_prefixes, saturation_table
from unembed.control.early_exit.fit import METHODS, fit, split, untrained
from unembed.control.early_exit.generation import Generated, generate
from unembed.control.early_exit.layer_skipping import skip_layers
from unembed.control.early_exit.rule import ExitRule, load
from unembed.control.early_exit.table_6 import table_6

__all__ = [
    "METHODS",
    "PAPER_SWEEP",
    "Examples",
    "ExitRule",
    "Generated",
    "compare",
    "compare_reading",
    "decision_cost",
    "examples",
    "examples_of_prefixes",
    "fit",
    "generate",
    "load",
    "saturation_table",
    "skip_layers",
    "split",
    "table_6",
    "untrained",
]
