"""What heads of SmolLM2 map to what, and how far estimates of its parts' effects are measured, by its own runs."""

from __future__ import annotations

import pytest

from unembed.attention.circuits import circuits
from unembed.attention.text.relations import relations_of_heads
from unembed.attention.text.word_relations import Relation, open_relation, token_pairs
from unembed.causality import attribution_patching, logit_difference
from unembed.language_model import LanguageModel


def test_a_head_maps_countries_to_their_capitals_and_no_head_maps_them_to_other_capitals(
    smollm2: LanguageModel,
) -> None:
    capitals = open_relation("country_to_capital")
    known = token_pairs(smollm2, capitals)
    sources = smollm2.token_strings(known.sources)
    targets = smollm2.token_strings([min(several) for several in known.targets])
    turned = Relation.of(list(zip(sources, [*targets[7:], *targets[:7]], strict=True)), "other capitals")
    found, control = relations_of_heads(circuits(smollm2), [capitals, turned])
    assert len(found.pairs) == len(control.pairs) == 38
    assert found.share[29, 2] >= 0.75 and found.p_value[29, 2] < 0.01
    assert found.shuffled[29, 2] < 0.01
    assert float(control.share.max()) <= 1 / len(control.pairs)
    assert float(control.p_value.min()) > 0.05


def test_estimates_of_effects_are_compared_in_size_and_what_they_miss_is_bounded(smollm2: LanguageModel) -> None:
    found = attribution_patching(
        smollm2,
        "The keys to the cabinet",
        logit_difference(" are", " is"),
        corrupted="The key to the cabinet",
        top=10,
        sample=20,
    )
    compared = {(one.parts, one.estimate): one for one in found.agreements}
    heads = compared["all heads", "gradient"]
    assert heads.number == 270 and heads.pearson > 0.9
    assert compared["all heads", "relevance"].pearson > 0.9
    drawn = [one for one in found.agreements if one.parts.startswith("other memories")]
    assert {one.estimate for one in drawn} == {"gradient", "relevance"}
    assert all(one.number == 20 and -1 <= one.pearson <= 1 for one in drawn)
    missed = found.unmeasured
    assert missed is not None and missed.drawn == 20
    assert missed.share == pytest.approx(1 - 0.05 ** (1 / 20))
    assert 0 < missed.largest < max(abs(effect) for effect in found.exact)
