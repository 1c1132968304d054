"""Early exit: the rule against the definition written out, thresholds by brute force, skipping against full passes."""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, precision_score
from transformers import GPT2Config, GPT2LMHeadModel

import unembed
from tests.conftest import tiny
from tests.families import FAMILIES
from unembed import early_exit
from unembed.control.early_exit import thresholds as threshold_choice
from unembed.control.early_exit.baselines import Classifier, Confidence
from unembed.control.early_exit.conformal import generation_threshold
from unembed.control.early_exit.decision_cost import profitable_thresholds
from unembed.control.early_exit.examples import Examples, concatenate, confidence, examples_of_prefixes, readout
from unembed.control.early_exit.rule import ExitRule
from unembed.control.early_exit.sub_updates_rule import SubUpdates, value_clusters
from unembed.errors import InvalidInput, Unsupported
from unembed.memories.sub_updates import dominant
from unembed.models.fingerprint import sampled_fingerprint

TEXTS = [f"The old king of {place} said that he was happy. Then he went home." for place in ("Spain", "France", "Rome")]


@pytest.fixture(scope="module")
def wren():
    return unembed.load("wren")


@pytest.fixture(scope="module")
def deep():
    """A random GPT-2 of five layers."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=97, n_embd=32, n_layer=5, n_head=2, n_positions=64)
    config = GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, initializer_range=0.2)  # pyright: ignore[reportArgumentType]
    return unembed.load(GPT2LMHeadModel(config).eval())


@pytest.fixture(scope="module")
def found(deep):
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(3, 97, (int(n),), generator=generator) for n in torch.randint(2, 9, (240,), generator=generator)
    ]
    return concatenate([examples_of_prefixes(deep, rows[i : i + 40]) for i in range(0, 240, 40)])


def test_examples_are_what_a_run_of_each_prefix_shows(deep, found):
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(3, 97, (int(n),), generator=generator) for n in torch.randint(2, 9, (240,), generator=generator)
    ]
    for i in (0, 17, 239):
        run = deep.run(rows[i][None], ("resid_mid", "resid_post", "mlp_out", "coefficients"))
        for layer in range(5):
            logits = deep.hf.lm_head(deep.hf.transformer.ln_f(run["resid_post"][layer, 0, -1])).detach()
            p = logits.double().softmax(-1).sort(descending=True).values
            assert int(found.top[i, layer]) == int(logits.argmax())
            assert float(found.margin[i, layer]) == pytest.approx(float(p[0] - p[1]), abs=1e-5)
            assert float(found.entropy[i, layer]) == pytest.approx(float(-(p * p.log()).sum()), abs=1e-4)
            own = dominant(run["coefficients"][layer, 0, -1], deep.weights.W_out[layer]).index
            assert found.dominant[i, layer].tolist() == own.tolist()
            assert torch.allclose(found.before[i, layer], run["resid_mid"][layer, 0, -1], atol=1e-5)
            assert torch.allclose(found.update[i, layer], run["mlp_out"][layer, 0, -1], atol=1e-5)
        top = found.top[i].tolist()
        settled = next(n for n in range(5) if all(t == top[-1] for t in top[n:]))
        assert int(found.saturation[i]) == settled


def test_examples_come_from_a_corpus_one_a_sentence(wren):
    a = early_exit.examples(wren, TEXTS, 4, seed=1)
    assert len(a) == 4 and a.n_layers == 6 and a.corpus
    assert a.top.tolist() == early_exit.examples(wren, TEXTS, 4, seed=1, tokens_per_batch=16).top.tolist()
    with pytest.raises(InvalidInput, match="two tokens"):
        early_exit.examples(wren, ["x"], 4)


def leaves(train, saturation, test, labels, similarity) -> list[int]:
    """The paper's rule, written out."""
    found = []
    n_layers = train.shape[1]
    for example in test:
        for layer in range(n_layers):
            if layer == n_layers - 1:
                break
            own = labels[layer][example[layer]].tolist()

            def alike(other, own=own):
                if similarity == "ordered":
                    return sum(a == b for a, b in zip(own, other, strict=True))
                return len(set(own) & set(other))

            def sims(x, layer=layer, alike=alike):
                return [
                    alike(labels[layer][t[layer]].tolist()) for t, s in zip(train, saturation, strict=True) if s == x
                ]

            mine = sims(layer)
            others = [sims(x) for x in range(layer + 1, n_layers)]
            if mine and all(max(mine) > max(o) and np.mean(mine) > np.mean(o) for o in others if o):
                break
        found.append(layer)
    return found


