"""Early exit compared with full passes."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from unembed import early_exit
from unembed.early_exit.baselines import Confidence
from unembed.early_exit.benchmark import body_clock
from unembed.early_exit.rule import ExitRule
from unembed.errors import InvalidInput
from unembed.lens import logits_of


def test_comparison_times_both_and_scores_the_text(wren):
    rule = ExitRule(wren, Confidence("margin"), np.full(wren.n_layers - 1, 0.1), "")
    row = next(iter(early_exit.compare(rule, ["The old king", "Once"], max_new_tokens=6).rows()))
    assert row["tokens"] == 12 and 0 <= row["agreement"] <= 100
    assert row["layers_saved"] > 0 and row["full_seconds"] > 0
    careful = next(iter(early_exit.compare(rule.at(2.0), ["The old king"], max_new_tokens=6).rows()))
    assert careful["agreement"] == 100 and careful["layers_saved"] == 0
    assert careful["perplexity_early"] == pytest.approx(careful["perplexity_full"])


def test_reading_a_given_text_reports_layers_saved_and_agreement(wren):
    texts = ["The old king of the north sat on his chair .", "Once", "She put the book on the table ."]
    rule = ExitRule(wren, Confidence("margin"), np.full(wren.n_layers - 1, 0.1), "")
    never = next(iter(early_exit.compare_reading(rule.at(2.0), texts).rows()))
    lengths = [n for text in texts if (n := wren.encode(text).shape[1]) > 1]
    assert never["tokens"] == sum(lengths) - len(lengths)
    assert (never["agreement"], never["layers_saved"]) == (100, 0)
    # All exit after the first block, which reads nothing but its own cache: the stream there, read as the last.
    always = next(iter(early_exit.compare_reading(rule.at(-1.0), texts).rows()))
    assert always["layers_saved"] == pytest.approx(100 * (1 - 1 / wren.n_layers)) and always["full_seconds"] > 0
    nats, right = {"full": [], "early": []}, []
    for text in texts:
        ids = wren.encode(text)
        if ids.shape[1] < 2:
            continue
        run = wren.run(ids, "resid_post")
        logits = {"full": run.logits[0, 1:], "early": logits_of(wren, run.at("resid_post", 0)[0, 1:])}
        right += (logits["full"].argmax(-1) == logits["early"].argmax(-1)).tolist()
        for name, found in logits.items():
            nats[name] += torch.nn.functional.cross_entropy(found[:-1], ids[0, 2:], reduction="none").tolist()
    assert always["agreement"] == pytest.approx(100 * np.mean(right))
    for name, found in nats.items():
        assert always[f"perplexity_{name}"] == pytest.approx(np.exp(np.mean(found)), rel=1e-4)
    assert never["perplexity_early"] == pytest.approx(always["perplexity_full"], rel=1e-5)
    with pytest.raises(InvalidInput, match="two tokens"):
        early_exit.compare_reading(rule, ["a"])


def test_passes_of_other_threads_are_not_timed(wren):
    one = wren.encode("Once")[:, :1]
    with body_clock(wren, time.perf_counter) as spent:
        other = threading.Thread(target=wren.run, args=(one,))
        other.start()
        other.join(1)
        assert other.is_alive() and spent == []
        wren.run(one)
    other.join()
    assert len(spent) == 1
