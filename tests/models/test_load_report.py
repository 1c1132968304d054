"""What transformers reports while it loads: nothing that changes numbers passes in silence."""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import unembed
from tests.families import build
from unembed.errors import ModelUnavailable, UnembedWarning
from unembed.models.load_report import collected_log


def saved(folder: Path, change: dict[str, str | None]) -> Path:
    """A tiny Llama whose tensors are renamed by regular expressions, or left out where there is no new name."""
    build("llama").save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        new: str | None = name
        for old, by in change.items():
            if re.search(old, name):
                new = None if by is None else re.sub(old, by, name)
        if new is not None:
            renamed[new] = tensor
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"^": "_orig_mod."}, r"begin with '_orig_mod\.'.*inside the wrapper"),
        ({"^": "module."}, r"begin with 'module\.'"),
        ({r"layers\.1\.": None}, r"lack model\.layers\.1\..*initialise at random"),
        ({r"final_norm|model\.norm": None}, r"lack model\.norm\.weight"),
    ],
    ids=["compiled", "distributed", "a layer missing", "the norm missing"],
)
def test_weights_that_would_be_drawn_at_random_are_refused(
    change: dict[str, str | None], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnavailable, match=why) as refused:
        unembed.load(saved(tmp_path / "m", change))
    assert "\n" not in str(refused.value)


def test_weights_without_a_use_are_named_and_the_model_opens(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", {})
    weights = load_file(folder / "model.safetensors")
    save_file(
        {**weights, "model.extra.weight": torch.zeros(2)}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    with pytest.warns(UnembedWarning, match=r"does not use: model\.extra\.weight"):
        lm = unembed.load(folder)
    assert torch.equal(lm.run(torch.tensor([[3, 4]])).logits, unembed.load(build("llama")).run([3, 4]).logits)


def test_what_transformers_logs_is_a_warning_of_one_line_and_the_logger_is_left_as_it_was() -> None:
    logger = logging.getLogger("transformers")
    before = (list(logger.handlers), logger.propagate, logger.level)
    with pytest.warns(UnembedWarning, match="transformers says of mine: two lines$") as caught:
        with collected_log("mine") as messages:
            for _ in range(2):
                logging.getLogger("transformers.anything").warning("two\nlines")
            logging.getLogger("transformers.anything").info("not of interest")
        messages.warn()
    assert len(caught) == 1
    assert (list(logger.handlers), logger.propagate, logger.level) == before


def test_a_whole_model_opens_without_a_word(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unembed.load(saved(tmp_path / "m", {}))
