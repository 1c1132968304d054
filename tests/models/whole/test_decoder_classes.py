"""A sample of the decoder classes of transformers, tiny and perturbed; `make families` goes through all of them."""

from __future__ import annotations

import pytest

import tests.models
from tests.families import build
from tests.models.decoder_classes import ENCODERS, PAGE, decoder_classes, examine_all
from tests.named_tests import missing, named_tests
from unembed.errors import ModelNotUnderstood
from unembed.models.structure.resolver import resolve

_FULL = (
    "Dbrx AXK1 DiffLlama DeepseekV3 NemotronH GptOss MiniMax Gemma4 Gemma4Unified Qwen3_5 FalconH1 Youtu CodeGen Mllama"
)
FULL = tuple(f"{name}ForCausalLM" for name in _FULL.split())
OPEN = {
    "InklingForCausalLM": {"head", "source", "memory", "head off"},
    "DeepseekV4ForCausalLM": {"source", "circuit"},
    "ZayaForCausalLM": {"circuit"},
    "JetMoeForCausalLM": {"head", "source", "head off"},
}
LACKS = {
    "MambaForCausalLM": {"head", "source", "memory", "head off"},
    "Mamba2ForCausalLM": {"source", "memory"},
    "ZambaForCausalLM": {"source", "memory"},
    "xLSTMForCausalLM": {"source"},
}
REFUSED = {
    "CpmAntForCausalLM": "a learned prompt before the tokens",
    "ModernBertDecoderForCausalLM": "a prediction head with an activation",
    "HrmTextForCausalLM": "recurrent in depth",
    "LongcatFlashForCausalLM": "two attentions, two FFNs",
    "Inkling2ForCausalLM": "mixture of the outputs of earlier groups of layers",
    "OpenAIGPTLMHeadModel": "post-norm",
}


@pytest.fixture(scope="module")
def support():
    """What works for every class of the sample, by name."""
    return {s.name: s for s in examine_all([*FULL, *OPEN, *LACKS, *REFUSED], workers=1)}


@pytest.mark.parametrize("name", FULL)
def test_every_question_is_answered(name: str, support) -> None:
    assert support[name].state == "full", support[name].answers


@pytest.mark.parametrize("name", list(OPEN))
def test_other_classes_answer_all_questions_but_these(name: str, support) -> None:
    assert support[name].state == "open", support[name].answers
    assert {question for question, answer in support[name].answers.items() if answer != "yes"} == OPEN[name]


@pytest.mark.parametrize("name", list(LACKS))
def test_what_no_writer_has_is_refused_and_nothing_else(name: str, support) -> None:
    assert support[name].state == "full", support[name].answers
    refused = {question: answer for question, answer in support[name].answers.items() if answer != "yes"}
    assert set(refused) == LACKS[name] and all(answer.startswith("none: ") for answer in refused.values())


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_refusal_names_the_part_of_the_architecture(name: str, support) -> None:
    assert support[name].state == "refused" and REFUSED[name] in support[name].answers["opens"]


@pytest.mark.parametrize(("model_type", "why"), [("blt", "encoder"), ("gemma4_unified_assistant", "draft model")])
def test_classes_that_have_no_tiny_model_are_refused_by_name_too(model_type: str, why: str) -> None:
    from transformers import CONFIG_MAPPING

    model = build("llama")
    model.config = CONFIG_MAPPING[model_type]()  # the refusal comes before anything else is looked at
    with pytest.raises(ModelNotUnderstood, match=why):
        resolve(model)


def test_the_page_has_every_class_and_calls_none_wrong() -> None:
    text = PAGE.read_text()
    assert all(f"| {name} |" in text for name in decoder_classes())
    assert "wrong:" not in text and "failed:" not in text
    assert not ENCODERS & set(decoder_classes().values())


def test_the_tests_that_the_package_names_exist() -> None:
    assert len(named_tests(tests.models)) > 40
    assert missing(tests.models) == []