@pytest.mark.parametrize("similarity", ["ordered", "set"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_rule_is_the_definition(similarity, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 6, size=(4, 20))
    labels[0, 0] = 5
    train = np.stack([[generator.permutation(20)[:5] for _ in range(4)] for _ in range(30)])
    saturation = generator.integers(0, 4, size=30)
    test = np.stack([[generator.permutation(20)[:5] for _ in range(4)] for _ in range(60)])
    rule = SubUpdates(labels, train, saturation, similarity)
    blank = torch.zeros(60, 4, 1)
    wrapped = Examples(torch.from_numpy(test), blank[..., 0].long(), blank[..., 0], blank[..., 0], blank, blank)
    left = threshold_choice.exit_layers(rule.scores(wrapped), np.zeros(3))
    expected = leaves(train, saturation, test, labels, similarity)
    assert left.tolist() == expected
    assert len(set(expected)) > 1

    # TraceRequest about one token, the rule decides as its score does.
    for n, layer in enumerate(rule._layers):
        for keys in rule._keys(n, test[:, n]):
            assert all(layer.is_above(t, keys) == (layer.score(keys) > t) for t in (-1.0, 0.0, 0.25, 1.0))


def test_a_layer_where_nothing_settled_is_never_left():
    labels, train = np.zeros((3, 4), dtype=int), np.zeros((5, 3, 2), dtype=int)
    rule = SubUpdates(labels, train, np.array([1, 1, 2, 2, 2]))
    assert rule._layers[0].score(np.array([0, 1])) == -np.inf
    # Where no example settles later, nothing stands in the way.
    assert SubUpdates(labels, train, np.full(5, 1))._layers[1].score(np.array([0, 1])) == np.inf


def test_value_clusters_follow_layer_and_index(deep):
    labels = value_clusters(deep, 12)
    clusters = unembed.cluster_values(deep, 12)
    assert labels.shape == (5, deep.d_mlp)
    assert all(labels[n, i] == clusters.of(n, i) for n, i in ((0, 3), (2, 17), (4, 127)))


def test_thresholds_by_precision_and_by_f1_are_brute_force():
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(80, 3)).round(1)
    saturation = generator.integers(0, 4, size=80)
    by_precision, by_f1 = (
        threshold_choice.by_precision(scores, saturation, 0.4),
        threshold_choice.by_f1(scores, saturation),
    )
    for layer in range(3):
        y = saturation == layer
        values = np.unique(scores[:, layer])
        precisions = [precision_score(y, scores[:, layer] >= t) for t in values]
        good = [t for t, p in zip(values, precisions, strict=True) if p >= 0.4]
        if good:
            assert by_precision[layer] == pytest.approx(good[0]) and by_precision[layer] < good[0]
        else:
            assert by_precision[layer] == math.inf
        f1 = [f1_score(y, scores[:, layer] >= t) for t in values]
        assert f1_score(y, scores[:, layer] > by_f1[layer]) == pytest.approx(max(f1))


def test_only_layers_where_asking_pays_are_asked():
    scores = np.random.default_rng(0).normal(size=(300, 5))
    thresholds = np.array([1.5, -1.0, np.inf, 2.5, 0.5])

    def worth(chosen, decision):
        total = 0.0
        for row in scores:
            for n, threshold in enumerate(chosen):
                if threshold == np.inf:
                    continue
                total -= decision
                if row[n] > threshold:
                    total += 5 - n
                    break
        return total / len(scores)

    for decision, asked in ((0.0, {0, 1, 4}), (0.1, {1, 4}), (0.9, {1})):
        found = profitable_thresholds(scores, thresholds, decision)
        assert set(np.flatnonzero(found < np.inf).tolist()) == asked
        kept = np.array(list(itertools.product((False, True), repeat=5)))
        best = max(worth(np.where(k, thresholds, np.inf), decision) for k in kept)
        assert worth(found, decision) == pytest.approx(best)
    assert (profitable_thresholds(scores, np.full(5, 9.0), 0.1) == np.inf).all()


def test_a_layer_that_is_not_asked_costs_nothing(deep, found):
    rule = early_exit.fit(deep, found[:160], "sub_updates", clusters=8, decision=0.0).at_profitable_layers(
        found[160:], 0.15
    )
    asked = set(np.flatnonzero(rule.thresholds < np.inf).tolist())
    assert 0 < len(asked) < 4 and rule.calibration.endswith(
        "decisions after layers " + ", ".join(map(str, sorted(asked)))
    )

    class Listening(SubUpdates):
        def is_above(self, threshold, lm, layer, seen):
            layers.add(layer)
            return super().is_above(threshold, lm, layer, seen)

    layers: set[int] = set()
    score = Listening(rule.score.labels, rule.score.train, rule.score.saturation)
    for thresholds in (rule.thresholds, np.array([np.inf, np.inf, 99.0, np.inf])):
        layers.clear()
        with torch.no_grad(), early_exit.skip_layers(ExitRule(deep, score, thresholds, "")):
            cache = deep.hf(torch.arange(3, 7)[None], use_cache=True).past_key_values
            deep.hf(torch.tensor([[9]]), past_key_values=cache, use_cache=True)
        assert layers <= set(np.flatnonzero(thresholds < np.inf).tolist())
    assert layers == {2}
    with pytest.raises(InvalidInput, match="must not be negative"):
        rule.at_profitable_layers(found, -2.0)


def test_the_cost_of_a_decision_is_in_blocks(wren):
    now = 0.0

    class Slow(Confidence):
        def is_above(self, threshold, lm, layer, seen):
            nonlocal now
            now += 0.5
            return True

    def block(_module, _args):
        nonlocal now
        now += 2.0

    hooks = [b.module.register_forward_pre_hook(block) for b in wren.structure.blocks]
    rule = ExitRule(wren, Slow("margin"), np.array([0.1, np.inf, 0.1, 0.1, 0.1]), "")
    try:
        cost = early_exit.decision_cost(rule, "The old king", rounds=1, clock=lambda: now)
    finally:
        for hook in hooks:
            hook.remove()
    assert cost == pytest.approx(0.25)


def test_the_promise_is_conformal_risk_control():
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(60, 3))
    top = generator.integers(0, 2, size=(60, 4))
    level = 0.3
    chosen = threshold_choice.risk_controlled_threshold(scores, top, level)
    every = np.r_[np.inf, np.unique(scores)[::-1], scores.min() - 1]

    def loss(threshold):
        return top[np.arange(60), threshold_choice.exit_layers(scores, np.full(3, threshold))] != top[:, -1]

    good = []
    for k in range(len(every)):
        worst = np.any([loss(t) for t in every[: k + 1]], axis=0)
        if (worst.sum() + 1) / 61 > level:
            break
        good.append(every[k])
    assert chosen == pytest.approx(good[-1])
    with pytest.raises(InvalidInput):
        threshold_choice.risk_controlled_threshold(scores, top, 1.0)


