"""Top triggers are what sorting all coefficients in float64 gives, place for place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.sweeps.recorder import Everything, lettered, texts
from unembed.corpus import open_corpus
from unembed.errors import InvalidInput, NotFinite
from unembed.sweeps import TopTriggers, Triggers, sweep

GPT2, RELU, GATED, EXPERTS = "gpt2", "opt", "llama", "qwen2_moe"


def brute(values: Tensor, position: Tensor, top: int, sign: int) -> tuple[Tensor, Tensor]:
    """(key, t) values and places by sorting everything in float64.

    Places are in order, so a stable sort keeps ties so.
    """
    v, order = (values.double() * sign).T.sort(dim=1, descending=True, stable=True)
    v, p = v[:, :top], position[order[:, :top]]
    return torch.where(v > 0, v * sign, -torch.inf * sign), torch.where(v > 0, p, -1)


def brute_limited(
    values: Tensor, position: Tensor, top: int, sign: int, groups: Tensor, n: int
) -> list[tuple[float, int]]:
    """One key's list with at most n of each group."""
    rows = sorted(
        (-v * sign, p, g) for v, p, g in zip(values.double().tolist(), position.tolist(), groups.tolist(), strict=True)
    )
    chosen, used = [], {}
    for v, p, g in rows:
        if v < 0 and used.get(g, 0) < n:
            used[g] = used.get(g, 0) + 1
            chosen.append((-v * sign, p))
    return chosen[:top]


def check(
    family: str, top: int = 7, tokens: int = 300, n: int = 25, dtype=torch.float32, options=None, **corpus
) -> Triggers:
    """A sweep beside the brute force over the same coefficients."""
    options = options or {}
    lm = lettered(family, dtype)
    point = "gate" if options.get("by") == "gate" else "coefficients"
    opened = open_corpus(texts(n), **corpus)
    found, (values, facts) = sweep(
        lm, opened, [TopTriggers(top, **options), Everything(point)], tokens_per_batch=tokens
    )
    allowed = facts["length"] >= options.get("min_prefix", 0)
    if options.get("skip_first"):
        allowed &= facts["column"] > 0
    position, limit = facts["position"][allowed], options.get("per_document")
    poles = [("positive", 1)] + ([] if found.negative_values is None else [("negative", -1)])
    for layer in range(lm.n_layers):
        for pole, sign in poles:
            column = values[layer][allowed]
            if limit:
                for key in range(0, lm.d_mlp, 9):
                    expected = brute_limited(column[:, key], position, top, sign, facts["document"][allowed], limit)
                    assert found.of(layer, key, pole) == expected, (layer, key, pole)
                continue
            v, p = brute(column, position, top, sign)
            got = (found.values, found.positions) if sign == 1 else (found.negative_values, found.negative_positions)
            assert got[0] is not None and got[1] is not None
            assert torch.equal(got[0][layer].double(), v) and torch.equal(got[1][layer], p), (layer, pole)
    assert found.tokens_seen == int(allowed.sum())
    return found


@pytest.mark.parametrize("family", [GPT2, RELU, GATED, EXPERTS])
@pytest.mark.parametrize("segmentation", ["sentences", "windows"])
def test_equal_to_sorting_everything(family: str, segmentation: str) -> None:
    found = check(family, segmentation=segmentation, window=24)
    assert (found.negative_values is not None) == (family in (GATED, EXPERTS))


@pytest.mark.parametrize("tokens", [40, 5000])
def test_any_batch_size_and_long_streams(tokens: int) -> None:
    check(GPT2, top=5, tokens=tokens, n=60)
    check(EXPERTS, top=5, tokens=tokens, n=60)


@pytest.mark.parametrize(
    "options",
    [
        {"skip_first": True},
        {"min_prefix": 4},
        {"per_document": 1},
        {"per_document": 2, "skip_first": True},
        {"poles": "both"},
        {"poles": "positive"},
        {"by": "gate"},
    ],
)
def test_triggers_for_every_option_equal_a_full_sort(options: dict[str, Any]) -> None:
    check(GATED if "poles" in options or "by" in options else RELU, options=options, tokens=200)
    check(GATED if "by" in options else GPT2, options=options, tokens=200, segmentation="windows", window=20)
    if "by" not in options:
        check(EXPERTS, options=options, tokens=200, n=40)


