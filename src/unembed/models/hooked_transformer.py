"""Open the transformers model from which a `HookedTransformer` of TransformerLens 3 was made.

A `HookedTransformer` copies the weights into modules of its own and folds norms into them, so the original modules are
lost. But it stores the model's name on the hub. The model of that name is loaded, and accepted if its predictions are
the same.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from unembed.errors import InvalidInput
from unembed.results import NOT_A_NUMBER, format_number

_TOKENS = 16
_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-2}
_HALF_PRECISION = 0.5
"""Largest accepted difference of log-probabilities in half precision.

The two models round differently, because a HookedTransformer has its norms folded into its weights."""


def is_hooked(model: object) -> bool:
    """Tell whether a model is a `HookedTransformer`, without importing TransformerLens."""
    return any(kind.__name__ == "HookedTransformer" for kind in type(model).__mro__)


def name_of(model: Any) -> str:
    """Return the model's name on the hub.

    Raises:
        InvalidInput: the model was not made from a pretrained one.
    """
    name = getattr(model.cfg, "tokenizer_name", None)
    if not name or not getattr(model.cfg, "original_architecture", None):
        raise InvalidInput(
            "a HookedTransformer cannot be opened",
            why="it was not made by from_pretrained, so there is no transformers model that could be opened instead",
            instead="Pass the transformers model itself",
        )
    return name


@torch.no_grad()
def check_same(model: Any, hf: PreTrainedModel, name: str) -> None:
    """Compare the predictions of both models on tokens spread over the vocabulary.

    Raises:
        InvalidInput: the predictions differ, for example because the HookedTransformer was trained further or has fewer
            layers.
    """
    known = min(int(model.cfg.d_vocab), hf.config.get_text_config().vocab_size)
    tokens = torch.linspace(0, known - 1, _TOKENS).long()[None]
    theirs = model(tokens.to(next(model.parameters()).device))[..., :known].float().cpu().log_softmax(-1)
    ours = hf(tokens.to(hf.device)).logits[..., :known].float().cpu().log_softmax(-1)
    largest = float((ours - theirs).abs().max())
    if not largest <= _TOLERANCE.get(hf.dtype, _HALF_PRECISION):
        raise InvalidInput(
            f"the HookedTransformer of {name} cannot be opened",
            why=f"its log-probabilities differ from those of {name} by up to "
            f"{format_number(largest, undefined=NOT_A_NUMBER)}",
            instead="Pass the transformers model whose weights it has",
        )