def test_the_promise_holds_on_text_not_seen():
    """The mean disagreement of many draws keeps below the level; four standard errors are allowed."""
    generator = np.random.default_rng(2)
    rates = []
    for _ in range(150):
        score = generator.uniform(size=(300, 2))
        wrong = generator.uniform(size=(300, 2)) > score
        top = np.c_[np.where(wrong, 1, 0), np.zeros(300, dtype=int)]
        threshold = threshold_choice.risk_controlled_threshold(score[:150], top[:150], 0.1)
        left = threshold_choice.exit_layers(score[150:], np.full(2, threshold))
        rates.append((~threshold_choice.agrees(top[150:], left)).mean())
    assert np.mean(rates) <= 0.1 + 4 * np.std(rates) / len(rates) ** 0.5
    assert np.mean(rates) > 0.05  # and the bound is not bought by never leaving


def test_classifiers_are_sklearns_on_scaled_features(found):
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    ours = Classifier.fit(found, "both", sweep=(0.1,))
    p = ours.scores(found)
    x, y = (found.before + found.update)[:, 1].double().numpy(), (found.saturation == 1).numpy()
    if y.sum() >= 3:
        scaled = StandardScaler().fit_transform(x)
        model = LogisticRegression(C=0.1, class_weight="balanced", max_iter=500).fit(scaled, y)
        assert np.allclose(p[:, 1], model.predict_proba(scaled)[:, 1], atol=1e-3)
    assert not np.allclose(Classifier.fit(found, "representation", sweep=(0.1,)).scores(found), p)


