"""Windows of a long prompt hold all of its tokens, once, and fit the context."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.cli.conftest import PROMPT, save_model
from unembed.errors import InvalidInput
from unembed.language_model import LanguageModel, load
from unembed.stream.windows import last_tokens, prompt_windows


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load(save_model(tmp_path_factory.mktemp("windows") / "tiny"))


def test_windows_are_the_prompt_in_parts(lm: LanguageModel) -> None:
    long = " ".join([PROMPT] * 30)
    ids, context = lm.encode(long)[0], lm.n_ctx
    assert context is not None and len(ids) > context
    windows = lm.windows(long)
    assert torch.equal(torch.cat(windows), ids)
    assert [len(window) for window in windows[:-1]] == [context] * (len(windows) - 1)
    assert len(lm.trace(windows)) == len(windows)
    assert [len(window) for window in prompt_windows(lm, PROMPT, 3)] == [3, 3, len(lm.encode(PROMPT)[0]) % 3 or 3]
    assert torch.equal(last_tokens(lm, long, 5), ids[-5:])


def test_every_window_begins_with_the_tokenizers_first_token(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = lm.encode(PROMPT)[0]
    monkeypatch.setattr(lm, "encode", lambda text: torch.cat([torch.tensor([1]), ids])[None])
    monkeypatch.setattr(type(lm), "tokenizer", SimpleNamespace(bos_token_id=1))
    windows = lm.windows(PROMPT, 3)
    assert all(int(window[0]) == 1 and len(window) <= 3 for window in windows)
    assert torch.equal(torch.cat([window[1:] for window in windows]), ids)
    assert last_tokens(lm, PROMPT, 3).tolist() == [1, *ids[-2:].tolist()]
    with pytest.raises(InvalidInput, match="special token at its start leaves no room for others"):
        lm.windows(PROMPT, 1)


def test_a_length_is_needed_where_the_model_has_no_longest_context(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm, "n_ctx", None)
    with pytest.raises(InvalidInput, match="Give the length"):
        lm.windows(PROMPT)