def test_one_document_and_a_limit_never_fills_the_lists() -> None:
    lm = lettered(GPT2)
    one = ["\n".join(texts(30))]
    [found] = sweep(lm, one, [TopTriggers(6, per_document=2)], tokens_per_batch=100)
    assert max(len(found.of(0, key)) for key in range(lm.d_mlp)) == 2


def test_float64_models_are_not_rounded() -> None:
    assert check(GPT2, dtype=torch.float64).values[0].dtype == torch.float64


def test_bfloat16_with_its_many_ties() -> None:
    check(GPT2, dtype=torch.bfloat16, top=9)


def test_equal_prefixes_once() -> None:
    lm = lettered(GPT2)
    opened = open_corpus(texts(25))
    found, (values, facts) = sweep(lm, opened, [TopTriggers(8, distinct=True), Everything()], tokens_per_batch=200)
    prefixes, row = {}, {}
    for i, (p, r, t) in enumerate(
        zip(facts["position"].tolist(), facts["row"].tolist(), facts["token"].tolist(), strict=True)
    ):
        row[r] = (*row.get(r, ()), t)
        prefixes[p] = (row[r], i)
    for layer in range(lm.n_layers):
        for key in range(0, lm.d_mlp, 9):
            best: dict[tuple[int, ...], float] = {}
            for prefix, i in prefixes.values():
                best[prefix] = max(best.get(prefix, 0.0), float(values[layer][i, key]))
            expected = sorted((v for v in best.values() if v > 0), reverse=True)[:8]
            got = found.of(layer, key)
            assert [v for v, _ in got] == pytest.approx(expected, rel=1e-5, abs=1e-7)
            assert len({prefixes[p][0] for _, p in got}) == len(got)


def test_equal_values_by_earlier_place() -> None:
    lm = lettered(GPT2)
    # Every batch holds rows of one length only, so that equal prefixes have equal coefficients, bit for bit.
    found, (values, facts) = sweep(lm, ["abc\n" * 30] * 3, [TopTriggers(4), Everything()], tokens_per_batch=30)
    best = values[0].argmax(dim=0)
    for key in range(lm.d_mlp):
        if values[0][best[key], key] > 0:
            column = int(facts["column"][best[key]])
            assert found.positions[0][key].tolist() == [column + 3 * row for row in range(4)]


def test_parts_join_to_the_whole() -> None:
    lm = lettered(GATED)
    opened = open_corpus(texts(25))
    batches = list(opened.batches(lm, 200))
    from unembed.sweeps.forward import feed_reducers

    limits: list[dict[str, Any]] = [{}, {"per_document": 1}, {"distinct": True}]
    for options in limits:
        parts = [TopTriggers(6, **options) for _ in range(4)]
        for part in parts:
            part.start(lm)
        for i, batch in enumerate(batches):
            with feed_reducers(lm, [parts[1 + i % 3], parts[0]]) as feed:
                feed(batch)
        late = TopTriggers(6, **options)
        late.start(lm)
        late.load_state(parts[3].state())
        parts[2].merge(late)
        parts[1].merge(parts[2])
        whole, joined = parts[0].result(), parts[1].result()
        for a, b in zip(whole.values + whole.positions, joined.values + joined.positions, strict=True):
            assert torch.equal(a, b)
        assert whole.tokens_seen == joined.tokens_seen


def test_state_is_twelve_bytes_a_slot() -> None:
    lm = lettered(GPT2)
    reducer = TopTriggers(25)
    sweep(lm, texts(30), [reducer], tokens_per_batch=100)
    memory = sum(t.numel() * t.element_size() for t in reducer.state().values() if isinstance(t, Tensor))
    assert memory <= 1.001 * lm.n_layers * lm.d_mlp * 25 * 12
    assert all(not lists._buffer for lists in reducer._lists.values())


@pytest.mark.parametrize(
    "options", [{"top": 0}, {"poles": "none"}, {"by": "up"}, {"per_document": 0}, {"per_document": 1, "distinct": True}]
)
def test_inconsistent_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        TopTriggers(**options)


def test_the_gate_of_an_ungated_layer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no gate"):
        sweep(lettered(GPT2), ["abc"], [TopTriggers(by="gate")])


def test_activations_that_are_not_finite_are_refused() -> None:
    from tests.families import build
    from unembed.language_model import load

    lm = load(build(GPT2), tokenizer=lettered(GPT2).tokenizer)
    with torch.no_grad():
        lm.weights.W_in[1].fill_(float("nan"))
    with pytest.raises(NotFinite):
        sweep(lm, ["abc"], [TopTriggers()])
