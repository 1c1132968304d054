"""The score counts what is significant, and the description names nothing that the evidence does not hold."""

from __future__ import annotations

import json

from unembed.gallery import Gallery, MemoryDescriptions
from unembed.gallery.descriptions import has_theme
from unembed.gallery.evidence import INGREDIENTS, Evidence, MemoryEvidence, Truth, describe, describe_pattern, score
from unembed.gallery.trigger_patterns import Slot, TriggerPattern
from unembed.results import Provenance

PATTERN = TriggerPattern((Slot(-1, " on", True, 0.9, 0.01, 1e-9), Slot(0, "numbers", False, 0.9, 0.05, 1e-9)), None)
MONTHS = (" March", " August", " May", " July")
FULL: dict[str, Evidence | None] = {name: Evidence(0.5, 0.001) for name in INGREDIENTS}


def test_the_score_is_the_mean_of_the_significant_sizes():
    assert score(FULL) == 0.5
    assert score({**FULL, "effect": None}) == 0.4
    assert score({**FULL, "coherence": Evidence(1.0, 0.02)}) == 0.4
    assert score(dict.fromkeys(INGREDIENTS)) == 0.0


def test_a_pattern_of_triggers_that_promoted_tokens_do_not_follow_does_not_count():
    apart: dict[str, Evidence | None] = {**FULL, "agreement": Evidence(0.0, 1.0)}
    assert abs(score(apart) - 0.3) < 1e-12


def test_a_description_names_pattern_and_concept():
    assert (
        describe(describe_pattern(PATTERN), "months", MONTHS, MONTHS, FULL)
        == "after 'on' + numbers: months (March, August, May)"
    )


def test_what_is_not_significant_is_not_named():
    weak: dict[str, Evidence | None] = {**FULL, "concept": Evidence(0.5, 0.5)}
    assert describe(describe_pattern(PATTERN), "months", MONTHS, MONTHS, weak) == (
        "after 'on' + numbers: tokens such as 'March', 'August', 'May'"
    )
    small: dict[str, Evidence | None] = {**FULL, "concept": Evidence(0.1, 1e-9)}
    assert "months" not in describe(describe_pattern(PATTERN), "months", MONTHS, MONTHS, small)
    loose: dict[str, Evidence | None] = {**FULL, "triggers": Evidence(0.9, 0.5)}
    assert describe(describe_pattern(PATTERN), "months", MONTHS, MONTHS, loose) == "months (March, August, May)"


def test_a_negative_pole_has_a_minus_sign():
    row = MemoryEvidence(5, 278, "negative", "", MONTHS, (1, 2, 3, 4), None, (), None, dict(FULL))
    assert row.name == "-L5M278" and row.to_dict()["memory"] == "-L5M278" and row.to_dict()["score"] == 0.5


def test_a_memory_of_an_expert_carries_its_expert_in_its_name_and_comes_back_from_json() -> None:
    row = MemoryEvidence(5, 37, "negative", "", MONTHS, (1, 2, 3, 4), None, (), None, dict(FULL), (4, 16))
    assert row.name == "-L5E2M5"
    assert MemoryEvidence.from_dict(json.loads(json.dumps(row.to_dict()))) == row


def test_a_description_that_its_effect_does_not_bear_out_is_none() -> None:
    row = MemoryEvidence(5, 278, "negative", "months", MONTHS, (1, 2, 3, 4), None, (), None, dict(FULL))
    true, untrue = (row.with_truth(Truth(r, 0.3)) for r in (0.8, 0.05))
    assert true.description == "months" and has_theme(true)
    assert untrue.description.startswith(
        "adding it raises what it lists no more than adding other values does (r 0.05,"
    )
    assert (
        not has_theme(untrue)
        and len(MemoryDescriptions(Gallery((true, untrue), Provenance("m", None, "float32")))) == 1
    )
    for one in (row, true, untrue):
        assert MemoryEvidence.from_dict(one.to_dict()) == one
