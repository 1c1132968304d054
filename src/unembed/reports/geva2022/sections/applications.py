"""Section 6: early exit (Tables 6, 9 and 10) and, where prompts are given, toxic continuations (Table 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unembed.document.model import Exhibit, Finding, Section
from unembed.reports.geva2022.measurements import Measurements
from unembed.results import Table

PAPER_EXAMPLES = 10_000
"""Examples behind Tables 6, 9 and 10 of the paper; a tenth of them is for testing."""


_TOXIC = ("toxicity", "toxicity_low", "toxicity_high", "published_toxicity")
_PERPLEXITY = (("perplexity", "published_perplexity"),)


def small_sample(n: int) -> tuple[str, ...]:
    """How far numbers of fewer examples than the paper has can be trusted; empty where there are as many."""
    if n >= PAPER_EXAMPLES:
        return ()
    tested = max(n // 10, 1)
    accuracy, share = (196 * (p * (1 - p) / of) ** 0.5 for p, of in ((0.94, tested), (0.1, n)))
    return (
        f"Small sample: each split tests on {tested:,} examples (the paper: {PAPER_EXAMPLES // 10:,}), so that an "
        f"accuracy near the paper's 94.1 % is known to ± {accuracy:.1f} points, and a layer's share near 10 % to ± "
        f"{share:.1f} points. `--option exit_examples={PAPER_EXAMPLES}` takes as many as the paper.",
    )


def sections(m: Measurements, findings: Mapping[str, tuple[Finding, ...]]) -> list[Section]:
    """What was measured of section 6, and a line for each part that was not."""
    found, made = m.applications, []
    if found.toxicity is not None:
        exhibits = [_in_shares("toxicity", found.toxicity, "Greedy decoding.", *_TOXIC, apart=_PERPLEXITY)]
        if found.toxicity_by_beams is not None:
            note = f"Beam search of {m.options.beams}; the paper's code uses 3."
            beams = found.toxicity_by_beams
            exhibits.append(_in_shares("toxicity_by_beams", beams, note, *_TOXIC, apart=_PERPLEXITY))
        on = "before the activation function" if m.options.pre_activation else "after the activation function"
        text = (
            f"Values are turned on by setting their coefficient to 3, {on}. Continuations are of 20 tokens, scored by "
            "the linear scorer that comes with the package; the paper's are scored by the Perspective API, so that "
            "shares compare with each other, not with the published ones. The released word filter bans the tokens of "
            "each word with a space before it; the strict one bans the word in any spelling.",
            found.perplexity_text,
        )
        if found.published_toxicity is not None:
            note = "As printed: Tab. 5 of the paper."
            printed, attributes = found.published_toxicity, set(found.published_toxicity.column_names)
            shares = attributes - {"arm", "perplexity"}
            exhibits.append(_in_shares("toxicity_published", printed, note, *shares, apart=_PERPLEXITY, folded=True))
        made.append(
            Section("Suppressing toxic text (Sec. 6.1)", text, tuple(exhibits), (), findings.get("toxicity", ()))
        )
    if found.saturation is not None and found.early_exit is not None:
        n = sum(int(row["examples"]) for row in found.saturation.rows())
        text = (
            *small_sample(n),
            f"{n:,} examples (the paper: 10,000), one random prefix of each sentence. The "
            "sub-updates rule compares the clusters of a layer's ten dominant sub-updates with those of training "
            "examples that settled at this layer and at each later one. Classifiers leave above a precision of 0.75, "
            "confidence rules by a promise of at most 5 % disagreement.",
        )
        exhibits_ = (
            _in_shares("saturation_frequency", found.saturation, "", "share"),
            _in_shares(
                "early_exit",
                found.early_exit,
                "Mean and standard deviation over five splits.",
                *("accuracy", "accuracy_std", "published_accuracy", "published_accuracy_std"),
            ),
        )
        made.append(Section("Early exit (Sec. 6.2)", text, exhibits_, (), findings.get("early exit", ())))
    if found.notes:
        made.append(Section("Not measured", found.notes))
    return made


def _in_shares(name: str, table: Table, note: str, *percent: str, **shown: Any) -> Exhibit:
    """A table with columns in percent, as shares."""
    columns = {column: table.columns[column] for column in table.column_names}
    if "method" in columns:
        columns["method"] = [name.replace("_", "-") for name in columns["method"]]
    shares = {c: [None if v is None else v / 100 for v in columns[c]] for c in percent if c in columns}
    return Exhibit(name, Table(table.title, columns | shares, table.provenance), note, tuple(shares), **shown)
