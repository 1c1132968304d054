"""Induction on natural text: which token, which positions, and the head's numbers, against a plain recomputation."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import unembed
from tests.families import build
from tests.sweeps.recorder import lettered
from unembed.errors import InvalidInput
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.elhage2021.options import Options
from unembed.reports.elhage2021.parts import natural_text
from unembed.reports.elhage2021.parts.natural_text import recurrences, token_that_recurs
from unembed.reports.quantities import Numbers
from unembed.reports.stages import Work
from unembed.stream.run import run

TEXT = ["a quick fox met a quiet fox and a fox met me. " * 3] * 2


def test_a_recurrence_has_what_followed_every_earlier_occurrence() -> None:
    assert recurrences([5, 1, 5, 2, 5, 5, 3], 5) == [(2, (1,)), (4, (1, 3)), (5, (1, 3))]
    assert recurrences([5, 5], 5) == [] == recurrences([1, 2], 5)


def test_the_token_is_the_one_followed_most_often_by_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natural_text, "FREQUENT", 1)
    windows = [[9, 9, 9, 9, 7, 1, 7, 1, 7, 2], [9, 9, 8, 1, 8, 1, 8, 1, 9]]
    assert token_that_recurs(windows, {7, 8}) == 8
    assert token_that_recurs(windows, {7, 9}) == 7, "the most frequent token is left out"
    assert token_that_recurs([[7, 1, 7, 2]], {7}) is None


def measured(path: Path, token: str | None, family: str = "llama") -> Measurements:
    lm = unembed.load(build(family, torch.float64), tokenizer=lettered(family).tokenizer)
    options = Options(sequences=2, tokens=200, windows=3, token=token)
    return Measurements(lm, unembed.open_corpus(TEXT), Work(path, {}), options)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@torch.no_grad()
def test_attention_and_effect_are_those_of_the_model(family: str, tmp_path: Path) -> None:
    m = measured(tmp_path, "f", family)
    n = natural_text.on_natural_text(m)
    assert n is not None and n.token == "f" and len(n.found) > 3
    best = max(m.evidence, key=lambda e: e.induction)
    layer, head, last = best.layer, best.head, m.lm.n_layers - 1
    site, final, W_U = m.lm.structure.blocks[layer].attention, m.lm.structure.final_norm, m.lm.weights.W_U
    assert site.pre_norm is not None and final is not None
    for r in n.found:
        ids = r.tokens.tolist()
        assert ids[r.position] == m.lm.single_token("f") == ids[r.followed[0] - 1]
        seen = run(m.lm, r.tokens[None], ("pattern", "resid_pre", "resid_post", "z"))
        pattern = seen.at("pattern", layer)[0]
        own = [sum(float(pattern[h, r.position, at]) for at in r.followed) for h in range(m.lm.n_heads)]
        assert r.attention == pytest.approx(own[head], rel=1e-9)
        assert r.others == pytest.approx(sum(x for h, x in enumerate(own) if h != head) / (len(own) - 1), rel=1e-9)
        most = max(r.followed, key=lambda at: float(pattern[head, r.position, at]))
        assert r.raised == ids[most]
        values = site.pre_norm.normed(seen.at("resid_pre", layer))[0] @ m.lm.weights.W_V[layer][head // 2]
        written = sum(pattern[head, r.position, at] * values[at] for at in r.followed) @ m.lm.weights.W_O[layer][head]
        if site.branch_norm is not None:
            raw = seen.at("z", layer)[0, r.position].flatten() @ m.lm.weights.W_O[layer].flatten(0, 1)
            written = written / site.branch_norm.scale(raw) * site.branch_norm.gain
        scale = final.scale(seen.at("resid_post", last))[0, r.position]
        logits = written / scale * final.gain @ W_U
        assert r.effect == pytest.approx(float(logits[r.raised] - logits.mean()), rel=1e-5, abs=1e-9)
    section = natural_text.section(m)
    assert section is not None and [f.name for f in section.figures] == [
        "natural_text_effects_attention", "natural_text_effects_effect",
    ]  # fmt: skip
    rows = list(section.exhibits[0].table.rows())
    assert len(rows) == min(len(n.found), natural_text.SHOWN) and rows[0]["before_text"].endswith("f")


def test_a_token_that_does_not_recur_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"token='z'.*it does not occur twice"):
        natural_text.on_natural_text(measured(tmp_path, "z"))


def test_a_text_without_a_word_that_recurs_says_so(tmp_path: Path) -> None:
    m = measured(tmp_path, None)
    n, section = natural_text.on_natural_text(m), natural_text.section(m)
    assert n is not None and section is not None and not section.exhibits, "tokens of one letter are no words"
    assert natural_text.judge_natural_text(n).verdict == "inconclusive"


def test_a_head_that_attends_no_more_than_others_is_no_induction_head(tmp_path: Path) -> None:
    """On the two-layer model the head raises what followed; a head of its first layer in its place does not."""
    lm = unembed.load("attn-2l")
    options = Options(sequences=4, tokens=200, windows=3, token=" month")
    text = ["The first month of the year is the month that comes before the second month of the year . " * 4] * 2
    m = Measurements(lm, unembed.open_corpus(text), Work(tmp_path, {}), options)
    n = natural_text.on_natural_text(m)
    assert n is not None and natural_text.judge_natural_text(n).verdict == "agrees"
    previous = int(m.scores.previous_token[0].argmax())
    again = Measurements(lm, m.corpus, Work(tmp_path, {}), options)
    vars(again)["evidence"] = [SimpleNamespace(layer=0, head=previous, induction=n.induction)]
    other = natural_text.on_natural_text(again)
    assert other is not None and natural_text.judge_natural_text(other).verdict == "differs"
    weak = Numbers(**{**vars(n), "induction": 0.1})
    assert natural_text.judge_natural_text(weak).verdict == "not applicable"
