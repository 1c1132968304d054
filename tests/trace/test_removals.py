"""What is predicted without a part equals a run in which that part is silent."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from unembed import scale_coefficient, scale_head
from unembed.models.decoder import Decoder
from unembed.models.named_tokens import LIKELY, MOVED, MovedTokens
from unembed.names import SUM_TOLERANCE
from unembed.stream.run import run
from unembed.trace.decisive_parts import decisive_parts
from unembed.trace.prompt_heads import head_effects
from unembed.trace.removals import Part, ReadBy, Removals, affordable

NAMES = ["gpt2", "llama", "gemma2", "gptj", "qwen2_moe"]


def _log_odds(logits: torch.Tensor, token: int) -> float:
    others = torch.cat([logits[:token], logits[token + 1 :]]).double()
    return float(logits[token].double() - others.logsumexp(0))


@pytest.mark.parametrize("position", [-1, 2])
@pytest.mark.parametrize(
    ("name", "dtype"), [*((n, torch.float32) for n in NAMES), ("llama", torch.bfloat16), ("gpt2", torch.bfloat16)]
)
def test_without_a_head_or_memory_is_the_run_in_which_it_is_silent(
    name: str, dtype: torch.dtype, position: int, tokens: torch.Tensor
) -> None:
    lm = tiny(name, dtype)
    trace = lm.trace(tokens[0], show_unlearned=True)
    question, column = trace.question(position=position), position % len(trace)
    parts = [Part("head", 0, 1, 0.0), Part("head", 1, 0, 0.0), Part("memory", 0, 3, 0.0), Part("memory", 1, 5, 0.0)]
    found = Removals(trace, question, column).without(parts)
    assert [one.part for one in found] == parts
    for one in found:
        part = one.part
        assert part.index is not None
        silent = (scale_head if part.kind == "head" else scale_coefficient)(part.layer, part.index, 0.0, [column])
        logits = run(lm, tokens[0], ["resid_post"], [silent]).logits[0, column].float()
        expected, least = float(logits.softmax(-1)[question.token]), 1e-5 if dtype == torch.float32 else 2e-2
        assert one.probability == pytest.approx(expected, rel=SUM_TOLERANCE[lm.dtype_name], abs=least)
        fall = _log_odds(trace.logits(position).float(), question.token) - _log_odds(logits, question.token)
        assert one.effect == pytest.approx(fall, abs=1e-4 if dtype == torch.float32 else 0.1)
        if dtype == torch.float32:
            gain = logits.softmax(-1) - trace.logits(position).float().softmax(-1)
            gain[question.token] = -1
            assert one.gained_to - one.gained_from == pytest.approx(float(gain.max()), abs=1e-6)
            assert one.first == int(logits.argmax())
            assert one.tokens == _by_factor(lm, trace.logits(position), logits)
            if float(gain.max()) > 1e-5:
                assert one.gained == int(gain.argmax())


def _by_factor(lm: Decoder, own: torch.Tensor, without: torch.Tensor) -> MovedTokens:
    """The likeliest tokens, listed ones only, sorted by the factor between their two probabilities."""
    before, after = own.double().softmax(-1), without.double().softmax(-1)
    likely = {*before.topk(LIKELY).indices.tolist(), *after.topk(LIKELY).indices.tolist()}
    factor = {i: float(before[i] / after[i]) for i in likely if not lm.unlisted[i]}
    up = sorted((i for i in factor if factor[i] > 1), key=lambda i: -factor[i])[:MOVED]
    down = sorted((i for i in factor if factor[i] < 1), key=lambda i: factor[i])[:MOVED]
    return MovedTokens(tuple(lm.token_strings(up)), tuple(lm.token_strings(down)))


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_without_an_update_of_a_layer_is_the_run_in_which_it_writes_nothing_there(
    name: str, tokens: torch.Tensor
) -> None:
    lm = tiny(name, torch.float32)
    trace = lm.trace(tokens[0], show_unlearned=True)
    question, column = trace.question(), len(trace) - 1
    for kind, point in (("attention", "attn_out"), ("ffn", "mlp_out")):
        (found,) = Removals(trace, question, column).without([Part(kind, 1, None, 0.0)])  # type: ignore[arg-type]

        def silent(t: torch.Tensor, layer: int) -> torch.Tensor | None:
            if layer != 1:
                return None
            t = t.clone()
            t[:, -1] = 0
            return t

        logits = run(lm, tokens[0], ["resid_post"], hooks={point: silent}).logits[0, -1]
        assert found.probability == pytest.approx(float(logits.softmax(-1)[question.token]), abs=1e-6)


def test_a_chosen_pair_is_measured_by_the_difference_of_its_logits(tokens: torch.Tensor) -> None:
    lm = tiny("llama", torch.float32)
    trace = lm.trace(tokens[0], show_unlearned=True)
    question = trace.question(7, 9)
    (found,) = Removals(trace, question, len(trace) - 1, chosen_pair=True).without([Part("head", 1, 0, 0.0)])
    logits = run(lm, tokens[0], ["resid_post"], [scale_head(1, 0, 0.0, "last")]).logits[0, -1]
    own = trace.logits()
    assert found.effect == pytest.approx(float(own[7] - own[9] - logits[7] + logits[9]), abs=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_a_source_is_removed_with_its_weight_times_its_value(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name, torch.float32)
    trace = lm.trace(tokens[0], show_unlearned=True)
    question, column = trace.question(), len(trace) - 1
    effects = head_effects(trace, question, column)
    assert effects is not None and effects.by_source is not None
    n = effects.places.index((1, 0))
    whole = run(lm, tokens[0], ["pattern", "values", "z"])
    values = whole.at("values", 1)[0]
    value = values.repeat_interleave(whole.at("pattern", 1).shape[1] // values.shape[0], dim=0)[0]
    pattern = whole.at("pattern", 1)[0, 0, column]
    torch.testing.assert_close(effects.weights(n), pattern, rtol=1e-4, atol=1e-6)
    # Of two heads at once, given in the other order of their layers.
    other = effects.places.index((0, 1))
    tried = [
        ReadBy(*place, effects.weights(i), effects.values(i), at)
        for i, place, at in ((n, (1, 0), [0, 2]), (other, (0, 1), [1]))
    ]
    removals = Removals(trace, question, column)
    found, second = removals.source_effects(tried)
    assert found is not None and second is not None
    assert second == pytest.approx(removals.source_effects(tried[1:])[0], abs=1e-4)
    for source, effect in zip((0, 2), found, strict=True):

        def without(t: torch.Tensor, layer: int, source: int = source) -> torch.Tensor | None:
            if layer != 1:
                return None
            t = t.clone()
            t[0, column, 0] -= pattern[source] * value[source]
            return t

        logits = run(lm, tokens[0], ["resid_post"], hooks={"z": without}).logits[0, -1]
        fall = _log_odds(trace.logits(), question.token) - _log_odds(logits, question.token)
        assert effect == pytest.approx(fall, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_effects_of_heads_are_those_of_the_attribution_by_head(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name, torch.float32)
    trace = lm.trace(tokens[0], show_unlearned=True)
    for position in (1, len(trace) - 1):
        question = trace.question(position=position)
        effects = head_effects(trace, question, position)
        assert effects is not None
        rows = trace.attribution(question.token, position, question.against, by="head").rows
        by_head = {(row.layer, row.index): row.contribution for row in rows if row.label.startswith("head")}
        assert set(effects.places) == set(by_head)
        for place, effect in zip(effects.places, effects.effects.tolist(), strict=True):
            assert effect == pytest.approx(by_head[place], abs=1e-4)
        if effects.by_source is not None:
            torch.testing.assert_close(effects.by_source.sum(1), effects.effects, rtol=1e-5, atol=1e-6)
            assert effects.by_source.shape[1] == position + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "qwen2_moe"])
@pytest.mark.parametrize("position", [-1, 3])
def test_reruns_of_the_position_alone_measure_what_reruns_of_the_prompt_do(
    name: str, dtype: torch.dtype, position: int, tokens: torch.Tensor
) -> None:
    lm = tiny(name, dtype)
    edits = [scale_head(0, 2, 0.0, "last"), scale_coefficient(1, 2, 2.0, [1, -1])]
    trace = lm.trace(tokens[0], edits=edits, show_unlearned=True)
    question, column = trace.question(position=position), position % len(trace)
    parts = [
        Part("head", 1, 0, 0.0),
        Part("memory", 0, 3, 0.0),
        Part("attention", 0, None, 0.0),
        Part("ffn", 1, None, 0.0),
    ]
    quick = Removals(trace, question, column)
    found = quick.without(parts)
    assert quick._last is not None  # the rerun of the position alone was exact
    trace.keys = None
    whole = Removals(trace, question, column).without(parts)
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    for one, other in zip(found, whole, strict=True):
        assert one.effect == pytest.approx(other.effect, abs=tolerance)
        assert one.probability == pytest.approx(other.probability, abs=tolerance / 10)
    assert max(abs(one.effect) for one in whole) > 3e-3


def test_reruns_of_a_prompt_cost_at_most_a_pass_and_a_half_of_it() -> None:
    late = [Part("head", 27, i, 0.0) for i in range(40)]
    assert len(affordable(late, 30, 5)) == 40
    chosen = affordable(late, 30, 1000)
    assert len(chosen) == 15  # of a tenth of a pass each
    assert len(affordable([Part("head", 0, i, 0.0) for i in range(9)], 30, 4000)) == 4


def test_listed_heads_and_the_rest_add_up_to_all_heads(tokens: torch.Tensor) -> None:
    lm = tiny("llama", torch.float32)
    trace = lm.trace(tokens[0], show_unlearned=True)
    question = trace.question()
    by_component = trace.attribution(question.token, -1, question.against)
    parts = decisive_parts(trace, question, len(trace) - 1, None, by_component)
    assert parts.heads is not None and parts.heads.others == lm.n_layers * lm.n_heads - len(parts.heads.rows)
    total = sum(row.effect for row in parts.heads.rows) + parts.heads.others_effect
    rows = trace.attribution(question.token, -1, question.against, by="head").rows
    assert total == pytest.approx(sum(r.contribution for r in rows if r.label.startswith("head")), abs=1e-4)
    assert all(row.without == parts.measured("head", row.layer, row.head)["without"] for row in parts.heads.rows)
