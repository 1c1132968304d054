"""Early exit: stop at the layer where the prediction has settled, decided by sub-updates, classifiers or confidence.

    rule = unembed.early_exit.fit(lm, corpus, method="sub_updates")
    rule.evaluate(corpus); rule.generate("Once upon a time"); rule.save("rule.npz")

Contains the examples, the rules, their thresholds, and generation that skips layers. Source: Geva et al. 2022, section
6.2.
"""

from unembed.control.early_exit.baselines import PAPER_SWEEP as PAPER_SWEEP
from unembed.control.early_exit.benchmark import compare as compare
from unembed.control.early_exit.benchmark import compare_reading as compare_reading
from unembed.control.early_exit.decision_cost import decision_cost as decision_cost
from unembed.control.early_exit.examples import Examples as Examples
from unembed.control.early_exit.examples import examples as examples
from unembed.control.early_exit.examples import examples_of_prefixes as examples_of_prefixes
from unembed.control.early_exit.examples import saturation_table as saturation_table
from unembed.control.early_exit.fit import METHODS as METHODS
from unembed.control.early_exit.fit import fit as fit
from unembed.control.early_exit.fit import split as split
from unembed.control.early_exit.fit import untrained as untrained
from unembed.control.early_exit.generation import Generated as Generated
from unembed.control.early_exit.generation import generate as generate
from unembed.control.early_exit.layer_skipping import skip_layers as skip_layers
from unembed.control.early_exit.rule import ExitRule as ExitRule
from unembed.control.early_exit.rule import load as load
from unembed.control.early_exit.table_6 import table_6 as table_6
