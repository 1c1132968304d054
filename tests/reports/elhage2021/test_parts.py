"""Every finding of elhage2021 on made-up numbers: one set agrees, one disagrees, and one is inconclusive."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.reports.sample import part_of
from unembed.attention.behaviour.in_context import InContext
from unembed.attention.behaviour.induction import InductionEvidence
from unembed.attention.paths.erasure import ErasingHead, ErasingMemory, ErasureOnText, MemoryManagement
from unembed.document.intervals import Measured
from unembed.reports.elhage2021 import QUANTITIES
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.elhage2021.parts.heads import LayerOfHeads
from unembed.reports.quantities import Numbers, Quantity
from unembed.results import Provenance


def around(value: float, half: float) -> Measured:
    """A measured number with its interval."""
    return Measured(float(value), float(value - half), float(value + half), 100)


def evidence(induction: float, partner_previous: float = 0.9, copying: float = 0.8, head: int = 3) -> InductionEvidence:
    return InductionEvidence(1, head, copying, (0, 2), 0.05, 0.9, induction, partner_previous)


def losses(*late: float) -> InContext:
    """Windows whose loss is 5 early and so much late."""
    by_window = torch.full((len(late), 60), 5.0, dtype=torch.float64)
    by_window[:, 35:] = torch.tensor(late, dtype=torch.float64)[:, None]
    repeated = torch.arange(60).expand(len(late), 60) % 2 == 0
    return InContext(by_window, 10, 48, ((1, 2),), Provenance("tiny", None, "float32"), repeated)


def stream(
    memory: ErasureOnText | None, head: ErasureOnText | None, cosine: float = -0.8, negative: float = 0.9
) -> dict[str, Any]:
    memories = () if memory is None else (ErasingMemory(0, 5, cosine, memory),)
    heads = () if head is None else (ErasingHead(1, 2, negative, head),)
    return {
        "reads": "the key",
        "found": MemoryManagement(
            memories, (1, 0), -0.6, 100, torch.zeros(2, 4), heads, (0.32, 0.05), Provenance("tiny", None, "float32")
        ),
    }


PAIR = ((0, 2), (1, 3))
PEAKS = {"k": (0.2, *PAIR), "q": (0.02, *PAIR), "v": (0.03, *PAIR)}
COMPOSITION: dict[str, Any] = {
    "z": 40.0, "previous": around(0.9, 0.05), "peaks": PEAKS,
    "n_reaching_half": {"k": 1, "q": 0, "v": 0},
}  # fmt: skip
POSITION: dict[str, Any] = {
    "head": "1.3", "induction": 0.9, "attention": 0.9, "effect": 2.0, "attended": (24, "a"), "expected": (24, "a"),
}  # fmt: skip
MANY = {**COMPOSITION, "n_reaching_half": {"k": 9, "q": 3, "v": 2}}
NOTHING = {**COMPOSITION, "z": 2.0}
PATH = {"spearman": 0.3, "frequency": 0.25, "ceiling": 0.44, "losses": (6.9, 5.4, 6.4)}
TRIPLES: dict[str, Any] = {"likelier": 0.6, "shuffled": 0.5, "occurring": 9, "n": 40}
BUGS: dict[str, Any] = {"occurring": 9.0, "chance_occurring": 4.0, "chance_crossed": 30.0}
IMPORTANCE: dict[str, Any] = {"per_term": [0.1, 0.01]}
ERASES, ADDS, COIN = (ErasureOnText(2.0, *x, 100) for x in ((1.0, 0.9), (3.0, 0.1), (1.9, 0.5)))
COPIES: dict[str, Any] = {"heads": 40, "best": (1, 2, 3.5), "most": 0.3, "layers": 4, "effect": around(1, 0.1)}
WITHOUT: dict[str, Any] = {
    "heads": ((1, 2),), "others": ((1, 3),), "repeated": around(0.8, 0.1), "new": around(0.3, 0.1),
}  # fmt: skip
LAYERS: dict[str, Any] = {"limit": 1e-4, "n_tokens": 47}
PAIRS: dict[str, Any] = {"pairs": [None] * 10, "n_pairs": 64, "limit": 1e-4, "most": 1.0, "norms": True}
NATURAL: dict[str, Any] = {
    "token": " month", "head": "L1H3", "induction": 0.9, "n_windows": 4, "attention": around(0.6, 0.1),
    "others": around(0.1, 0.05), "effect": around(1, 0.1),
}  # fmt: skip
READ: dict[str, Any] = {"n_previous": 2, "n_induction": 5, "first": 4, "pairs": 9}
CASES: dict[str, tuple[dict[str, Any], ...]] = {
    # Bigrams no better than token frequencies leave nothing to reach.
    "bigram table": tuple({"losses": x} for x in ((5.5, 5.0, 7.0), (6.9, 5.0, 7.0), (6.0, 7.0, 7.0))),
    "direct path": tuple({**PATH, "partial": around(*x)} for x in ((0.2, 0.05), (0.0, 0.03), (0.06, 0.04))),
    "copying": ({"scores": [0.9, 0.8, 0.1]}, {"scores": [0.9, 0.1, 0.1]}),
    "skip-trigrams": tuple({**TRIPLES, "gain": around(*x)} for x in ((0.2, 0.1), (-0.2, 0.1), (0.1, 0.2))),
    "bugs": (
        {**BUGS, "gain": around(5, 2), "crossed": 30.0},
        {**BUGS, "gain": around(5, 2), "crossed": 0.0},
        {**BUGS, "gain": around(1, 2), "crossed": 30.0},
    ),
    "path expansion": tuple({"error": error, "n_terms": 9} for error in (1e-6, 1e-2)),
    "virtual heads": tuple(
        {**IMPORTANCE, "reductions": [one, 0.1], "above_one": rest}
        for one, rest in ((1.0, 0.2), (0.655, 0.745), (0.01, 0.0))
    ),
    "second layer": tuple(
        {**IMPORTANCE, "reductions": [1.0, 0.1], "by_layer": {0: 0.5, 1: 0.9}, "given_others": x}
        for x in ({0: 0.1, 1: 0.9}, {0: 0.5, 1: 0.9}, {0: 0.01, 1: 0.04})
    ),
    "primitive in-context learning": tuple(
        {"repeated": around(0.8, 0.1), "new": around(0.3, 0.1), "lead": around(*x)}
        for x in ((0.5, 0.1), (-0.5, 0.1), (0.1, 0.2))
    ),
    "no privileged basis": (
        {"error": 1e-6, "why": "", "exact": True},
        {"error": 0.1, "why": "", "exact": True},
        {"error": None, "why": "the stream of x cannot be rotated in place", "exact": True},
    ),
    "K-composition": tuple({**COMPOSITION, "previous": around(*x)} for x in ((0.9, 0.05), (0.02, 0.01), (0.3, 0.05))),
    "Q-composition": (COMPOSITION, MANY, NOTHING),
    "V-composition": (COMPOSITION, MANY, NOTHING),
    "induction heads": tuple(
        {"evidence": [evidence(x)], "most": around(x, 0.05)} for x in (0.9, 0.1, 0.31)
    ),
    "induction by weights": (
        {"evidence": [evidence(0.9)]},
        {"evidence": [evidence(0.9, partner_previous=0.05)]},
        {"evidence": [evidence(0.1)]},
    ),
    "one position": (POSITION, {**POSITION, "attended": (3, "b")}, {**POSITION, "induction": 0.1}),
    "in-context learning": tuple({"whole": losses(*x)} for x in ((4.0, 4.1, 3.9), (5.0, 5.1, 4.9), (4.5, 5.2, 5.0))),
    "ablation": (
        {"whole": losses(4.0, 4.1, 3.9), "without": losses(4.9, 5.0, 4.8), "others": losses(4.1, 4.1, 4.0)},
        {"whole": losses(4.0, 4.1, 3.9), "without": losses(4.1, 4.2, 4.0), "others": losses(4.1, 4.1, 4.0)},
        {"whole": losses(5.0, 5.1, 4.9), "without": losses(5.0, 5.1, 4.9), "others": None},
    ),
    "independence of heads": tuple(
        {**LAYERS, "layers": [LayerOfHeads(0, 4, total, 1, removal, 1e-7, 0.0, "", False)]}
        for total, removal in ((1e-7, 1e-6), (1e-7, 0.3))
    ),
    "same effect at all destinations": tuple(
        {**LAYERS, "layers": [LayerOfHeads(0, 4, 1e-7, 1, 1e-6, 1e-7, error, "", False)]} for error in (1e-7, 0.2)
    ),
    "products of heads": tuple(
        {**PAIRS, "error": error, "future": future} for error, future in ((1e-7, 0.0), (0.1, 0.0))
    ),
    "natural text": tuple(
        {**NATURAL, "lead": around(*lead), "found": [None] * count}
        for lead, count in (((0.5, 0.1), 9), ((-0.1, 0.05), 9), ((0.5, 0.1), 2))
    ),
    "memory management": (stream(ERASES, None), stream(ADDS, ADDS), stream(None, COIN)),
    "copying in deeper models": tuple(
        {**COPIES, "copies": n, "lead": around(*x)} for n, x in ((3, (0.5, 0.1)), (0, (0.5, 0.1)), (3, (0.1, 0.2)))
    ),
    "skip-trigrams in deeper models": tuple(
        {"layers": [0, 1], "own": around(0.6, 0.1), "shuffled": around(0.5, 0.1), "better": 60, "gain": around(*x)}
        for x in ((0.1, 0.05), (-0.1, 0.05), (0.0, 0.1))
    ),
    "bugs in deeper models": tuple(
        {"gain": around(*x), "crossed": around(9, 1)} for x in ((2, 1), (-2, 1), (0, 1))
    ),
    "primitive in-context learning in deeper models": tuple(
        {**WITHOUT, "lead": around(*lead), "beyond": beyond}
        for lead, beyond in (((0.5, 0.1), around(0.4, 0.1)), ((0.0, 0.01), around(0, 0.01)), ((0.5, 0.1), None))
    ),
    "path expansion in deeper models": tuple({"error": x, "limit": 1e-4, "n_terms": 9} for x in (1e-6, 1e-2)),
    "virtual heads in deeper models": tuple(
        {"reductions": [one], "above_one": rest} for one, rest in ((1.0, 0.2), (-0.5, 2.6), (0.01, 0.0))
    ),
    "second layer in deeper models": tuple(
        {"given_others": x}
        for x in ({0: 0.1, 2: 0.1, 3: 0.4, 5: 0.5}, {0: 0.4, 2: 0.5, 3: 0.1, 5: 0.1}, {0: 0.01, 5: 0.04})
    ),
    "K-composition in deeper models": tuple(
        {**READ, "pairs": pairs, "excess": {"k": excess}}
        for pairs, excess in ((9, around(0.1, 0.05)), (0, around(0.1, 0.05)), (9, around(0.1, 0.2)))
    ),
    **{
        f"{mode.upper()}-composition in deeper models": tuple(
            {**READ, "excess": {mode: around(0.02, 0.01)}, "over": {mode: around(*x)}}
            for x in ((0.1, 0.05), (-0.1, 0.05), (0.1, 0.2))
        )
        for mode in "qv"
    },
}  # fmt: skip
DEEPER = " in deeper models"
SMALL = {"seed": 0, "layer": 0}
"""What the cases have in common."""
VERDICTS = ("agrees", "differs", "inconclusive")
LACKS = {
    *("virtual heads", "second layer", "virtual heads in deeper models", "second layer in deeper models"),
    *("no privileged basis", "Q-composition", "V-composition", "induction by weights", "one position", "ablation"),
    "primitive in-context learning in deeper models",
}
"""The claims whose third case is a model that lacks what they are about, whatever the sample."""


@pytest.mark.parametrize("claim", QUANTITIES, ids=lambda c: c.name)
def test_the_test_of_every_finding_can_pass_fail_and_stay_open(claim) -> None:
    found = tuple(claim.judge(Numbers(**{**SMALL, **numbers})).verdict for numbers in CASES[claim.name])
    verdicts = (*VERDICTS[:2], "not applicable") if claim.name in LACKS else VERDICTS
    assert found == verdicts[: len(found)] and len(found) >= 2, "those that need no sample are never open"
    assert claim.test and claim.where and claim.what


def test_every_claim_has_made_up_numbers_and_olssons_claims_are_theirs() -> None:
    assert {*CASES} == {claim.name for claim in QUANTITIES} and len(CASES) == len(QUANTITIES)
    theirs = {claim.name for claim in QUANTITIES if claim.where.startswith("Olsson et al. 2022")}
    assert theirs == {"in-context learning", "ablation"}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_claim_of_one_or_two_layers_has_a_question_for_deeper_models(depth: int) -> None:
    m = part_of(Measurements, lm=SimpleNamespace(n_layers=depth))
    extensions = {q.name.removesuffix(DEEPER) for q in QUANTITIES if q.name.endswith(DEEPER)}
    own = {q.name for q in QUANTITIES if q.extends(m)}
    assert own == ({"induction heads", "induction by weights", "one position", "natural text"} if depth == 3 else set())
    of_two = {"virtual heads", "second layer", "K-composition", "Q-composition", "V-composition"}
    of_one = {"copying", "skip-trigrams", "bugs", "primitive in-context learning"}
    assert extensions == {*of_one, *of_two, "path expansion"}
    silent = {q.name for q in QUANTITIES if q.name.removesuffix(DEEPER) in {*of_one, *of_two} and not_measured(q, m)}
    for name in of_one:
        assert (name in silent) == (depth != 1) and (name + DEEPER in silent) == (depth == 1)
    for name in of_two:
        assert (name in silent) == (depth != 2) and (name + DEEPER in silent) == (depth < 3)


def not_measured(quantity: Quantity[Any], m: Any) -> bool:
    """Whether a model of this depth is left out before anything of it is read."""
    try:
        return quantity.measure(m) is None
    except AttributeError:
        return False


def test_the_direct_path_is_next_to_token_frequency_and_to_the_other_half_of_the_text() -> None:
    claim = next(c for c in QUANTITIES if c.name == "direct path")
    here = claim.judge(Numbers(**CASES["direct path"][0])).here
    assert "Token frequency alone reaches 0.25, the other half of the text 0.44" in here
    assert "a residual of the bigram table" in claim.claim


def test_heads_that_matter_as_much_as_others_do_not_account_for_learning_in_context() -> None:
    claim = next(c for c in QUANTITIES if c.name == "ablation")
    agrees = CASES["ablation"][0]
    assert claim.judge(Numbers(**{**SMALL, **agrees, "others": agrees["without"]})).verdict != "agrees"
    assert claim.judge(Numbers(**{**SMALL, **agrees, "others": None})).verdict == "inconclusive"


def test_erasing_by_weights_alone_is_not_enough() -> None:
    claim = next(c for c in QUANTITIES if c.name == "memory management")
    assert claim.judge(Numbers(**stream(ERASES, None, cosine=-0.1))).verdict == "differs", (
        "its weights are as random ones"
    )
    assert claim.judge(Numbers(**stream(None, ERASES, negative=0.4))).verdict == "differs"
    assert claim.judge(Numbers(**stream(None, ERASES))).verdict == "agrees"
