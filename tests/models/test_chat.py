"""Conversations: the ids are those of the template applied once, and each token's role is the message it is from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import unembed
from unembed.errors import InvalidInput
from unembed.language_model import LanguageModel
from unembed.models.chat import chat_of, read_messages

WORDS = ["<s>", "</s>", "<unk>", "<|im|>", "user", "assistant", "system", ":", "Hi", "there", "Yes", "\n", "[INST]"]
WITH_BEGIN = (
    "{{ bos_token }}{% for m in messages %} {{ m['role'] }} : {{ m['content'] | trim }} {% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im|> {{ m['role'] }} {{ m['content'] }} </s>{% endfor %}"
    "{% if add_generation_prompt %}<|im|> assistant{% endif %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "[INST] {{ m['content'] }}{% endfor %}"
)
SHOUTING = "{% for m in messages %}<|im|> {{ m['content'] | upper }}{% endfor %}"
TALK = [
    {"role": "user", "content": "Hi there"},
    {"role": "assistant", "content": "Yes"},
    {"role": "user", "content": "user"},
]


def tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer of words that begins every text with <s>, as Llama's does."""
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])  # pyright: ignore[reportAttributeAccessIssue]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens={"im": "<|im|>"},
    )
    fast.chat_template = template
    return fast


def model(template: str | None, **how: bool) -> LanguageModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    return unembed.load(LlamaForCausalLM(config).eval(), tokenizer=tokenizer(template), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("template", [WITH_BEGIN, CHATML])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_ids_are_those_of_the_template_applied_once(template: str, n: int) -> None:
    lm, plain = model(template), tokenizer(template)
    goes_on = TALK[n - 1]["role"] == "assistant"
    meant = plain.apply_chat_template(
        TALK[:n], add_generation_prompt=not goes_on, continue_final_message=goes_on, return_dict=False
    )
    ids = lm.chat(TALK[:n])
    assert ids.tolist() == [meant]
    assert meant.count(0) == (template == WITH_BEGIN)
    made = lm.vocabulary.chat(TALK[:n])
    assert torch.equal(lm.encode(made.text), ids)  # the text can be given instead, and gets no begin token
    assert torch.equal(lm.run(made.text).logits, lm.run(ids).logits)
    assert torch.equal(lm.trace(ids).logits(-1), lm.run(ids).logits[0, -1])


def test_a_token_has_the_role_of_the_message_that_it_is_from() -> None:
    made = chat_of(tokenizer(WITH_BEGIN), TALK, system="Hi")
    words = [WORDS[i] for i in made.ids]
    assert list(zip(words, made.roles, strict=True)) == [
        ("<s>", None),
        *(("system", None), (":", None), ("Hi", "system")),
        *(("user", None), (":", None), ("Hi", "user"), ("there", "user")),
        *(("assistant", None), (":", None), ("Yes", "assistant")),
        *(("user", None), (":", None), ("user", "user")),  # the message, not the word of the template
        *(("assistant", None), (":", None)),
    ]


def test_roles_are_known_of_conversations_of_this_handle_and_of_no_other_ids() -> None:
    lm = model(CHATML)
    ids = lm.chat("Hi")[0].tolist()
    assert lm.vocabulary.roles(ids) == (None, None, "user", None, None, None)
    assert lm.vocabulary.roles(ids[:-1]) is None


def test_where_the_template_changes_what_is_said_no_role_is_claimed() -> None:
    made = chat_of(tokenizer(SHOUTING), "Hi")
    assert made.text == "<|im|> HI" and made.roles == ()


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "there are none"),
        ([{"role": "user"}], "a role and a content"),
        ([{"role": "system", "content": "Hi"}], "refuses it: no system here"),
    ],
)
def test_what_is_no_conversation_is_refused_in_one_line(messages: list, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        chat_of(tokenizer(NO_SYSTEM), messages)
    assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInput, match="no chat template"):
        model(None).chat("Hi")


def test_without_special_tokens_a_text_is_encoded_as_it_stands() -> None:
    lm = model(None, special_tokens=False)
    assert lm.encode("Hi there").tolist() == [[8, 9]]
    assert [ids.tolist() for ids in lm.encode_all(["Hi", "Yes Yes"])] == [[8], [10, 10]]
    assert lm.provenance().notes == {"special_tokens": False}
    assert model(None).encode("Hi there").tolist() == [[0, 8, 9]]


def test_what_a_tokenizer_returns_is_one_prompt() -> None:
    lm = model(CHATML)
    encoded = tokenizer(CHATML).apply_chat_template(TALK, add_generation_prompt=True, return_tensors="pt")
    assert torch.equal(lm.run(encoded).logits, lm.run(lm.chat(TALK)).logits)  # type: ignore[arg-type]
    assert len(lm.trace(encoded)) == lm.chat(TALK).shape[1]  # type: ignore[arg-type]


def test_messages_are_read_from_a_list_or_from_lines(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps(TALK), encoding="utf-8-sig")
    assert read_messages(path) == TALK
    path.write_text("\r\n".join(map(json.dumps, TALK)), encoding="utf-8")
    assert read_messages(path) == TALK
    for content, why in {"[{": "not JSON", "{}": "a role and a content", "": "there are none"}.items():
        path.write_text(content)
        with pytest.raises(InvalidInput, match=why):
            read_messages(path)
    with pytest.raises(InvalidInput, match="No such file"):
        read_messages(tmp_path / "none.json")
