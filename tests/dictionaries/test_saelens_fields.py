"""Each field of SAELens' cfg.json that changes numbers is honoured, or refused by its name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unembed.dictionaries.saelens_fields import checked_fields
from unembed.errors import InvalidInput, UnembedError, Unsupported

WEIGHTS = {"W_enc": torch.zeros(8, 40)}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architecture", "temporal"),
        ("architecture", 3),
        ("activation_fn", "tanh-relu"),
        ("activation_fn_str", "identity"),
        ("activation_fn_kwargs", {"alpha": 2}),
        ("normalize_activations", "layer_norm"),
        ("normalize_activations", "expected_average_only_in"),
        ("rescale_acts_by_decoder_norm", True),
        ("reshape_activations", "hook_z"),
        ("hook_head_index", 3),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_field_that_is_not_supported_is_refused_by_its_name(field: str, value: Any, inside: bool) -> None:
    if inside and field.startswith(("architecture", "activation")):
        pytest.skip("these are never in the metadata")
    with pytest.raises(Unsupported, match=field):
        checked_fields({"metadata": {field: value}} if inside else {field: value}, WEIGHTS, "it")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hook_name", 3),
        ("hook_name_out", ["a"]),
        ("hook_layer", -1),
        ("hook_layer", "two"),
        ("metadata", [1]),
        ("model_from_pretrained_kwargs", "fold"),
        ("d_in", 9),
        ("d_sae", 41),
        ("activation_fn_kwargs", [1]),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=field):
        checked_fields({field: value}, WEIGHTS, "it")


@pytest.mark.parametrize("k", [None, 0, "four", 2.5])
def test_topk_needs_a_number(k: Any) -> None:
    with pytest.raises(InvalidInput, match="its k is"):
        checked_fields({"architecture": "topk", "k": k}, WEIGHTS, "it")


def test_tensors_that_change_the_features_are_refused() -> None:
    for name, value in {"scaling_factor": torch.full((40,), 2.0), "W_skip": torch.zeros(8, 8)}.items():
        with pytest.raises(UnembedError, match=r"scaling_factor|W_skip"):
            checked_fields({}, {**WEIGHTS, name: value}, "it")
    checked_fields({}, {**WEIGHTS, "scaling_factor": torch.ones(40)}, "it")


def test_the_forms_of_several_versions_are_read() -> None:
    old = checked_fields({"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 4}}, WEIGHTS, "it")
    assert (old.activation, old.k, old.subtracts_bias, old.centred) == ("topk", 4, True, False)
    new = checked_fields(
        {
            "architecture": "jumprelu_transcoder",
            "normalize_activations": "none",
            "reshape_activations": "none",
            "metadata": {
                "hook_name": "blocks.2.mlp.hook_in",
                "hook_name_out": "blocks.2.hook_mlp_out",
                "hook_head_index": None,
                "model_from_pretrained_kwargs": {"center_writing_weights": True},
            },
        },
        WEIGHTS,
        "it",
    )
    assert (new.activation, new.subtracts_bias, new.centred) == ("jumprelu", False, True)
    with pytest.raises(Unsupported, match="fold_ln"):
        checked_fields(
            {"hook_name": "blocks.0.ln2.hook_normalized", "model_from_pretrained_kwargs": {"fold_ln": False}},
            WEIGHTS,
            "it",
        )
