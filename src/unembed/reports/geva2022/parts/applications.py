"""Section 6: early exit (Tables 6, 9 and 10) and, where prompts are given, toxic continuations (Table 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from unembed.document.intervals import Measured
from unembed.document.model import Exhibit, Section
from unembed.document.numbers import percent
from unembed.reports.geva2022.measurements import Measurements
from unembed.reports.published import PRINTED, Origin
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, judged, once
from unembed.results import Table, format_number, format_percent, format_spread
from unembed.toxicity.scorers import ATTRIBUTES

PAPER_EXAMPLES = 10_000
"""Number of examples for Tables 6, 9 and 10 in the paper; a tenth of them is for testing."""


RIGHT = 90
"""Smallest accuracy, in percent, for which the rule counts as accurate."""
_RULES = {"rule": "sub_updates, set", "ordered": "sub_updates", "classifier": "both"}
"""Method names of the rule in the paper's text, the rule in its code, and the classifier of stream and FFN update."""


@once
def rule(m: Measurements) -> Numbers | None:
    """Return accuracy and number of saved layers of the early-exit rules and of a classifier; None if not measured."""
    rows = {} if m.applications.early_exit is None else {r["method"]: r for r in m.applications.early_exit.rows()}
    if "both" not in rows:
        return None
    names = ("accuracy", "accuracy_std", "saved_layers", "saved_layers_std")
    return Numbers(
        **{f"{name}_{what}": rows[row][what] for name, row in _RULES.items() for what in names},
        oracle=rows["oracle"]["saved_layers"],
        n_layers=m.lm.n_layers,
    )


def judge_rule(n: Numbers) -> Judgement:
    """Judge whether the sub-updates rule is as accurate, and saves as many layers, as a trained classifier."""
    spread = 2 * math.hypot(n.rule_accuracy_std, n.classifier_accuracy_std)
    layers = 2 * math.hypot(n.rule_saved_layers_std, n.classifier_saved_layers_std)
    accurate = n.rule_accuracy >= RIGHT and n.rule_accuracy >= n.classifier_accuracy - max(spread, 1.0)
    saves = n.rule_saved_layers >= 0.1 * n.n_layers and n.rule_saved_layers >= n.classifier_saved_layers - layers
    here = (
        f"The rule leaves {format_spread(n.rule_accuracy, n.rule_accuracy_std)} % of the predictions as they are and "
        f"saves {format_spread(n.rule_saved_layers, n.rule_saved_layers_std)} of {n.n_layers} layers (an oracle: "
        f"{format_number(n.oracle)}); the classifier leaves "
        f"{format_spread(n.classifier_accuracy, n.classifier_accuracy_std)} % and saves "
        f"{format_spread(n.classifier_saved_layers, n.classifier_saved_layers_std)}. The ordered match of the released "
        f"code leaves {format_spread(n.ordered_accuracy, n.ordered_accuracy_std)} % and saves "
        f"{format_spread(n.ordered_saved_layers, n.ordered_saved_layers_std)}."
    )
    # The oracle exits at the first layer after which the prediction no longer changes. If even this saves less than a
    # tenth of the layers, no method can save a notable share.
    return Judgement(here, "not applicable") if n.oracle < 0.1 * n.n_layers else judged(here, accurate and saves)


def explain_rule(m: Measurements) -> str | None:
    """State how many layers even an oracle saves, and on how many examples the rule is fitted."""
    n = rule(m)
    if n is None:
        return None
    share = n.oracle / n.n_layers
    oracle = f"an oracle saves {format_number(n.oracle)} of {n.n_layers} layers ({format_percent(share, 0)})"
    if share < 0.2 and n.rule_accuracy >= RIGHT:
        return f"Predictions settle late: even {oracle}, the paper's rule 20 % of 16."
    return (
        f"The rule is fitted on parts of {m.options.exit_examples:,} examples, the paper's on parts of "
        f"{PAPER_EXAMPLES:,}, and {oracle}, the paper's rule 20 % of 16."
    )


