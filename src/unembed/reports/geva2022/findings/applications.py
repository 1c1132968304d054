"""The claims of section 6: early exit and toxic text."""

from __future__ import annotations

import math

from unembed.document.intervals import Measured
from unembed.document.numbers import percent
from unembed.reports.claims import Claim, Judgement, Numbers, verdict_of
from unembed.reports.geva2022.measurements import Measurements
from unembed.reports.geva2022.sections.applications import PAPER_EXAMPLES


def _rule(m: Measurements) -> Numbers | None:
    if m.applications.early_exit is None:
        return None
    rows = {row["method"]: row for row in m.applications.early_exit.rows()}
    if "both" not in rows:
        return None
    names = ("accuracy", "accuracy_std", "saved_layers", "saved_layers_std")
    return {
        **{f"rule_{name}": rows["sub_updates"][name] for name in names},
        **{f"classifier_{name}": rows["both"][name] for name in names},
        "oracle": rows["oracle"]["saved_layers"],
        "n_layers": m.lm.n_layers,
    }


def judge_rule(
    rule_accuracy: float,
    rule_accuracy_std: float,
    rule_saved_layers: float,
    rule_saved_layers_std: float,
    classifier_accuracy: float,
    classifier_accuracy_std: float,
    classifier_saved_layers: float,
    classifier_saved_layers_std: float,
    oracle: float,
    n_layers: int,
) -> Judgement:
    """The sub-updates rule compared with a trained classifier, over five splits."""
    here = (
        f"The rule leaves {rule_accuracy:.1f} ± {rule_accuracy_std:.1f} % of the predictions as they are and saves "
        f"{rule_saved_layers:.2f} ± {rule_saved_layers_std:.2f} of {n_layers} layers (an oracle: {oracle:.2f}); the "
        f"classifier leaves {classifier_accuracy:.1f} ± {classifier_accuracy_std:.1f} % and saves "
        f"{classifier_saved_layers:.2f} ± {classifier_saved_layers_std:.2f}."
    )
    spread = 2 * math.hypot(rule_accuracy_std, classifier_accuracy_std)
    layers = 2 * math.hypot(rule_saved_layers_std, classifier_saved_layers_std)
    accurate = rule_accuracy >= 90 and rule_accuracy >= classifier_accuracy - max(spread, 1.0)
    saves = rule_saved_layers >= 0.1 * n_layers and rule_saved_layers >= classifier_saved_layers - layers
    # An oracle that saves less than a tenth of the layers leaves no room to agree or to differ.
    return Judgement(here, verdict_of(None if oracle < 0.1 * n_layers else accurate and saves))


def _toxicity(m: Measurements) -> Numbers | None:
    if m.applications.toxicity is None:
        return None
    rows = {row["arm"]: row for row in m.applications.toxicity.rows()}

    def arm(name: str) -> Measured:
        row = rows[name]
        return Measured(row["toxicity"] / 100, row["toxicity_low"] / 100, row["toxicity_high"] / 100, 0)

    return {"plain": arm("plain"), "picked": arm("values picked by a scorer")}


def judge_toxicity(plain: Measured, picked: Measured) -> Judgement:
    """Toxic continuations with and without the values."""
    here = f"Ten values whose tokens score low change toxic continuations from {percent(plain)} to {percent(picked)}."
    lower = True if picked.high < plain.low else False if picked.value >= plain.value else None
    return Judgement(here, verdict_of(lower))


def explain_rule(m: Measurements) -> str | None:
    """What even an oracle could save, and on how many examples the rule is fitted."""
    numbers = _rule(m)
    if numbers is None:
        return None
    share = numbers["oracle"] / numbers["n_layers"]
    oracle = f"an oracle saves {numbers['oracle']:.2f} of {numbers['n_layers']} layers ({share:.0%})"
    if share < 0.2:
        return f"Predictions settle late: even {oracle}, the paper's rule 20 % of 16."
    return (
        f"The rule is fitted on parts of {m.options.exit_examples:,} examples, in the paper on parts of "
        f"{PAPER_EXAMPLES:,}. There are layers to save: {oracle}. The rest is unexplained."
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "sub-updates rule",
        "early exit",
        "The sub-updates rule obtains a high accuracy while saving 20 % of the computation, on par with classifiers.",
        "Sec. 6.2, Tab. 6",
        "accuracy and saved layers over five splits",
        "94.1 ± 1.4 % and 3.2 ± 0.3 of 16 layers (WikiLM); classifiers 94.4 ± 6.4 % and 3.0 ± 0.4",
        "At least 90 % right, at least a tenth of the layers saved, and neither worse than the classifier by more than "
        "two standard deviations of the five splits. Where even an oracle saves less than a tenth, "
        "the test is inconclusive.",
        _rule,
        judge_rule,
        explain_rule,
    ),
    Claim(
        "less toxic",
        "toxicity",
        "Increasing ten values whose tokens score low reduces toxic continuations.",
        "Sec. 6.1, Tab. 5",
        "share of continuations scored toxic",
        "58.5 % to 52.7 % (API graded; 30.8 % with ten values picked by hand), gpt2-medium",
        "The interval with the values lies below the interval without; bootstrap over prompts.",
        _toxicity,
        judge_toxicity,
    ),
)
