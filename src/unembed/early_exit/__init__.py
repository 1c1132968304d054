"""Early exit: stop a token's computation after the layer where the prediction no longer changes.

    rule = unembed.early_exit.fit(lm, corpus, method="sub_updates")
    rule.evaluate(corpus); rule.generate("Once upon a time"); rule.save("rule.npz")

A rule decides by the FFN's sub-updates, by classifiers or by confidence. Source: Geva et al. 2022, section 6.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.early_exit.baselines import PAPER_SWEEP as PAPER_SWEEP
    from unembed.early_exit.benchmark import compare as compare
    from unembed.early_exit.benchmark import compare_reading as compare_reading
    from unembed.early_exit.cost_of_decisions import decision_cost as decision_cost
    from unembed.early_exit.example_prefixes import Examples as Examples
    from unembed.early_exit.example_prefixes import examples as examples
    from unembed.early_exit.example_prefixes import examples_of_prefixes as examples_of_prefixes
    from unembed.early_exit.example_prefixes import saturation_table as saturation_table
    from unembed.early_exit.fitting import METHODS as METHODS
    from unembed.early_exit.fitting import fit as fit
    from unembed.early_exit.fitting import split as split
    from unembed.early_exit.fitting import untrained as untrained
    from unembed.early_exit.generation import Generated as Generated
    from unembed.early_exit.generation import generate as generate
    from unembed.early_exit.layer_skipping import skip_layers as skip_layers
    from unembed.early_exit.published_table import table_6 as table_6
    from unembed.early_exit.rule import ExitRule as ExitRule
    from unembed.early_exit.rule import load as load
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "baselines": "PAPER_SWEEP",
            "benchmark": "compare compare_reading",
            "cost_of_decisions": "decision_cost",
            "example_prefixes": "Examples examples examples_of_prefixes saturation_table",
            "fitting": "METHODS fit split untrained",
            "generation": "Generated generate",
            "layer_skipping": "skip_layers",
            "rule": "ExitRule load",
            "published_table": "table_6",
        },
        offered="compare examples fit load table_6",
    )