EARLY_EXIT: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "sub-updates rule",
        "The sub-updates rule obtains a high accuracy while saving 20 % of the computation, on par with classifiers.",
        where="Sec. 6.2, Tab. 6",
        what="accuracy and saved layers over five splits",
        published="94.1 ± 1.4 % and 3.2 ± 0.3 of 16 layers (WikiLM); classifiers 94.4 ± 6.4 % and 3.0 ± 0.4",
        test="At least 90 % right, at least a tenth of the layers saved, and neither worse than the classifier by more "
        "than two standard deviations of the five splits. Where even an oracle saves less than a tenth, there is "
        "nothing to compare.",
        measure=rule,
        judge=judge_rule,
        explain=explain_rule,
        origins=(Origin("early exit", "94.1 ± 1.4 %, 3.2 ± 0.3 of 16 layers", PRINTED, "Tab. 6"),),
    ),
)


@once
def toxicity(m: Measurements) -> Numbers | None:
    """Return the share of toxic continuations, with and without turning on the value vectors that a scorer picked."""
    if m.applications.toxicity is None:
        return None
    rows = {row["arm"]: row for row in m.applications.toxicity.rows()}

    def arm(name: str) -> Measured:
        value, low, high = (rows[name][f"toxicity{end}"] / 100 for end in ("", "_low", "_high"))
        return Measured(value, low, high, 0)

    return Numbers(plain=arm("plain"), picked=arm("values picked by a scorer"))


TOXICITY: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "less toxic",
        "Increasing ten values whose tokens score low reduces toxic continuations.",
        where="Sec. 6.1, Tab. 5",
        what="share of continuations scored toxic",
        published="58.5 % to 52.7 % (API graded; 30.8 % with ten values picked by hand), gpt2-medium",
        test="The interval with the values lies below the interval without; bootstrap over prompts.",
        measure=toxicity,
        judge=lambda n: judged(
            f"Ten values whose tokens score low change toxic continuations from {percent(n.plain)} to "
            f"{percent(n.picked)}.",
            True if n.picked.high < n.plain.low else False if n.picked.value >= n.plain.value else None,
        ),
        origins=(Origin("toxicity and perplexity", "58.5 to 30.8 %, 21.7 to 25.3, and more", PRINTED, "Tab. 5"),),
    ),
)


def toxicity_section(m: Measurements) -> Section | None:
    """Show Table 5 for greedy decoding, for beam search, and as published; None without prompts."""
    found = m.applications
    if found.toxicity is None:
        return None
    on = "before the activation function" if m.options.pre_activation else "after the activation function"
    lensed = m.applications_by_lens
    notes = {
        "toxicity": (found.toxicity, "Greedy decoding."),
        "toxicity_by_lens": (
            None if lensed is None else lensed.toxicity,
            "Greedy decoding; the model's fitted lens gives the top tokens of values that the scorer scores.",
        ),
        "toxicity_by_beams": (
            found.toxicity_by_beams,
            f"Beam search of {m.options.beams}; the paper's code uses 3.",
        ),
        "toxicity_published": (found.published_toxicity, "As printed: Tab. 5 of the paper."),
    }
    return Section(
        "Suppressing toxic text (Sec. 6.1)",
        (
            f"Values are turned on by setting their coefficient to 3, {on}. Continuations have 20 tokens and are "
            f"scored by {found.toxicity.provenance.notes['scorer']}. In the paper they are scored by the Perspective "
            "API, so shares can be compared with each other, but not with the published ones. The released word filter "
            "bans the tokens of each word with a space before it; the strict one bans the word in any spelling.",
            found.perplexity_text,
        ),
        tuple(
            _in_shares(
                name,
                table,
                note,
                [c for c in table.column_names if c not in ("arm", "perplexity", "published_perplexity")]
                if name == "toxicity_published"
                else [*ATTRIBUTES, "toxicity_low", "toxicity_high", "published_toxicity"],
                apart=(("perplexity", "published_perplexity"),),
                folded=name == "toxicity_published",
            )
            for name, (table, note) in notes.items()
            if table is not None
        ),
    )


_PROTOCOLS = {
    "paper": "as in the paper: l1 or l2 and seven strengths, chosen in eight folds",
    "quick": "with l2 and three strengths, chosen in three folds (the paper: l1 or l2, seven strengths, eight folds)",
}