def test_agreement_counts_layers_in_a_row():
    top = torch.tensor([[5, 5, 5, 2, 2], [1, 2, 2, 2, 2]])
    blank = torch.zeros(2, 5, 1)
    wrapped = Examples(blank.long(), top, blank[..., 0], blank[..., 0], blank, blank)
    assert Confidence("agreement").scores(wrapped).tolist() == [[0, 1, 2, 0], [0, 0, 1, 2]]


@pytest.mark.parametrize("method", early_exit.METHODS)
def test_a_rule_asked_token_by_token_decides_as_over_examples(deep, found, method, tmp_path):
    options = {"clusters": 12} if method == "sub_updates" else {"sweep": (0.1,)} if method in ("update", "both") else {}
    rule = early_exit.fit(deep, found, method, disagreement=0.3, **options)
    scores = rule.score.scores(found)
    rule = rule.at(float(np.median(scores[np.isfinite(scores)])))
    again = early_exit.load(rule.save(tmp_path / "rule.npz"), deep)
    assert again.exit_layers(found).tolist() == rule.exit_layers(found).tolist()
    layers = set()
    for start in range(3, 13):
        ids = torch.tensor([[start, 40, 41 + start]])
        with early_exit.skip_layers(again) as exits:
            new = deep.hf.generate(ids, max_new_tokens=2, min_new_tokens=2, do_sample=False, pad_token_id=0)
        # Two new tokens: the first comes from the full prompt, so only the second can leave.
        assert len(exits) == 1
        assert exits[0] == int(rule.exit_layers(examples_of_prefixes(deep, [new[0, :4]]))[0])
        layers.add(exits[0])
    assert len(layers) > 1 or method in ("representation", "update", "both", "sub_updates")


def copied(lm, ids: torch.Tensor, left: list[int]):
    """A full pass in which each position's stream stays as it is after the block it left at."""
    handles = []
    for layer, block in enumerate(lm.structure.blocks):
        stay = torch.tensor([n < layer for n in left])

        def hook(_m, args, kwargs, out, stay=stay):
            given = args[0] if args else kwargs["hidden_states"]
            new = torch.where(stay[None, :, None], given, out[0] if isinstance(out, tuple) else out)
            return (new, *out[1:]) if isinstance(out, tuple) else new

        handles.append(block.module.register_forward_hook(hook, with_kwargs=True))
    try:
        with torch.no_grad():
            return lm.hf(ids, use_cache=True)
    finally:
        for handle in handles:
            handle.remove()


def assert_same_cache(ours, theirs) -> None:
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        assert mine.get_seq_length() == other.get_seq_length()
        assert torch.allclose(mine.keys, other.keys, atol=1e-4)
        assert torch.allclose(mine.values, other.values, atol=1e-4)


class Planned:
    """Leaves after the layers it was told to, one for each token."""

    name, points = "planned", ()

    def __init__(self, layers):
        self.layers, self.token = list(layers), 0

    def is_above(self, threshold, lm, layer, seen):
        if layer < self.layers[self.token]:
            return False
        self.token += 1
        return True

    def scores(self, found):
        raise NotImplementedError

    state = scores


def counts_rows(module, into: list[int]) -> None:
    """Note how many positions each product of a module is for."""
    c_attn = type(module).forward

    def forward(x):
        into.append(x.shape[1])
        return c_attn(module, x)

    module.forward = forward


