"""Section 6: early exit (Tables 6, 9 and 10) and, where prompts are given, toxic continuations (Table 5)."""

from __future__ import annotations

from collections.abc import Mapping

from unembed.reports.document.model import Exhibit, Finding, Section
from unembed.reports.geva2022.measurements import Measurements


def sections(m: Measurements, findings: Mapping[str, tuple[Finding, ...]]) -> list[Section]:
    """What was measured of section 6, and a line for each part that was not."""
    found, made = m.applications, []
    if found.toxicity is not None:
        exhibits = [Exhibit("toxicity", found.toxicity)]
        if found.published_toxicity is not None:
            exhibits.append(Exhibit("toxicity_published", found.published_toxicity, folded=True))
        made.append(Section("Suppressing toxic text (Sec. 6.1)", (), tuple(exhibits), (), findings.get("toxicity", ())))
    if found.saturation is not None and found.early_exit is not None:
        text = (
            f"{m.options.exit_examples:,} examples (the paper: 10,000), one random prefix of each sentence. The "
            "sub-updates rule compares the clusters of a layer's ten dominant sub-updates with those of training "
            "examples that settled at this layer and at each later one. Classifiers leave above a precision of 0.75, "
            "confidence rules by a promise of at most 5 % disagreement.",
        )
        exhibits_ = (
            Exhibit("saturation_frequency", found.saturation),
            Exhibit(
                "early_exit", found.early_exit, "Mean and standard deviation over five splits; accuracy in per cent."
            ),
        )
        made.append(Section("Early exit (Sec. 6.2)", text, exhibits_, (), findings.get("early exit", ())))
    if found.notes:
        made.append(Section("Not measured", found.notes))
    return made
