"""Opening models from memory, folders and names; every failure is one line that says what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

import unembed
from tests.families import build
from unembed import load
from unembed.errors import InvalidInput, ModelNotUnderstood, ModelUnavailable, UnembedError
from unembed.models.loading import open_model
from unembed.models.shipped_models import SHIPPED, shipped_folder, tokenizer_folder


def _one_line(error: UnembedError) -> bool:
    return "\n" not in str(error) and str(error).endswith(".")


@pytest.mark.parametrize("name", list(SHIPPED))
def test_shipped_models_open_by_name_and_predict_text(name: str) -> None:
    lm = unembed.load(name)
    assert lm.dtype == torch.float32 and lm.n_ctx is not None and lm.n_ctx >= 256
    ids = lm.encode("The first month of the year is")
    assert lm.decode(ids) == "The first month of the year is"
    logits = lm.run(ids).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
    assert float(loss) < 7.0  # a model that knows nothing has log(16384) = 9.7


def test_the_default_model_is_wren() -> None:
    assert unembed.load().name == "wren"


def test_a_model_without_weights_is_refused() -> None:
    with torch.device("meta"):
        model = build("llama")
    with pytest.raises(InvalidInput, match="holds no weights") as refused:
        unembed.load(model)
    assert _one_line(refused.value)


def test_a_saved_folder_opens_and_equals_the_model_in_memory(tmp_path: Path) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path / "mine")
    lm = unembed.load(tmp_path / "mine")
    assert lm.name == "mine" and lm.tokenizer is None
    tokens = torch.tensor([[3, 4, 5]])
    assert torch.equal(lm.run(tokens).logits, unembed.load(model).run(tokens).logits)
    halved = unembed.load(str(tmp_path / "mine"), dtype="bfloat16")
    assert halved.dtype == torch.bfloat16


def test_a_copy_of_a_shipped_model_lists_the_same_tokens(tmp_path: Path) -> None:
    copy = shutil.copytree(shipped_folder("wren"), tmp_path / "copy")
    assert torch.equal(load(copy).unlearned, load("wren").unlearned)
    (copy / "token_counts.json").unlink()
    assert not torch.equal(load(copy).unlearned, load("wren").unlearned)


@pytest.mark.parametrize("content", ["[3, 5", "[]", "{}", "[3, -1]", "[0.5]", "3"])
def test_damaged_token_counts_are_refused(tmp_path: Path, content: str) -> None:
    copy = shutil.copytree(shipped_folder("attn-1l"), tmp_path / "copy")
    (copy / "token_counts.json").write_text(content)
    with pytest.raises(ModelUnavailable, match=r"token_counts\.json.*(not a list|JSON).*Delete it") as caught:
        load(copy)
    assert _one_line(caught.value)


def test_experts_in_float64_run_without_grouped_products(tmp_path: Path) -> None:
    hf = build("qwen2_moe")
    hf.save_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7]])
    wide = load(str(tmp_path), dtype="float64").run(ids).logits
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), load(hf).run(ids).logits, rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidInput, match=r"support in float64. Call model.set_experts_implementation") as caught:
        load(hf.double())
    assert _one_line(caught.value)


def test_text_without_a_tokenizer_is_refused_and_ids_still_work() -> None:
    lm = unembed.load(build("gpt2"))
    with pytest.raises(InvalidInput, match="without a tokenizer"):
        lm.encode("words")
    assert lm.token_strings([3, 4]) == ["<3>", "<4>"]
    with_text = unembed.load(build("gpt2"), tokenizer=str(tokenizer_folder("wren")))
    assert with_text.tokenizer is not None


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"Call model.eval\(\) first"):
        unembed.load(build("gpt2").train())


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Pass the transformers model itself"):
        # Past the run-time type check of the tests, which users do not have.
        open_model.__wrapped__(torch.nn.Linear(2, 2))
    with pytest.raises(InvalidInput, match="already in memory"):
        unembed.load(build("gpt2"), dtype="float32")
    with pytest.raises(InvalidInput, match="not one of float32"):
        unembed.load("wren", dtype="float12")


def test_missing_models_are_reported_with_where_to_look(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "unknown").mkdir()
    (tmp_path / "unknown" / "config.json").write_text('{"model_type": "no-such-family"}')
    cases: list[tuple[object, type[UnembedError], str]] = [
        (tmp_path / "nowhere", ModelUnavailable, "no such folder"),
        (tmp_path / "empty", ModelUnavailable, "config.json"),
        (tmp_path / "broken", ModelUnavailable, "broken"),
        (
            tmp_path / "unknown",
            ModelNotUnderstood,
            r"transformers does not support its architecture \(no-such-family\)",
        ),
        ("no-one/no-such-model", ModelUnavailable, "not in the local cache"),
    ]
    for where, kind, message in cases:
        with pytest.raises(kind, match=message) as caught:
            unembed.load(where, offline=True)  # type: ignore[arg-type]
        assert _one_line(caught.value), str(caught.value)


def test_a_damaged_weight_file_is_one_line(tmp_path: Path) -> None:
    build("gpt2").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelUnavailable) as caught:
        unembed.load(tmp_path)
    assert _one_line(caught.value)


def test_pickled_weights_that_run_code_are_not_run(tmp_path: Path) -> None:
    import os
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, (str(tmp_path / "ran"),))

    build("gpt2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"transformer.wte.weight": Bomb()}))
    with pytest.raises(UnembedError):
        unembed.load(tmp_path)
    assert not (tmp_path / "ran").exists()


def saved_no_decoder(folder: Path, kind: str) -> PreTrainedModel:
    """A tiny encoder-decoder, encoder or vision-language model, saved."""
    small = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2}
    if kind == "t5":
        config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
        made: PreTrainedModel = T5ForConditionalGeneration(config)
    elif kind == "bert":
        made = BertForMaskedLM(BertConfig(**small, **heads))
    else:
        sizes = {name: size for name, size in small.items() if name != "vocab_size"}
        vision = CLIPVisionConfig(**sizes, **heads, image_size=16, patch_size=8, projection_dim=16)
        text = LlamaConfig(**small, **heads, num_key_value_heads=2)
        made = LlavaForConditionalGeneration(LlavaConfig(text_config=text, vision_config=vision))
    made.save_pretrained(folder)
    return made


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("t5", "t5 is an encoder-decoder; unembed reads decoders"),
        ("bert", "bert is an encoder, whose positions attend to later ones; unembed opens decoders"),
        ("llava", r"llava is a vision-language model, whose language model \(llama\) opens where it is saved alone"),
    ],
)
def test_what_is_no_decoder_is_named(kind: str, what: str, tmp_path: Path) -> None:
    saved_no_decoder(tmp_path / kind, kind)
    with pytest.raises(ModelNotUnderstood, match=what):
        load(tmp_path / kind)


def test_an_encoder_in_memory_is_refused() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    with pytest.raises(ModelNotUnderstood, match="BertLMHeadModel: bert is an encoder"):
        load(BertLMHeadModel(BertConfig(**sizes, intermediate_size=32)).eval())


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path / "tiny")
    with pytest.raises(ModelUnavailable, match="tokenizer no-such-folder/x: no folder or hub model has this name"):
        load(tmp_path / "tiny", tokenizer="no-such-folder/x", offline=True)
    assert load(tmp_path / "tiny", tokenizer=str(tokenizer_folder("wren"))).tokenizer is not None


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"tokenizer.json": "version https://git-lfs.github.com/spec/v1"}, "cannot be read"),
        ({"tokenizer.json": '{"version": "1.0", "trunc'}, "cannot be read"),
        (
            {"tokenizer_config.json": '{"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["a.Mine", null]}}'},
            "code",
        ),
    ],
    ids=["a pointer of Git LFS", "cut", "custom code"],
)
def test_a_tokenizer_that_cannot_be_read_is_named_with_the_reason(
    files: dict[str, str], why: str, tmp_path: Path
) -> None:
    build("llama").save_pretrained(tmp_path / "m")
    for name, content in files.items():
        (tmp_path / "m" / name).write_text(content, encoding="utf-8")
    lm = unembed.load(tmp_path / "m")
    assert lm.run(torch.tensor([[3, 4]])).logits.shape[1] == 2
    with pytest.raises(InvalidInput, match=f"the tokenizer of m: .*{why}") as refused:
        lm.encode("hi")
    assert _one_line(refused.value)