def test_keys_and_values_wait_until_a_token_needs_them(deep):
    deep = unembed.load(copy.deepcopy(deep.hf))  # whose blocks have never been skipped
    plan = [0, 0, 0, 3, 1, 0, 3, 0]
    read = {n: [] for n in range(5)}
    counted = [block.module.attn.c_attn for block in deep.structure.blocks]
    for n, module in enumerate(counted):
        counts_rows(module, read[n])
    rule = ExitRule(deep, Planned(plan), np.zeros(4), "")
    with early_exit.skip_layers(rule) as exits:
        out = deep.hf.generate(
            torch.tensor([[5, 17, 60]]),
            max_new_tokens=9,
            min_new_tokens=9,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
        )
        taken = list(exits)
        assert out.past_key_values.get_seq_length(4) == 4  # the prompt, and the first one to be skipped
    for module in counted:
        del module.forward
    assert taken == plan
    # Layer 0 is always computed. Layer 2: the prompt, the first skipped position at once, two that waited together with
    # the fourth token, two with the seventh, and the last at the end. Layer 4 is never computed.
    assert read[0] == [3] + [1] * 8
    assert read[2] == [3, 1, 3, 3, 1]
    assert read[4] == [3, 1, 7]
    expected = copied(deep, out.sequences[:, :-1], [4] * 3 + taken)
    assert_same_cache(out.past_key_values, expected.past_key_values)
    assert out.sequences[0, 3:].tolist() == expected.logits[0, 2:].argmax(-1).tolist()

    # A block that has shown that it stores is not made to show it again.
    rows: list[int] = []
    counts_rows(counted[4], rows)
    with early_exit.skip_layers(ExitRule(deep, Planned(plan[:2]), np.zeros(4), "")):
        out = deep.hf.generate(
            torch.tensor([[5, 17, 60]]), max_new_tokens=3, pad_token_id=0, return_dict_in_generate=True
        )
    assert rows == [3, 2]


def test_a_second_generation_does_not_touch_the_first_ones_cache(deep):
    rule = ExitRule(deep, Planned([0, 0] * 2), np.zeros(4), "")
    options = dict(max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0, return_dict_in_generate=True)
    with early_exit.skip_layers(rule) as exits:
        kept = [deep.hf.generate(torch.tensor([ids]), **options) for ids in ([5, 17, 60], [7, 7])]
        assert exits == [0] * 4
    for found in kept:
        n = found.sequences.shape[1] - 3
        expected = copied(deep, found.sequences[:, :-1], [4] * n + [0, 0])
        assert_same_cache(found.past_key_values, expected.past_key_values)


def test_a_cache_cut_between_tokens_is_refused(deep):
    rule = ExitRule(deep, Planned([0] * 4), np.zeros(4), "")
    with pytest.raises(Unsupported, match="cropped"), torch.no_grad(), early_exit.skip_layers(rule):
        cache = deep.hf(torch.tensor([[5, 17, 60]]), use_cache=True).past_key_values
        for _ in range(2):
            deep.hf(torch.tensor([[9]]), past_key_values=cache, use_cache=True)
        cache.layers[0].crop(-1)
        deep.hf(torch.tensor([[9]]), past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_skipping_equals_a_full_pass_with_copied_states(name):
    lm = tiny(name)
    ids = torch.tensor([[5, 17, 60, 33]])
    rule = ExitRule(lm, Confidence("entropy"), np.zeros(1), "")
    with torch.no_grad():
        plain = lm.hf.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0)
    entropies = -confidence(lm.run(plain, ()).logits)[2]
    rule = rule.at(float(entropies.median()))
    taken = []
    with early_exit.skip_layers(rule) as exits:
        out = lm.hf.generate(
            ids,
            max_new_tokens=12,
            min_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            use_cache=True,  # which MPT leaves out unless told
            return_dict_in_generate=True,
        )
        taken = list(exits)
    assert len(taken) == 11
    last = lm.n_layers - 1
    expected = copied(lm, out.sequences[:, :-1], [last] * 4 + taken)
    assert torch.allclose(torch.cat(out.logits), expected.logits[0, 3:], atol=2e-4), name
    assert_same_cache(out.past_key_values, expected.past_key_values)
    assert "forward" not in lm.structure.blocks[0].module.__dict__


