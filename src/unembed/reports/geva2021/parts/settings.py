"""The section that lists the options of this run, and where the paper's text and its released code differ."""

from __future__ import annotations

from dataclasses import fields

from unembed.document.exhibits import exhibit
from unembed.document.model import Section
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.options import Options
from unembed.reports.quantities import Part

_DIFFERENCES = {
    "draw": ("any prefix of the corpus", "one random position of each sentence, the empty prefix included"),
    "triggers": ("every prefix of every sentence", "one prefix of each sentence, never its last"),
    "target": ("the token that follows the prefix", "the prefix's own last token"),
    "basis": (
        "softmax(h E)",
        "the adaptive softmax; WikiLM has no last norm, and the follow-up's code applies GPT-2's",
    ),
    "values_basis": ("softmax(v E)", "the adaptive softmax of v"),
    "top": ("50 (25 for patterns, 1 for agreement)", "50"),
    "examples": ("4,000", "1,000 or all sentences"),
    "trigger_corpus": ("the training set; examples of the validation set", "the training set"),
    "perturbed_keys": ("100 of each layer", "not released"),
    "pattern_keys": ("10 of each layer", "not released"),
    "judge": ("people", "not released"),
    "compositions": ("100, by hand", "not released"),
}


def settings_section(m: Measurements) -> Section:
    """Show a table of the run's options, and the settings of the index from which the triggers come."""
    names = [f.name for f in fields(Options) if f.name not in ("index", "tokens_per_batch")]
    here = {name: str(getattr(value := getattr(m.options, name), "annotator", value)) for name in names}
    exhibits, text = [], ()
    if m.index_settings is not None:
        held = m.index_settings["top"]
        here |= {"top": f"{m.triggers.top}, as the index holds {held}", "triggers": "as the index (see below)"}
        own = {"setting": list(m.index_settings), "value": [str(value) for value in m.index_settings.values()]}
        exhibits.append(exhibit("index_settings", "How the index chose its triggers", own, m.provenance))
        if m.triggers.top < Options().top:
            text = (
                f"The study takes {Options().top} triggers for each key; the index has {held}, so shares of a key's "
                "triggers refer to these.",
            )
    paper_text, released = zip(*(_DIFFERENCES.get(name, ("", "")) for name in names), strict=True)
    cells = {"option": names, "here": list(here.values()), "paper_text": paper_text, "released_code_text": released}
    return Section(
        "Settings",
        (
            "Coefficients are those after the activation, biases included, as in the released code (the paper's "
            "formulas leave biases out). A trigger has a positive coefficient. A gated memory, whose coefficient can "
            "have either sign, counts as two keys: the second one has the triggers with negative coefficients, and its "
            "value is read negated. Intervals are 95 % confidence intervals. They are exact binomial intervals for "
            "shares, and otherwise percentile bootstraps over what was drawn at random: examples, whose layers are "
            "resampled together, or keys.",
            f"The upper layers are those as deep as the paper's 11 to 16. Seed {m.seed}; triggers for each key: "
            f"{m.triggers.top}.",
            *text,
        ),
        (exhibit("settings", "Settings of this run", cells, m.provenance), *exhibits),
    )


PARTS = (Part(settings_section),)
