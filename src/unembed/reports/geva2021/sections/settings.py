"""Section "Settings": every choice of this run, and where the paper's text and its released code part."""

from __future__ import annotations

from dataclasses import fields

from unembed.document.model import Exhibit, Section
from unembed.reports.geva2021.formatting import provenance_of
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.options import Options
from unembed.results import Table

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
    """The options of the run as a table."""
    names = [f.name for f in fields(Options) if f.name not in ("index", "tokens_per_batch")]
    here = {name: str(getattr(value := getattr(m.options, name), "annotator", value)) for name in names}
    exhibits, text = [], ()
    if m.index_settings is not None:
        index_settings = m.index_settings
        here |= {
            "top": f"{m.triggers.top}, as the index holds {index_settings['top']}",
            "triggers": "as the index (see below)",
        }
        own = {"setting": list(index_settings), "value": [str(value) for value in index_settings.values()]}
        table = Table("How the index chose its triggers", own, provenance_of(m))
        exhibits.append(Exhibit("index_settings", table))
        default = Options().top
        if m.triggers.top < default:
            text = (
                f"The study takes {default} triggers for each key; the index holds {index_settings['top']}, so that "
                "shares of a key's triggers are of these.",
            )
    table = {
        "option": names,
        "here": list(here.values()),
        "paper_text": [_DIFFERENCES.get(name, ("", ""))[0] for name in names],
        "released_code_text": [_DIFFERENCES.get(name, ("", ""))[1] for name in names],
    }
    return Section(
        "Settings",
        (
            "Coefficients are those after the activation, biases included, as in the released code (the formulas "
            "leave biases out). A trigger has a positive coefficient; gated layers, whose coefficients are signed, "
            "have triggers of the negative pole as well, for which values are read negated. Intervals are 95 %: "
            "exact binomial bounds for shares, else percentile bootstraps over what was drawn at random: examples, "
            "whose layers are resampled together, or keys.",
            f"The upper layers are those as deep as the paper's 11 to 16. Seed {m.seed}; triggers for each key: "
            f"{m.triggers.top}.",
            *text,
        ),
        (Exhibit("settings", Table("Settings of this run", table, provenance_of(m))), *exhibits),
    )
