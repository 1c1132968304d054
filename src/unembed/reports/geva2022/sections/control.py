"""Section 6: early exit (Tables 6, 9 and 10) and, where prompts are given, toxic continuations (Table 5)."""

from __future__ import annotations

from typing import Any

from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.reports.claims import row
from unembed.reports.document.model import Exhibit, Section
from unembed.reports.geva2022.section_6 import Section6, section_6
from unembed.reports.stages import Work


def sections(lm: Decoder, corpus: Any, work: Work, *, n: int, prompts: str | None, words: str | None) -> list[Section]:
    """Early exit on n examples, none with n = 0 or one layer; toxicity where a file of prompts is named."""
    if n < 20 or lm.n_layers < 2:
        return []
    try:
        found = section_6(
            lm,
            corpus,
            n=n,
            seed=work.seed,
            prompts=prompts,
            words=words,
            cache=None if prompts is None else work.out / "continuations",
            progress=work.progress,
        )
    except InvalidInput as error:
        return [Section("Early exit (Sec. 6.2)", (f"Not measured: {error}",))]
    made = [_early_exit(found)]
    return made if found.toxicity is None else [_toxicity(found), *made]


def _early_exit(found: Section6) -> Section:
    rows = {row["method"]: row for row in found.early_exit.rows()}
    rule, both, oracle = rows["sub_updates"], rows["both"], rows["oracle"]
    last = list(found.saturation.rows())[-1]
    here = (
        f"{rule['accuracy']:.1f} % right, {rule['saved_layers']:.2f} layers saved (an oracle saves "
        f"{oracle['saved_layers']:.2f}); the best classifier kind of the paper, both: {both['accuracy']:.1f} % and "
        f"{both['saved_layers']:.2f}."
    )
    agrees = bool(rule["accuracy"] >= both["accuracy"] - 1 and rule["saved_layers"] >= both["saved_layers"])
    findings = (
        row(
            "The sub-updates rule saves 3.2 of 16 layers at an accuracy of 94.1 %, as good as trained classifiers.",
            here,
            agrees,
            "Sec. 6.2, Tab. 6",
        ),
        row(
            "84.8 % (WikiLM) and 65.9 % (GPT2) of predictions settle before the last layer.",
            f"{100 - last['share']:.1f} % do.",
            bool(last["share"] < 50),
            "App. A.5, Tabs. 9-10",
        ),
    )
    text = (
        "One random prefix of each sentence. The sub-updates rule compares the clusters of a layer's ten dominant "
        "sub-updates with those of training examples that settled at this layer and at each later one. Classifiers "
        "leave above a precision of 0.75, confidence rules by a promise of at most 5 % disagreement.",
    )
    exhibits = (
        Exhibit("saturation_frequency", found.saturation),
        Exhibit("early_exit", found.early_exit, "Mean and standard deviation over five splits; accuracy in per cent."),
    )
    return Section("Early exit (Sec. 6.2)", text, exhibits, (), findings)


def _toxicity(found: Section6) -> Section:
    assert found.toxicity is not None
    rows = {row["arm"]: row for row in found.toxicity.rows()}
    plain, picked = rows["plain"]["toxicity"], rows["values picked by a scorer"]["toxicity"]
    finding = row(
        "Ten values whose tokens score low cut toxic continuations from 58.5 to 52.7 %; ten picked by hand, to 30.8 %.",
        f"Ten values whose tokens score low change them from {plain:.1f} to {picked:.1f} %.",
        bool(picked < plain),
        "Sec. 6.1, Tab. 5",
    )
    exhibits = (
        Exhibit("toxicity", found.toxicity),
        Exhibit("toxicity_published", found.published_toxicity, folded=True),
    )
    return Section("Suppressing toxic text (Sec. 6.1)", (), exhibits, (), (finding,))
