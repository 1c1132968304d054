"""The models that come with the package."""

from __future__ import annotations

from pathlib import Path

DEFAULT_MODEL = "wren"

SHIPPED: dict[str, str] = {
    "wren": "a GPT-2-shaped language model with ReLU memories",
    "attn-0l": "no layers: token embedding times unembedding, a table of bigrams",
    "attn-1l": "attention only, one layer, no norms",
    "attn-2l": "attention only, two layers, no norms: has induction heads",
}
"""The description of each model, by name. The model cards next to the weights describe how each was trained."""

_FOLDER = Path(__file__).parent / "shipped"


def shipped_folder(name: str) -> Path:
    """Return the folder with the files of a shipped model."""
    return _FOLDER / name


def shipped_lens(fingerprint: str) -> Path | None:
    """Return the file of the Jacobian lens that ships with a model; None if there is none.

    Args:
        fingerprint: the `sampled_fingerprint` of the model's weights, in the dtype in which they are saved.
    """
    return next(_FOLDER.glob(f"*/lens-{fingerprint}.safetensors"), None)


def shipped_lenses(name: str) -> list[Path]:
    """Return the files of the Jacobian lenses that ship with a model."""
    return sorted(shipped_folder(name).glob("lens-*.safetensors")) if name in SHIPPED else []


def tokenizer_folder(name: str) -> Path:
    """Return the folder of a shipped model's tokenizer: the model's own, or the one that several models share."""
    own = _FOLDER / name
    return own if (own / "tokenizer.json").exists() else _FOLDER / "tokenizer"
