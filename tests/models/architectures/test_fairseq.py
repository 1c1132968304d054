"""A checkpoint written in fairseq's layout, with names and ties spelled out here, and read back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unembed.errors import InvalidInput, ModelNotUnderstood, ModelUnavailable
from unembed.language_model import load
from unembed.models.architectures.fairseq import find_checkpoint, open_fairseq, read_checkpoint, read_dictionary

from .test_wikilm import by_hand

N_WORDS, D, D_MLP, CUTOFFS = 61, 32, 40, (20, 40)


def state(seed: int = 0, tied: bool = True, n_layers: int = 2) -> dict[str, Tensor]:
    """Random tensors under fairseq's own names."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return 0.3 * torch.randn(*shape, generator=generator)

    sizes, widths = (20, 20, N_WORDS - 40), (D, D // 4, D // 16)
    out: dict[str, Tensor] = {"decoder.version": torch.tensor([3.0])}
    for b, (size, width) in enumerate(zip(sizes, widths, strict=True)):
        out[f"decoder.embed_tokens.embeddings.{b}.0.weight"] = random(size, width)
        out[f"decoder.embed_tokens.embeddings.{b}.1.weight"] = random(D, width)
    out["decoder.embed_tokens._float_tensor"] = out["decoder.embed_positions._float_tensor"] = torch.zeros(1)
    for i in range(n_layers):
        at = f"decoder.layers.{i}"
        for c in ("k", "v", "q", "out"):
            out[f"{at}.self_attn.{c}_proj.weight"] = random(D, D)
            out[f"{at}.self_attn.{c}_proj.bias"] = random(D)
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            out[f"{at}.{name}.weight"], out[f"{at}.{name}.bias"] = 1 + random(D), random(D)
        out[f"{at}.fc1.weight"], out[f"{at}.fc1.bias"] = random(D_MLP, D), random(D_MLP)
        out[f"{at}.fc2.weight"], out[f"{at}.fc2.bias"] = random(D, D_MLP), random(D)
    out["decoder.adaptive_softmax.version"] = torch.tensor([1])
    out["decoder.adaptive_softmax.head._float_tensor"] = torch.zeros(1)
    out["decoder.adaptive_softmax.head.word_proj.weight"] = out["decoder.embed_tokens.embeddings.0.0.weight"]
    out["decoder.adaptive_softmax.head.class_proj.weight"] = random(2, D)
    for b in (1, 2):
        widening = out[f"decoder.embed_tokens.embeddings.{b}.1.weight"]
        out[f"decoder.adaptive_softmax.tail.{b - 1}.0.weight"] = widening if tied else random(widths[b], D)
        out[f"decoder.adaptive_softmax.tail.{b - 1}.2.weight"] = out[f"decoder.embed_tokens.embeddings.{b}.0.weight"]
    return out


ARGUMENTS = argparse.Namespace(
    arch="transformer_lm_wiki103",
    decoder_attention_heads=4,
    adaptive_input=True,
    decoder_normalize_before=True,
    tokens_per_sample=128,
    activation_fn="relu",
)


def written(folder: Path, tensors: dict[str, Tensor], extra: Any = None) -> Path:
    """A folder with a checkpoint and its dictionary, as `fairseq-train` leaves them."""
    content = {
        "args": ARGUMENTS,
        "model": tensors,
        "extra_state": {"epoch": 3, "val_loss": 2.5} | (extra or {}),
        "last_optimizer_state": {"state": {0: {"step": 4}}, "param_groups": [{"lr": 0.1}]},
    }
    torch.save(content, folder / "model.pt")
    words = "".join(f"word{i} {1000 - i}\n" for i in range(N_WORDS - 4 - 1)) + "madeupword0000 0\n"
    (folder / "dict.txt").write_text(words, encoding="utf-8")
    return folder


def test_a_written_checkpoint_opens_as_the_model_of_its_tensors(tmp_path: Path):
    tensors = state()
    found = find_checkpoint(written(tmp_path, tensors))
    assert found is not None
    opened = open_fairseq(*found)
    assert opened.model.config.num_attention_heads == 4 and opened.model.config.max_position_embeddings == 128
    assert torch.equal(opened.model.state_dict()["model.layers.1.fc2.weight"], tensors["decoder.layers.1.fc2.weight"])
    ids = [2, 5, 19, 20, 39, 40, 60]
    streams, log_p = by_hand(opened.model, ids)
    with torch.no_grad():
        out = opened.model(torch.tensor([ids]), output_hidden_states=True)
    torch.testing.assert_close(out.hidden_states[-1][0].double(), torch.from_numpy(streams[-1]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.logits[0].double(), torch.from_numpy(log_p), rtol=1e-4, atol=1e-4)
    assert opened.tokenizer("word0 word56 gone")["input_ids"] == [2, 4, 3, 3]
    assert opened.tokenizer("word55 madeupword0000")["input_ids"] == [2, 59, 60]
    assert opened.token_counts[4] == 1000 and opened.token_counts[60] == 0
    assert opened.token_counts[:4].tolist() == [0, 0, 1000, 1000]


def test_as_many_layers_as_bands_of_words_are_the_layers(tmp_path: Path):
    tensors = state(n_layers=3)
    lm = load(str(written(tmp_path, tensors)))
    assert lm.n_layers == 3
    for i in range(3):
        assert torch.equal(lm.weights.W_out[i], tensors[f"decoder.layers.{i}.fc2.weight"].T)


def test_it_opens_like_any_other_model(tmp_path: Path):
    lm = load(str(written(tmp_path, state())))
    assert lm.d_mlp == D_MLP and lm.n_layers == 2 and lm.name == tmp_path.name
    assert lm.encode("word1 word2").tolist() == [[2, 5, 6]]
    assert bool(lm.unlearned[60]) and not bool(lm.unlearned[4])
    by_file = load(tmp_path / "model.pt")
    assert torch.equal(by_file.run("word1").logits, lm.run("word1").logits)


def test_a_device_map_has_nothing_to_act_on(tmp_path: Path):
    folder = str(written(tmp_path, state()))
    with pytest.raises(InvalidInput, match=r"device_map: a fairseq model is loaded as a whole.*save_pretrained"):
        load(folder, device_map="auto")


def test_what_was_saved_anew_takes_a_device_map(tmp_path: Path):
    folder = str(written(tmp_path, state()))
    load(folder).hf.save_pretrained(tmp_path / "saved")
    assert torch.equal(load(tmp_path / "saved", device_map={"": "disk"}).weights.W_E, load(folder).weights.W_E)


def test_untied_projections_are_recognised_by_their_shape(tmp_path: Path):
    tensors = state(tied=False)
    model = open_fairseq(*_paths(written(tmp_path, tensors))).model
    assert not model.config.tie_adaptive_proj
    x = torch.randn(3, D)
    with torch.no_grad():
        narrow = x @ tensors["decoder.adaptive_softmax.tail.1.0.weight"].T
        expected = narrow @ tensors["decoder.embed_tokens.embeddings.2.0.weight"].T
        torch.testing.assert_close(model.lm_head.band_scores(x)[:, 40:], expected)


def test_older_layouts_give_the_same_model(tmp_path: Path):
    tensors = state()
    older = dict(tensors)
    del older["decoder.version"]
    for i in range(2):
        at = f"decoder.layers.{i}"
        for kind in ("weight", "bias"):
            older[f"{at}.self_attn.in_proj_{kind}"] = torch.cat(
                [older.pop(f"{at}.self_attn.{c}_proj.{kind}") for c in "qkv"]
            )
            older[f"{at}.layer_norms.0.{kind}"] = older.pop(f"{at}.self_attn_layer_norm.{kind}")
            older[f"{at}.layer_norms.2.{kind}"] = older.pop(f"{at}.final_layer_norm.{kind}")
    older["decoder.embed_positions.weights"] = torch.zeros(5, D)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    new, old = (open_fairseq(*_paths(written(tmp_path / n, t))).model for n, t in (("a", tensors), ("b", older)))
    for key, tensor in new.state_dict().items():
        assert torch.equal(tensor, old.state_dict()[key]), key


def test_a_final_norm_in_the_file_is_applied(tmp_path: Path):
    tensors = state() | {"decoder.layer_norm.weight": torch.full((D,), 2.0), "decoder.layer_norm.bias": torch.ones(D)}
    lm = load(str(written(tmp_path, tensors)))
    assert lm.structure.final_norm is not None
    torch.testing.assert_close(lm.structure.final_norm.gain, torch.full((D,), 2.0))


def test_half_precision_tensors_are_widened(tmp_path: Path):
    halves = {k: v.half() for k, v in state().items()}
    assert open_fairseq(*_paths(written(tmp_path, halves))).model.dtype == torch.float32


def _paths(folder: Path) -> tuple[Path, Path]:
    return folder / "model.pt", folder / "dict.txt"


# Refusals


class Payload:
    """What an attacker would put into a pickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must never be printed",)


def test_code_hidden_in_the_pickle_is_refused_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ModelUnavailable, match=r"print.*only tensors, plain containers and argparse.Namespace"):
        open_fairseq(*_paths(written(tmp_path, state(), {"meter": Payload()})))
    assert "never" not in capsys.readouterr().out


def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path: Path):
    written(tmp_path, state())
    (tmp_path / "model.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ModelUnavailable, match=r"model\.pt"):
        read_checkpoint(tmp_path / "model.pt")
    with pytest.raises(ModelUnavailable, match="No such file"):
        read_checkpoint(tmp_path / "gone.pt")
    torch.save({"model": {"a": 1}}, tmp_path / "model.pt")
    with pytest.raises(ModelNotUnderstood, match="dict of tensors"):
        read_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder.layers.1.fc1.bias": None}, r"has no tensor decoder\.layers\.1\.fc1\.bias"),
        ({"decoder.layers.0.fc1.weight": None}, r"numbered \[1\]"),
        ({"decoder.adaptive_softmax.tail.0.2.weight": torch.zeros(20, D // 4)}, r"should be equal \(tied weights\)"),
        ({"decoder.adaptive_softmax.tail.0.0.weight": torch.zeros(D, D // 4)}, "differs from the embedding's"),
        ({"decoder.layers.0.fc2.weight": torch.zeros(D, 3)}, r"shape \(32, 3\), not \(32, 40\)"),
        ({"encoder.layers.0.fc1.weight": torch.zeros(3)}, "does not have: encoder.layers.0.fc1.weight"),
        (
            {
                "decoder.embed_tokens.embeddings.0.0.weight": None,
                "decoder.embed_tokens.embeddings.1.0.weight": None,
                "decoder.embed_tokens.embeddings.2.0.weight": None,
            },
            "no adaptive input",
        ),
    ],
)
def test_another_architecture_is_refused_by_the_tensor_that_shows_it(
    tmp_path: Path, change: dict[str, Tensor | None], message: str
):
    tensors = {k: v for k, v in (state() | change).items() if v is not None}
    with pytest.raises(ModelNotUnderstood, match=message):
        open_fairseq(*_paths(written(tmp_path, tensors)))


def test_a_dictionary_of_another_size_is_refused(tmp_path: Path):
    written(tmp_path, state())
    (tmp_path / "dict.txt").write_text("one 5\ntwo 3\n")
    with pytest.raises(ModelNotUnderstood, match=r"61 words and .* has 6"):
        open_fairseq(*_paths(tmp_path))


def test_arguments_that_change_the_meaning_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ARGUMENTS, "decoder_normalize_before", False)
    with pytest.raises(ModelNotUnderstood, match="decoder_normalize_before=False"):
        open_fairseq(*_paths(written(tmp_path, state())))


# The dictionary


def test_words_keep_their_order_and_the_count_follows_the_last_space(tmp_path: Path):
    path = tmp_path / "dict.txt"
    path.write_text("the 12\na\u2028b 7\n<unk> 5 #fairseq:overwrite\n", encoding="utf-8")
    dictionary = read_dictionary(path)
    assert dictionary.words == ("<s>", "<pad>", "</s>", "<unk>", "the", "a\u2028b")
    assert dictionary.counts.tolist() == [0, 0, 0, 5, 12, 7]


@pytest.mark.parametrize("line", ["the", "the twelve", " 12", "</s> 3"])
def test_a_line_that_is_not_a_word_and_count_is_refused(tmp_path: Path, line: str):
    path = tmp_path / "dict.txt"
    path.write_text(f"ok 3\n{line}\n")
    with pytest.raises(InvalidInput, match=r"line 2 of .*dict\.txt"):
        read_dictionary(path)


def test_one_of_several_checkpoints_in_a_folder_must_be_named(tmp_path: Path):
    written(tmp_path, state())
    assert find_checkpoint(tmp_path / "dict.txt") is None
    (tmp_path / "checkpoint_best.pt").touch()
    with pytest.raises(InvalidInput, match="path of one of them"):
        find_checkpoint(tmp_path)
