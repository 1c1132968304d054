"""The small WikiLM: its vocabulary and text stream, that it learns, opens, and takes part in a report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import unembed
from unembed.errors import InvalidInput
from unembed.models.wikilm import WikiLMForCausalLM
from unembed.models.word_level import SPECIALS
from unembed.training.wikilm_mini import Mini, lines_of, main, stream, train, vocabulary

LINES = [f"the cat number w{i % 30} sat on w{(7 * i) % 30} ." for i in range(120)]
SMALL = Mini(
    words=32, cutoffs=(10, 20), d_model=32, d_mlp=48, n_layers=2, n_heads=2, context=16, rows=8, steps=120, lr=5e-3
)


def test_words_are_counted_and_sorted_as_in_fairseqs_dictionaries() -> None:
    words, counts = vocabulary(["b a b", "<unk> c a b d"], 6)
    assert words == [*SPECIALS, "b", "a"]
    assert counts == [0, 0, 2, 1 + 2, 3, 2]  # two line ends; one literal <unk>, c and d left out
    assert stream(["b c", "a"], words).tolist() == [2, 4, 3, 2, 5, 2]


def test_it_learns_opens_as_any_model_and_is_the_same_when_made_again(tmp_path: Path) -> None:
    seen: list[dict] = []
    folder = train(LINES, tmp_path / "a", SMALL, seen.append)
    curve = [json.loads(line) for line in (folder / "loss.jsonl").read_text().splitlines()]
    assert curve == seen and curve[0]["step"] == 1 and curve[-1]["step"] == 120
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.3
    lm = unembed.load(str(folder))
    assert isinstance(lm.hf, WikiLMForCausalLM) and lm.d_vocab == 32 and lm.d_mlp == 48
    assert lm.token_strings(lm.encode("the cat")[0]) == ["</s>", "the", "cat"]
    text = stream(LINES, [lm.tokenizer.convert_ids_to_tokens(i) for i in range(32)])  # type: ignore[union-attr]
    with torch.no_grad():
        logits = lm.run(text[:16][None]).logits[0, :-1]
    surprise = -logits.gather(-1, text[1:16, None]).mean()
    assert float(surprise) == pytest.approx(curve[-1]["loss"], abs=1.0)
    again = unembed.load(str(train(LINES, tmp_path / "b", SMALL)))
    assert all(torch.equal(a, b) for a, b in zip(lm.hf.parameters(), again.hf.parameters(), strict=True))


def test_the_papers_study_runs_on_the_papers_kind_of_model(tmp_path: Path) -> None:
    lm = unembed.load(str(train(LINES, tmp_path / "m", SMALL)))
    report = unembed.report(
        "geva2021",
        lm,
        LINES,
        tmp_path / "r",
        examples=40,
        top=5,
        shown=5,
        pattern_keys=2,
        perturbed_keys=1,
        predictive=5,
    )
    chosen = {row["option"]: row["here"] for row in report["settings"].rows()}
    assert chosen["basis"] == chosen["values_basis"] == "final"  # there is no single matrix E to read "raw" with
    head = lm.hf.get_output_embeddings()
    assert head is not None
    best = next(report["predictive_values"].rows())
    layer, index = map(int, best["value"].split("."))
    with torch.no_grad():
        log_p = head(lm.weights.W_out[layer][index])
    assert best["token"] == lm.token_strings([int(log_p.argmax())])[0]
    assert best["max_probability"] == pytest.approx(float(log_p.max().exp()), rel=1e-4)
    last = list(report["residual"].rows())[-1]
    assert np.isfinite(last["match"]) and last["match_n"] == 40


def test_too_little_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidInput, match="smaller cutoffs"):
        train(["a b c"], tmp_path / "m", SMALL)
    with pytest.raises(InvalidInput, match="a row has 16"):
        train([" ".join(f"w{i}" for i in range(12))], tmp_path / "m", Mini(words=20, cutoffs=(3, 5), context=16))
    (tmp_path / "text.txt").write_text("one\n\ntwo three\n")
    assert lines_of(str(tmp_path / "text.txt")) == ["one", "two three"]
    assert main(["--corpus", str(tmp_path / "text.txt"), "--out", str(tmp_path / "m")]) == 1
    assert "Give more text" in capsys.readouterr().err
