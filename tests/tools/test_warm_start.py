"""A run that begins from an earlier model's weights computes what that model computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tools.training.export import save
from tools.training.loop import Run
from tools.training.networks import Shape, Wren, build
from tools.training.recipes import Phase, Recipe
from tools.training.vocabulary import save_tokenizer, tokenizer_of
from tools.training.windows import EncodedCorpus
from tools.warm_start import Milestone, begin_from, copy_weights, milestone_of

from unembed.errors import InvalidInput

EARLIER = tokenizer_of([(" the", -1.0), (" ki", -2.0), ("ng", -2.0), ("s", -3.0)])
LATER = tokenizer_of([(" king", -1.0), (" kings", -2.0), (" the", -2.0)])
SHAPE = Shape(2, 16, 2, 8, 32, EARLIER.get_vocab_size(), 64)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> tuple[Wren, Path]:
    torch.manual_seed(1)
    network = build(SHAPE)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    network.half().float()  # what an exported file can hold
    folder = tmp_path_factory.mktemp("earlier")
    save(network, folder / "model")
    save_tokenizer(EARLIER, folder / "tokenizer", context=64)
    assert isinstance(network, Wren)
    return network, folder / "model"


@pytest.mark.parametrize("n_layers", [2, 3])
def test_the_logits_are_those_of_the_earlier_model_with_the_same_or_more_layers(earlier, n_layers):
    network, folder = earlier
    later = build(replace(SHAPE, n_layers=n_layers))
    assert isinstance(later, Wren)
    copy_weights(later, folder, EARLIER)
    ids = torch.randint(0, SHAPE.d_vocab, (2, 30))
    torch.testing.assert_close(later(ids), network(ids), rtol=1e-5, atol=1e-5)


def test_a_token_of_another_vocabulary_begins_at_the_mean_of_its_earlier_pieces(earlier):
    network, folder = earlier
    later = build(replace(SHAPE, d_vocab=LATER.get_vocab_size() + 1))  # one row that no token uses
    assert isinstance(later, Wren)
    copy_weights(later, folder, LATER)

    def row(of: Wren, tokenizer: Tokenizer, piece: str) -> torch.Tensor:
        return of.wte.weight[tokenizer.token_to_id(piece)]

    pieces = [row(network, EARLIER, piece) for piece in (" ki", "ng", "s")]
    torch.testing.assert_close(row(later, LATER, " kings"), torch.stack(pieces).mean(0))
    torch.testing.assert_close(row(later, LATER, " the"), row(network, EARLIER, " the"))
    torch.testing.assert_close(later.wte.weight[:257], network.wte.weight[:257])


@pytest.mark.parametrize("change", [{"d_model": 32}, {"n_layers": 1}, {"n_heads": 4, "d_head": 4}])
def test_a_model_of_other_sizes_is_refused(earlier, change):
    later = build(replace(SHAPE, **change))
    assert isinstance(later, Wren)
    with pytest.raises(InvalidInput, match="at most as many layers"):
        copy_weights(later, earlier[1], EARLIER)


def test_a_run_continues_at_the_place_of_the_earlier_one_with_its_rate_risen_anew(earlier, tmp_path):
    folder = earlier[1]
    tokens = np.random.default_rng(0).integers(1, SHAPE.d_vocab, 9000).astype(np.uint16)
    corpus = EncodedCorpus(tokens, np.full(9, 1000), np.array(["a"] * 9), np.full(9, 4000), vocabulary="v")
    recipe = Recipe(SHAPE, (Phase(50, 64, 2),), warmup=4)
    Milestone(step=7, tokens=7168, pass_=0, place=7, rows=2).save(folder)
    run = Run(recipe, corpus, tmp_path, compiled=False)
    begin_from(run, folder, EARLIER)
    assert milestone_of(run) == Milestone.load(folder)
    assert recipe.lr_factor(7, began=run.began) == 0.25
    run.train(until=9)
    assert (run.step, run.n_tokens) == (9, 9 * 1024)
    assert Run(recipe, corpus, tmp_path, compiled=False).began == 7


def test_a_run_with_another_vocabulary_begins_the_text_anew(earlier, tmp_path):
    tokens = np.random.default_rng(0).integers(1, LATER.get_vocab_size(), 9000).astype(np.uint16)
    corpus = EncodedCorpus(tokens, np.full(9, 1000), np.array(["a"] * 9), np.full(9, 4000))
    Milestone(step=7, tokens=7168, pass_=0, place=7, rows=2).save(earlier[1])
    shape = replace(SHAPE, d_vocab=LATER.get_vocab_size())
    run = Run(Recipe(shape, (Phase(50, 64, 2),)), corpus, tmp_path, compiled=False)
    begin_from(run, earlier[1], LATER)
    assert (run.step, run.n_tokens, run.windows.place) == (0, 0, 0)


def test_an_attention_only_recipe_is_refused(earlier, tmp_path):
    tokens = np.ones(2000, dtype=np.uint16)
    corpus = EncodedCorpus(tokens, np.array([2000]), np.array(["a"]), np.array([2000]))
    run = Run(Recipe(replace(SHAPE, d_mlp=0), (Phase(5, 64, 1),)), corpus, tmp_path, compiled=False)
    with pytest.raises(InvalidInput, match="attention-only"):
        begin_from(run, earlier[1], EARLIER)