def test_generation_skips_blocks_and_a_high_threshold_changes_nothing(wren):
    rule = ExitRule(wren, Confidence("margin"), np.full(5, -1.0), "")
    ran = []
    handles = [
        b.feed_forward.down_proj.register_forward_hook(lambda *_a, n=n: ran.append(n))
        for n, b in enumerate(wren.structure.blocks)
    ]
    found = rule.generate("The old king", max_new_tokens=4, min_new_tokens=4)
    for handle in handles:
        handle.remove()
    # The prompt goes through all six blocks; each later token leaves after the first.
    assert ran == [0, 1, 2, 3, 4, 5, 0, 0, 0]
    assert found.layers == (0, 0, 0) and found.saved_layers == 5
    careful = rule.at(2.0).generate("The old king", max_new_tokens=12, min_new_tokens=12)
    assert careful.text == wren.generate("The old king", max_new_tokens=12, min_new_tokens=12)[0]
    assert careful.saved_layers == 0
    with pytest.raises(InvalidInput, match="beams"):
        rule.generate("The old king", num_beams=2)
    with pytest.raises(Unsupported, match="batch"), early_exit.skip_layers(rule):
        wren.hf.generate(torch.full((2, 3), 50), max_new_tokens=3)


def test_a_model_that_keeps_no_cache_is_refused():
    lm = tiny("mpt")
    rule = ExitRule(lm, Confidence("entropy"), np.full(1, -10.0), "")
    with pytest.raises(Unsupported, match="cache"), early_exit.skip_layers(rule):
        lm.hf.generate(torch.tensor([[5, 17]]), max_new_tokens=3, min_new_tokens=3, pad_token_id=0)


def test_a_rule_of_another_model_is_refused(deep, found, wren, tmp_path):
    path = early_exit.fit(deep, found, "margin").save(tmp_path / "rule.npz")
    with pytest.raises(InvalidInput, match="weights are not those of wren"):
        early_exit.load(path, wren)
    assert sampled_fingerprint(deep) != sampled_fingerprint(wren)
    path.write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="cannot read"):
        early_exit.load(path, deep)
    with pytest.raises(InvalidInput, match="not one of"):
        early_exit.fit(deep, found, "magic")


def test_evaluation_and_table_6_count_by_hand(deep, found):
    rule = early_exit.fit(deep, found, "margin", disagreement=0.2)
    assert repr(rule).startswith(f"ExitRule(margin on {deep.name}, thresholds by layer: {rule.thresholds[0]:.3g}, ")
    held = found[:50]
    row = next(iter(rule.evaluate(held).rows()))
    left = rule.exit_layers(held)
    right = [int(held.top[i, n]) == int(held.top[i, -1]) for i, n in enumerate(left)]
    assert row["accuracy"] == pytest.approx(100 * np.mean(right))
    assert row["saved_layers"] == pytest.approx(np.mean(4 - left))
    table = early_exit.table_6(deep, found, seeds=(38, 39), clusters=12, sweep=(0.1,))
    rows = {r["method"]: r for r in table.rows()}
    assert rows["oracle"]["accuracy"] == 100 and rows["last layer"]["saved_layers"] == 0
    assert rows["sub_updates"]["published_accuracy"] == 94.1
    assert rows["oracle"]["saved_layers"] >= rows["margin"]["saved_layers"] * rows["margin"]["accuracy"] / 100 - 1e-9
    shares = early_exit.saturation_table(deep, found)
    assert sum(r["share"] for r in shares.rows()) == pytest.approx(100)


def test_the_dial_runs_from_never_to_always(deep, found):
    rule = early_exit.fit(deep, found, "margin")
    rows = list(rule.tradeoff(found[:80], 10).rows())
    assert len(rows) <= 10 and rows[0]["saved_layers"] == 0 and rows[0]["disagreement"] == 0
    assert rows[-1]["saved_layers"] == 4
    for row in rows:
        left = rule.at(row["threshold"]).exit_layers(found[:80])
        assert row["saved_layers"] == pytest.approx(float((4 - left).mean()))
    saved = [row["saved_layers"] for row in rows]
    assert saved == sorted(saved)


