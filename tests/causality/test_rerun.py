"""Rows of prompts of unequal length share a padded batch, and each has the numbers that its prompt has alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.conftest import tiny
from tests.families import build
from torch import Tensor
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.llama import modeling_llama

import unembed
from unembed.causality import PatchingPairs
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import Rerun, _padding_is_exact, measured_together
from unembed.errors import InvalidInput
from unembed.language_model import LanguageModel
from unembed.names import PATCH_POINTS

CLEAN = [torch.tensor(t) for t in ([5, 17, 23, 42, 11, 8], [9, 17, 40], [12, 6, 33, 71, 20, 64, 15, 3, 28])]
CORRUPTED = [torch.tensor(t) for t in ([5, 60, 23, 42, 31, 8], [9, 61, 40], [12, 6, 34, 71, 20, 65, 15, 3, 28])]
EDITS = [unembed.scale_head(0, 1, 0.5), unembed.set_coefficient(0, 3, 0.7, positions=-1)]
POINTS = [p for p in PATCH_POINTS if p != "coefficients"]


def metric(logits: Tensor) -> Tensor:
    return logits[:, 7].double() - logits[:, 9].double()


def padded(prompts: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Ids and mask of a batch that is padded on one side."""
    longest = max(map(len, prompts))
    ids, mask = torch.full((len(prompts), longest), 4), torch.zeros(len(prompts), longest, dtype=torch.long)
    for row, real, prompt in zip(ids, mask, prompts, strict=True):
        where = slice(longest - len(prompt), None) if side == "left" else slice(len(prompt))
        row[where], real[where] = prompt, 1
    return ids, mask


class _Doubled:
    """`torch` with float64 for float32."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name == "float32" else getattr(torch, name)


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LanguageModel]:
    """Opens a model whose norms and softmax compute in float64, too; Llama's and Gemma 2's own compute in float32."""
    monkeypatch.setattr(modeling_llama, "torch", _Doubled())
    monkeypatch.setattr(modeling_gemma2, "torch", _Doubled())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    return lambda name: unembed.load(build(name, torch.float64))


def in_one_batch(lm: LanguageModel, side: str, point: Any, **options: Any) -> PatchingPairs:
    (a, mask_a), (b, mask_b) = padded(CLEAN, side), padded(CORRUPTED, side)
    return lm.patch(a, b, point, metric, attention_mask=(mask_a, mask_b), batch=1000, **options)


CASES = [("gpt2-relu", "left"), ("gpt2-relu", "right"), ("llama", "right"), ("gemma2", "left"), ("gptj", "right")]


@pytest.mark.parametrize(("name", "side"), CASES)
def test_pairs_in_a_padded_batch_have_the_numbers_of_each_alone(
    name: str, side: str, in_float64: Callable[[str], LanguageModel]
) -> None:
    lm = in_float64(name)
    for point in POINTS:
        if name == "gptj" and point == "resid_mid":
            continue  # a parallel block has no middle of the stream
        for edits in ((), EDITS):
            found = in_one_batch(lm, side, point, edits=edits)
            for one, a, b in zip(found.each, CLEAN, CORRUPTED, strict=True):
                alone = lm.patch(a, b, point, metric, edits=edits)
                torch.testing.assert_close(one.values, alone.values, rtol=1e-9, atol=1e-9)
                assert (one.clean, one.corrupted) == (alone.clean, alone.corrupted)


@pytest.mark.parametrize(("name", "side"), CASES)
def test_ablations_in_a_padded_batch_have_the_numbers_of_each_alone(
    name: str, side: str, in_float64: Callable[[str], LanguageModel]
) -> None:
    lm = in_float64(name)
    ids, mask = padded(CLEAN, side)
    chosen: dict[str, Any] = dict(heads="all", memories=[(0, 3), [(1, 4), (1, 5)]], layers="all", metric=metric)
    for options in ({}, {"positions": [-1]}, {"edits": EDITS}):
        found = lm.ablate(ids, attention_mask=mask, batch=1000, **chosen, **options)
        for one, prompt in zip(found.each, CLEAN, strict=True):
            alone = lm.ablate(prompt, **chosen, **options)
            torch.testing.assert_close(one.values, alone.values, rtol=1e-9, atol=1e-9)
            assert one.labels == alone.labels and one.baseline == alone.baseline


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("name", ["gpt2-relu", "llama", "gemma2"])
def test_padding_moves_half_precision_by_rounding_alone(name: str, dtype: torch.dtype, tolerance: float) -> None:
    lm = tiny(name, dtype)
    found = in_one_batch(lm, "right", "z")
    size = float(lm.run(CLEAN[0]).logits.abs().max())
    for one, a, b in zip(found.each, CLEAN, CORRUPTED, strict=True):
        assert float((one.values - lm.patch(a, b, "z", metric).values).abs().max()) <= tolerance * size


def test_memories_of_experts_are_ablated_in_padded_batches() -> None:
    lm = tiny("mixtral")
    memories = [(0, 3), [(1, 4), (1, 5)]]
    found = lm.ablate(CLEAN, memories=memories, metric=metric)
    for one, prompt in zip(found.each, CLEAN, strict=True):
        alone = lm.ablate(prompt, memories=memories, metric=metric).values
        torch.testing.assert_close(one.values, alone, rtol=1e-5, atol=1e-5)


def test_rows_of_unequal_prompts_share_one_pass() -> None:
    lm, shapes = tiny("llama"), []
    handle = lm.hf.register_forward_pre_hook(
        lambda _m, args, kwargs: shapes.append(tuple((args[0] if args else kwargs["input_ids"]).shape)),
        with_kwargs=True,
    )
    in_one_batch(lm, "left", "z")
    handle.remove()
    assert (3 * lm.n_layers * lm.n_heads, 9) in shapes


def test_a_model_whose_padded_logits_differ_runs_each_prompt_alone() -> None:
    """Rotary frequencies of LongRoPE depend on the length of the batch."""
    model = build("phi3")
    config = model.config
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "original_max_position_embeddings": 4,
        "short_factor": [1.0] * 6,
        "long_factor": [3.0] * 6,
    }
    config.original_max_position_embeddings = 4
    torch.manual_seed(0)
    lm = unembed.load(type(model)(config).double().eval())
    runs = [Rerun(lm, prompt) for prompt in CLEAN]
    assert not _padding_is_exact(runs)
    rows = [[Replacement("z", 1, None, 2, torch.tensor(0.0))]]
    together = measured_together([(run, rows, metric) for run in runs])
    for run, values in zip(runs, together, strict=True):
        torch.testing.assert_close(values, run.measured(rows, metric), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda lm: lm.ablate("one text", attention_mask=torch.ones(1, 2)), "not a list of prompts"),
        (lambda lm: lm.ablate([]), "not a list of prompts"),
        (lambda lm: lm.ablate(CLEAN, metric=[metric]), "there are 3 prompts"),
        (lambda lm: lm.ablate(torch.ones(2, 3, dtype=torch.long), attention_mask=torch.ones(2, 2)), "shape"),
        (lambda lm: lm.ablate(padded(CLEAN, "left")[0]), "as a list of prompts"),
    ],
)
def test_what_are_not_several_prompts_is_refused(call: Callable[[LanguageModel], object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        call(tiny("gpt2-relu"))
