"""Nothing that a GGUF file says is dropped in silence: what changes numbers is refused by name, the rest is said."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from transformers import Gemma2Config

from tests.gguf_files import CONFIG, write_gguf
from unembed.errors import ModelUnavailable, UnembedWarning
from unembed.models.gguf import read_gguf
from unembed.models.gguf_fields import check_fields

LLAMA = {"general.architecture": "llama", "llama.block_count": 2, "llama.attention.head_count": 4}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope.scaling.factor", 4.0),
        ("rope.scaling.type", "yarn"),
        ("attention.key_length", 2 * CONFIG.head_dim),
        ("attention.sliding_window", 8),
        ("attention.scale", 0.5),
        ("final_logit_softcapping", 30.0),
    ],
)
def test_a_field_that_changes_numbers_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(ModelUnavailable, match=f"transformers ignores {field}"):
        check_fields("a.gguf", {**LLAMA, f"llama.{field}": value}, CONFIG)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope.scaling.factor", 1.0),
        ("rope.scaling.type", "none"),
        ("attention.key_length", CONFIG.head_dim),
        ("attention.value_length", CONFIG.head_dim),
        ("vocab_size", 263),
    ],
)
def test_a_field_that_says_what_the_configuration_says_is_not_mentioned(field: str, value: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_fields("a.gguf", {**LLAMA, f"llama.{field}": value}, CONFIG)


def test_defaults_of_the_family_count_as_read() -> None:
    """Gemma 2's soft caps are not read from the file: they are right where they are those of the class."""
    fields = {"general.architecture": "gemma2", "gemma2.attn_logit_softcapping": 50.0}
    check_fields("a.gguf", fields, Gemma2Config())
    with pytest.raises(ModelUnavailable, match=r"attn_logit_softcapping = 20\.0"):
        check_fields("a.gguf", {**fields, "gemma2.attn_logit_softcapping": 20.0}, Gemma2Config())


def test_another_field_is_said() -> None:
    with pytest.warns(UnembedWarning, match=r"does not read these fields of a\.gguf: no_such_field"):
        check_fields("a.gguf", {**LLAMA, "llama.no_such_field": 7}, CONFIG)


def test_a_file_with_a_scaled_rotary_embedding_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", more={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0})
    with pytest.raises(ModelUnavailable, match=r"rope\.scaling\.type = linear, rope\.scaling\.factor = 2\.0"):
        read_gguf(tmp_path / "a.gguf")


def test_rotary_factors_are_refused_and_other_tensors_without_a_place_are_said(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", tensors={"rope_freqs.weight": np.ones(32, np.float32)})
    with pytest.raises(ModelUnavailable, match=r"ignores its rotary factors \(rope_freqs\.weight\)"):
        read_gguf(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf", tensors={"extra.weight": np.ones(32, np.float32)})
    with pytest.warns(UnembedWarning, match=r"b\.gguf holds 32 numbers that the model does not use"):
        read_gguf(tmp_path / "b.gguf")