_BY_LENS = (
    "The paper decodes a layer's prediction with the final norm and the unembedding, as if no layer followed. The "
    "model's fitted lens first maps the stream to the end of the model. With the lens, a prediction can settle at "
    "another layer, and a rule that exits there can give another token. The last table has the same rules with the "
    "lens. The verdict is about the paper's way of decoding."
)


def early_exit_section(m: Measurements) -> Section | None:
    """Show Tables 6, 9 and 10; None if they were not measured."""
    found, lensed = m.applications, m.applications_by_lens
    if found.saturation is None or found.early_exit is None:
        return None
    saturation = found.saturation if lensed is None or lensed.saturation is None else lensed.saturation
    spread = "Mean and standard deviation over five splits."
    n = sum(int(row["examples"]) for row in found.saturation.rows())
    accuracies = ["accuracy", "accuracy_std", "published_accuracy", "published_accuracy_std"]
    return Section(
        "Early exit (Sec. 6.2)",
        (
            *small_sample(n),
            f"Measured on {n:,} examples (the paper: 10,000), one random prefix of each sentence. The sub-updates rule "
            "compares the clusters of a layer's ten dominant sub-updates with those of training examples that settled "
            "at this layer and at each later one. The paper's text compares them as sets (this is judged), its "
            "released code in the order of the sub-updates. Classifiers are fitted "
            f"{_PROTOCOLS[m.options.exit_protocol]}, and exit above the threshold with the largest F1. Confidence "
            "rules have a threshold that is calibrated so that at most 5 % of the predictions change.",
            *([] if lensed is None else [_BY_LENS]),
        ),
        (
            _in_shares("saturation_frequency", saturation, "", ["share", "lens_share"]),
            _in_shares("early_exit", found.early_exit, spread, accuracies),
            *(
                []
                if lensed is None or lensed.early_exit is None
                else [_in_shares("early_exit_by_lens", _own(lensed.early_exit), spread, accuracies)]
            ),
        ),
    )


def _own(table: Table) -> Table:
    """Return the table of the rules without the published columns, because the paper did not use a fitted lens."""
    columns = {name: table.columns[name] for name in table.column_names if not name.startswith("published_")}
    return Table(f"{table.title}, predictions read by the fitted lens", columns, table.provenance)


def small_sample(n: int) -> tuple[str, ...]:
    """Return a note on the precision of numbers from fewer examples than in the paper; empty if there are as many."""
    if n >= PAPER_EXAMPLES:
        return ()
    tested = max(n // 10, 1)
    accuracy, share = (196 * (p * (1 - p) / of) ** 0.5 for p, of in ((0.94, tested), (0.1, n)))
    near = [format_number(half, decimals=1) for half in (accuracy, share)]
    return (
        f"The sample is small: each split tests on {tested:,} examples (the paper: {PAPER_EXAMPLES // 10:,}). An "
        f"accuracy near the paper's 94.1 % is therefore known to ± {near[0]} points, and a layer's share near "
        f"10 % to ± {near[1]} points. `--option exit_examples={PAPER_EXAMPLES}` takes as many as the "
        "paper.",
    )


def notes_section(m: Measurements) -> Section | None:
    """List each experiment that was not run, with the reason; None if all were run."""
    return Section("Not measured", m.applications.notes) if m.applications.notes else None


def _in_shares(name: str, table: Table, note: str, percent: Sequence[str], **shown: Any) -> Exhibit:
    """Return a table as an exhibit, with the columns `percent` converted from percent to shares (0 to 1)."""
    columns = {column: table.columns[column] for column in table.column_names}
    if "method" in columns:
        columns["method"] = [name.replace("_", "-") for name in columns["method"]]
    shares = {c: [None if v is None else v / 100 for v in columns[c]] for c in percent if c in columns}
    return Exhibit(name, Table(table.title, columns | shares, table.provenance), note, tuple(shares), **shown)


PARTS = (Part(toxicity_section, TOXICITY), Part(early_exit_section, EARLY_EXIT), Part(notes_section))
