"""The small WikiLM: its vocabulary and text stream, that it learns, opens, and takes part in a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.training.wikilm_mini import Mini, Text, perplexity, stream, text_of, train, vocabulary

import unembed
from unembed.errors import CheckpointFault, InvalidInput
from unembed.models.architectures.wikilm import WikiLMForCausalLM
from unembed.models.architectures.word_level import SPECIALS

LINES = [f"the cat number w{i % 30} sat on w{(7 * i) % 30} ." for i in range(120)]
TEXT = Text(LINES, ["the cat number w3 sat on w9 ."])
SMALL = Mini(
    words=32, cutoffs=(10, 20), d_model=32, d_mlp=48, n_layers=2, n_heads=2, context=16, rows=8, steps=120, lr=5e-3
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """The folder of a whole run, which tests only read, and what was reported on the way."""
    seen: list[dict] = []
    return train(TEXT, tmp_path_factory.mktemp("trained") / "a", SMALL, seen.append), seen


def losses_of(folder: Path) -> list[float]:
    """The losses on the way, without the perplexity at the end."""
    return [json.loads(line)["loss"] for line in (folder / "loss.jsonl").read_text().splitlines()[:-1]]


def test_words_are_counted_and_sorted_as_in_fairseqs_dictionaries() -> None:
    words, counts = vocabulary(["b a b", "<unk> c a b d"], 6)
    assert words == [*SPECIALS, "b", "a"]
    assert counts == [0, 0, 2, 1 + 2, 3, 2]  # two line ends; one literal <unk>, c and d left out
    assert stream(["b c", "a"], words).tolist() == [2, 4, 3, 2, 5, 2]


def test_it_learns_and_opens_as_any_model(trained: tuple[Path, list[dict]]) -> None:
    folder, seen = trained
    curve = [json.loads(line) for line in (folder / "loss.jsonl").read_text().splitlines()]
    held_back = curve.pop()
    assert [*curve, held_back] == seen and curve[0]["step"] == 1 and curve[-1]["step"] == 120
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.3
    assert not (folder / "checkpoint.pt").exists()
    lm = unembed.load(str(folder))
    assert isinstance(lm.hf, WikiLMForCausalLM) and lm.d_vocab == 32 and lm.d_mlp == 48
    assert lm.token_strings(lm.encode("the cat")[0]) == ["</s>", "the", "cat"]
    text = stream(LINES, [lm.tokenizer.convert_ids_to_tokens(i) for i in range(32)])  # type: ignore[union-attr]
    with torch.no_grad():
        logits = lm.run(text[:16][None]).logits[0, :-1]
    surprise = -logits.gather(-1, text[1:16, None]).mean()
    assert float(surprise) == pytest.approx(curve[-1]["loss"], abs=1.0)
    ids = stream(TEXT.held_back, [lm.tokenizer.convert_ids_to_tokens(i) for i in range(32)])  # type: ignore[union-attr]
    with torch.no_grad():
        one_by_one = [lm.run(ids[:n][None]).logits[0, -1, ids[n]] for n in range(1, len(ids))]
    assert held_back["held_back_perplexity"] == pytest.approx(
        float(torch.stack(one_by_one).mean().neg().exp()), abs=0.01
    )
    assert perplexity(lm.hf, ids, 16) == pytest.approx(held_back["held_back_perplexity"], abs=0.01)


def test_three_layers_and_three_bands_of_words_open_as_three_layers(tmp_path: Path) -> None:
    lm = unembed.load(str(train(TEXT, tmp_path / "a", replace(SMALL, n_layers=3, steps=1))))
    assert lm.n_layers == 3 and [len(W) for W in lm.weights.W_out] == [48, 48, 48]


def test_a_stopped_run_resumes_to_the_same_weights(trained: tuple[Path, list[dict]], tmp_path: Path) -> None:
    whole = unembed.load(str(trained[0]))
    train(TEXT, tmp_path / "b", SMALL, until=47)
    assert (tmp_path / "b" / "checkpoint.pt").exists()
    with pytest.raises(CheckpointFault, match="another text"):
        train(Text(LINES[:60], []), tmp_path / "b", SMALL)
    again = unembed.load(str(train(TEXT, tmp_path / "b", SMALL)))
    assert all(torch.equal(a, b) for a, b in zip(whole.hf.parameters(), again.hf.parameters(), strict=True))


def test_the_papers_study_runs_on_the_papers_kind_of_model(trained: tuple[Path, list[dict]], tmp_path: Path) -> None:
    lm = unembed.load(str(trained[0]))
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
    layer, index = map(int, best["value"].removeprefix("L").split("M"))
    with torch.no_grad():
        log_p = head(lm.weights.W_out[layer][index])
    assert best["token"] == lm.token_strings([int(log_p.argmax())])[0]
    assert best["max_probability"] == pytest.approx(float(log_p.max().exp()), rel=1e-4)
    last = list(report["residual"].rows())[-1]
    assert np.isfinite(last["match"]) and last["match_n"] == 40


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="smaller cutoffs"):
        train(Text(["a b c"], []), tmp_path / "m", SMALL)
    short = Text([" ".join(f"w{i}" for i in range(12))], [])
    with pytest.raises(InvalidInput, match="a row has 16"):
        train(short, tmp_path / "m", Mini(words=20, cutoffs=(3, 5), context=16))


def test_running_text_is_read_as_wikitext_writes_it_and_some_is_held_back(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("A well-known cat.\n\n" + "two (three)\n" * 79)
    text = text_of(str(tmp_path / "text.txt"))
    assert text.lines[0] == "A well @-@ known cat ."
    assert text.held_back == ["two ( three )"] and len(text.lines) == 79
    shipped = text_of(None)
    assert " = Homarus gammarus = " in shipped.lines and any(" @-@ " in line for line in shipped.lines)
    assert len(shipped.held_back) == (len(shipped.lines) + len(shipped.held_back)) // 80


def test_products_in_bfloat16_learn_as_well(trained: tuple[Path, list[dict]], tmp_path: Path) -> None:
    exact, rounded = map(losses_of, (trained[0], train(TEXT, tmp_path / "a", replace(SMALL, bfloat16=True))))
    assert rounded != exact  # it is on
    assert rounded[-1] == pytest.approx(exact[-1], abs=0.1)
    assert rounded[-1] < rounded[0] - 0.3