def test_a_promise_in_generation_is_risk_control_over_prompts(wren):
    rule = ExitRule(wren, Confidence("margin"), np.full(5, 2.0), "")
    prompts = ["The old king", "Once upon a time", "In the year"]
    thresholds, level = [0.9, 0.5, 0.0], 0.6
    losses = {}
    for threshold in thresholds:
        for prompt in prompts:
            ids = wren.encode(rule.at(threshold).generate(prompt, max_new_tokens=6, min_new_tokens=6).text)
            start = wren.encode(prompt).shape[1]
            chosen = wren.run(ids).logits[0, start - 1 : -1].argmax(-1)
            losses[threshold, prompt] = 1 - float((chosen == ids[0, start:]).float().mean())
    good = float("inf")
    for k, threshold in enumerate(thresholds):
        worst = [max(losses[t, p] for t in thresholds[: k + 1]) for p in prompts]
        if (sum(worst) + 1) / 4 > level:
            break
        good = threshold
    assert generation_threshold(rule, prompts, level, thresholds, max_new_tokens=6) == good
    with pytest.raises(InvalidInput, match="more prompts"):
        rule.with_generation_risk_control(prompts, early_exit.examples(wren, TEXTS, 3), 0.1)


def test_compare_times_both_and_judges_the_text(wren):
    rule = ExitRule(wren, Confidence("margin"), np.full(5, 0.1), "")
    row = next(iter(early_exit.compare(rule, ["The old king", "Once"], max_new_tokens=6).rows()))
    assert row["tokens"] == 12 and 0 <= row["agreement"] <= 100
    assert row["layers_saved"] > 0 and row["full_seconds"] > 0
    careful = next(iter(early_exit.compare(rule.at(2.0), ["The old king"], max_new_tokens=6).rows()))
    assert careful["agreement"] == 100 and careful["layers_saved"] == 0
    assert careful["perplexity_early"] == pytest.approx(careful["perplexity_full"])


def test_reading_a_given_text_saves_what_was_left_out_and_says_what_is_lost(wren):
    texts = ["The old king of the north sat on his chair .", "Once", "She put the book on the table ."]
    rule = ExitRule(wren, Confidence("margin"), np.full(5, 0.1), "")
    never = next(iter(early_exit.compare_reading(rule.at(2.0), texts).rows()))
    lengths = [n for text in texts if (n := wren.encode(text).shape[1]) > 1]
    assert never["tokens"] == sum(lengths) - len(lengths)
    assert (never["agreement"], never["layers_saved"]) == (100, 0)
    # All leave after the first block, which reads nothing but its own cache: the stream there, read as the last.
    always = next(iter(early_exit.compare_reading(rule.at(-1.0), texts).rows()))
    assert always["layers_saved"] == pytest.approx(100 * 5 / 6) and always["full_seconds"] > 0
    nats, right = {"full": [], "early": []}, []
    for text in texts:
        ids = wren.encode(text)
        if ids.shape[1] < 2:
            continue
        run = wren.run(ids, "resid_post")
        logits = {"full": run.logits[0, 1:], "early": readout(wren, run.at("resid_post", 0)[0, 1:])}
        right += (logits["full"].argmax(-1) == logits["early"].argmax(-1)).tolist()
        for name, found in logits.items():
            nats[name] += torch.nn.functional.cross_entropy(found[:-1], ids[0, 2:], reduction="none").tolist()
    assert always["agreement"] == pytest.approx(100 * np.mean(right))
    for name, found in nats.items():
        assert always[f"perplexity_{name}"] == pytest.approx(np.exp(np.mean(found)), rel=1e-4)
    assert never["perplexity_early"] == pytest.approx(always["perplexity_full"], rel=1e-5)
    with pytest.raises(InvalidInput, match="two tokens"):
        early_exit.compare_reading(rule, ["a"])
