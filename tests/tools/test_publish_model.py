"""The folder that ships: what its card says is what its files hold."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tools.evaluation import bits_per_byte, prefix_matching_scores
from tools.model_cards import sixty_values
from tools.training.documents import Document
from tools.training.encoding import encode
from tools.training.loop import Run
from tools.training.networks import Shape
from tools.training.recipes import Phase, Recipe
from tools.training.vocabulary import save_tokenizer, tokenizer_of
from tools.training.windows import EncodedCorpus
from transformers import AutoModelForCausalLM

from tools import card_text, model_cards, publish_model
from tools.training import encoding

WORDS = [" the", " king", " said", " bread", " tree", "a", "b"]
D_VOCAB = 257 + len(WORDS)
RECIPE = Recipe(
    Shape(4, 8, 2, 4, 20, D_VOCAB, 128),
    (Phase(5, 64, 1), Phase(20, 128, 1, lr=(1.0, 0.0))),
    history="Its beginning was lost.",
    limits="Nor what it means.",
)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """What training a small language model leaves behind; every test publishes to a folder of its own."""
    folder = tmp_path_factory.mktemp("out")
    tokenizer = tokenizer_of([(word, -float(i + 1)) for i, word in enumerate(WORDS)])
    save_tokenizer(tokenizer, folder / "tokenizer", context=128)
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(WORDS, size=400)) for _ in range(12)]
    (folder / "text").mkdir()
    rows = [Document(str(i), "books", text, work=str(i)) for i, text in enumerate(texts)]
    encoding.save(encode(tokenizer, rows[:10]), folder / "text" / "train.npz")
    encoding.save(encode(tokenizer, rows[10:]), folder / "text" / "held_back.npz")
    (folder / "token_counts.json").write_text(json.dumps([0] * 257 + [500] * len(WORDS)))
    (folder / "wikitext.txt").write_text(" the king said a b bread" * 20)
    train(folder, "small", RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish_model, "WIKITEXT", folder / "wikitext.txt")
        yield folder


def train(out, name: str, recipe: Recipe) -> None:
    Run(recipe, encoding.load(out / "text" / "train.npz"), out / name, compiled=False).train()


@pytest.fixture(scope="module")
def shipped(out):
    """The folder that ships, and its card."""
    return out / "shipped", publish_model.publish("small", out=out, to=out / "shipped", recipe=RECIPE)


def test_the_card_of_a_language_model_is_measured_on_the_files_next_to_it(out, shipped):
    to, card = shipped
    assert (to / "README.md").read_text() == card
    model = AutoModelForCausalLM.from_pretrained(to, dtype=torch.float32).eval()
    evaluation = encoding.load(out / "text" / "held_back.npz")
    bits = bits_per_byte(model, evaluation.tokens, int(evaluation.n_bytes.sum()), context=128)
    counted = json.loads((out / "kneser_ney.json").read_text())
    assert f"| held-back corpus text | {bits:.3f} | {counted['held-back corpus text']:.3f} |" in card
    assert 0.3 < counted["held-back corpus text"] < 1.2  # one of seven words, 2.8 bits, of 4 bytes on average
    assert "Its beginning was lost." in card
    assert "Nor what it means." in card
    assert "| 5 | 20 | 128 | 512 | 1 to 0 |" in card
    drawn = sixty_values(model)
    assert len(re.findall(r"^\| [23]\.\d+ \| `", card, flags=re.MULTILINE)) == len(drawn) == 40
    assert "`<0x" not in card  # tokens never seen are left out
    assert "## Small runs" not in card
    assert json.loads((to / "loss.jsonl").read_text().splitlines()[-1])["tokens"] == 20 * 512


def test_bytes_of_a_character_are_left_out_however_often_they_occur(out):
    tokenizer = Tokenizer.from_file(str(out / "tokenizer" / "tokenizer.json"))
    counts = torch.full((D_VOCAB,), 500)
    unembedding = torch.linspace(1, 0, D_VOCAB)[:, None]  # the lower the id, the higher the score
    pieces = model_cards.top_pieces(torch.ones(1), unembedding, tokenizer, counts, top=D_VOCAB)
    assert len(pieces) == D_VOCAB - 128
    assert pieces[-len(WORDS) - 1] == tokenizer.id_to_token(128)  # the last character of one byte
    assert pieces[-len(WORDS) :] == [tokenizer.id_to_token(257 + i) for i in range(len(WORDS))]


def test_the_card_holds_the_table_of_small_runs_and_themes_given_by_hand_next_to_their_values(out, shipped):
    (out / "table.md").write_text("| run | loss |\n| --- | --- |\n| tiny | 3 |\n")
    first = re.search(r"^\| ([23]\.\d+) \|", shipped[1], flags=re.MULTILINE)
    assert first is not None
    (out / "themes.json").write_text(json.dumps({first[1]: "royalty", "random 3": "food", "random 4": "food"}))
    card = publish_model.publish(
        "small", out=out, to=out / "again", recipe=RECIPE, small_runs=out / "table.md", themes=out / "themes.json"
    )
    assert "## Small runs\n" in card
    assert "| tiny | 3 |" in card
    assert "**1 of 40** values, 2 of 40 random vectors" in card
    assert re.search(rf"^\| {re.escape(first[1])} \| .* \| royalty \|$", card, flags=re.MULTILINE)


def test_the_card_of_a_toy_has_the_scores_of_its_heads(out):
    recipe = replace(RECIPE, shape=replace(RECIPE.shape, n_layers=2, d_mlp=0))
    train(out, "toy", recipe)
    card = publish_model.publish("toy", out=out, to=out / "toy-shipped", recipe=recipe)
    model = AutoModelForCausalLM.from_pretrained(out / "toy-shipped", dtype=torch.float32).eval()
    induction, previous = prefix_matching_scores(model)
    for name, scores in (("induction", induction), ("previous token", previous)):
        for layer in (0, 1):
            row = " | ".join(f"{score:.3f}" for score in scores[layer].tolist())
            assert f"| {name} | {layer} | {row} |" in card
    assert "Kneser-Ney" not in card
    assert re.search(r"^\| English-language books of .* \| 100 % \| public domain \|$", card, flags=re.MULTILINE)


def test_the_card_lists_the_sources_by_their_share_of_the_bytes():
    corpus = EncodedCorpus(
        tokens=np.zeros(9, dtype=np.uint16),
        lengths=np.array([3, 3, 3]),
        sources=np.array(["books", "guides", "wikipedia"]),
        n_bytes=np.array([247_000, 5_000, 748_000]),
    )
    rows = [line.split(" | ")[:2] for line in card_text.data(corpus).splitlines() if line.startswith("| ")][2:]
    assert [(row[0].removeprefix("| ").split()[0], row[1]) for row in rows] == [
        ("English", "75 %"),
        ("English-language", "25 %"),
        ("Open", "0.5 %"),
    ]
    with pytest.raises(KeyError, match="diaries"):
        card_text.data(replace(corpus, sources=np.array(["books", "diaries", "wikipedia"])))


def test_the_tokenizer_of_the_run_reads_wikitext(out):
    text = publish_model.wikitext(Tokenizer.from_file(str(out / "tokenizer" / "tokenizer.json")))
    assert text.n_bytes.tolist() == [len(" the king said a b bread") * 20]
    assert text.tokens[-1] == 0


def test_the_first_documents_are_whole():
    text = EncodedCorpus(
        tokens=np.arange(10, dtype=np.uint16),
        lengths=np.array([4, 3, 3]),
        sources=np.array(["books", "guides", "books"]),
        n_bytes=np.array([40, 30, 31]),
    )
    for n_tokens, n_documents in ((2, 1), (4, 1), (6, 1), (7, 2), (99, 3)):
        first = publish_model.first_documents(text, n_tokens)
        assert len(first.lengths) == len(first.sources) == len(first.n_bytes) == n_documents
        assert len(first.tokens) == text.lengths[:n_documents].sum()
