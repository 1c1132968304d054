"""GGUF files: the model holds the numbers that the file's blocks stand for, and says how it was quantised."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unembed
from tests.gguf_files import TEMPLATE, write_gguf
from unembed.errors import ExtraMissing, InvalidInput, ModelUnavailable
from unembed.models.gguf import QUANTISED, read_gguf

IDS = torch.tensor([[3, 4, 260, 5]])
KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0")
"""What the package `gguf` can write."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_are_the_numbers_that_the_blocks_stand_for(kind: str, tmp_path: Path) -> None:
    meant = write_gguf(tmp_path / "tiny.gguf", kind)
    read = read_gguf(tmp_path / "tiny.gguf")
    for name, weight in meant.state_dict().items():
        assert torch.equal(read.hf.state_dict()[name].float(), weight), name
    assert torch.equal(read.hf(IDS).logits, meant(IDS).logits)
    expected = "" if "F" in kind else f"{kind} (16 of 21 tensors)"
    assert getattr(read.hf.config, QUANTISED, "") == expected


def test_the_tokenizer_is_that_of_the_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    tokenizer = read_gguf(tmp_path / "tiny.gguf").tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer("the of<|end|>")["input_ids"]) == ["the", "Ġof", "<|end|>"]
    assert tokenizer.chat_template == TEMPLATE and tokenizer.eos_token == "<|end|>"


def test_what_was_read_can_be_saved_and_opened_by_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    write_gguf(tmp_path / "tiny.gguf", "Q4_0")
    read = read_gguf(tmp_path / "tiny.gguf")
    read.hf.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(IDS).logits, read.hf(IDS).logits)
    assert getattr(again.config, QUANTISED) == "Q4_0 (16 of 21 tensors)"


@pytest.mark.parametrize("size", [0, 3, 100, 5000, 400_000])
def test_a_file_that_was_cut_is_refused_in_one_line(size: int, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "Q4_0")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((tmp_path / "tiny.gguf").read_bytes()[:size])
    with pytest.raises(ModelUnavailable, match=r"cut\.gguf: it is not a complete GGUF file") as caught:
        read_gguf(cut)
    assert "\n" not in str(caught.value)


def test_a_file_without_a_matrix_is_refused_by_its_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", without="layers.1.mlp.up_proj")
    with pytest.raises(ModelUnavailable, match=r"lack model\.layers\.1\.mlp\.up_proj\.weight"):
        read_gguf(tmp_path / "tiny.gguf")


def test_a_file_opens_by_its_path_as_transformers_reads_it(tmp_path: Path) -> None:
    meant = write_gguf(tmp_path / "tiny.Q8_0.gguf", "Q8_0")
    for where in (tmp_path / "tiny.Q8_0.gguf", tmp_path):  # the file, and the folder that holds only it
        lm = unembed.load(where)
        assert torch.equal(lm.run(IDS).logits, meant(IDS).logits) and lm.name == "tiny.Q8_0.gguf"
        assert lm.token_strings(lm.encode("the of")[0]) == ["the", " of"]
        assert lm.provenance().notes == {"dequantised_from": "Q8_0 (16 of 21 tensors)"}
    halved = unembed.load(tmp_path, dtype="bfloat16")
    assert halved.dtype == torch.bfloat16
    with pytest.raises(InvalidInput, match="revision"):
        unembed.load(tmp_path, revision="main")
    with pytest.raises(InvalidInput, match="loaded as a whole"):
        unembed.load(tmp_path, device_map="auto")


def test_the_saved_copy_of_a_file_still_says_how_it_was_quantised(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "Q4_0")
    lm = unembed.load(tmp_path / "tiny.gguf")
    lm.hf.save_pretrained(tmp_path / "saved")
    assert unembed.load(tmp_path / "saved").provenance().notes == {"dequantised_from": "Q4_0 (16 of 21 tensors)"}


def test_a_folder_of_several_files_and_one_without_the_extra_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    with monkeypatch.context() as patch:
        patch.setattr("unembed.models.gguf.importlib.util.find_spec", lambda _: None)
        with pytest.raises(ExtraMissing, match=r"gguf and accelerate.*pip install 'unembed\[gguf\]'"):
            unembed.load(tmp_path)
    with pytest.raises(ModelUnavailable, match=r"no such GGUF file"):
        unembed.load("nowhere.gguf")
    (tmp_path / "other.gguf").write_bytes(b"")
    with pytest.raises(ModelUnavailable, match=r"2 GGUF files: other\.gguf, tiny\.gguf\. Give the path of one"):
        unembed.load(tmp_path)
