"""Read and write Jacobian lenses in the format of published lenses.

A file is a dictionary that torch saved: `J` (a matrix for each layer, or all stacked), `n_prompts`, `d_model`, and
perhaps `metadata`; or the running sums of a fit, `jacobian_sum` and `n_done`. J of layer l multiplies the residual
stream after layer l, a column vector, and gives the stream after the last layer. The map is linear: the file contains
no mean streams.

Source: Gurnee et al. 2026, and the files that its authors and TransformerLens 4.3 (`tools/analysis/jacobian_lens`)
write.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.corpus.whole_windows import WholeWindows
from unembed.errors import InvalidInput, reading_fault
from unembed.jacobian.check import SKIPPED
from unembed.jacobian.lens import JacobianLens
from unembed.lens import final_scale
from unembed.models.decoder import Decoder
from unembed.results import Provenance
from unembed.results.files import whole_file
from unembed.stream.run import run

ESTIMATOR = "published"
_LENGTH, _WINDOWS = 64, 8
SUFFIX = ".pt"
"""Files whose names end in this are written in the published format."""


def is_torch_file(path: Path) -> bool:
    """Tell whether a file is a zip archive, as `torch.save` writes."""
    return path.is_file() and zipfile.is_zipfile(path)


def open_published(path: Path) -> JacobianLens:
    """Read a published lens; nothing in the file is executed.

    Returns:
        A lens whose mean streams are 0. It has the Jacobians with respect to resid_post of the file's layers; those of
        other layers are NaN.

    Raises:
        InvalidInput: the file is damaged, or contains no lens.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"cannot read {path}", why=reading_fault(error), instead="Give a file of a lens") from error
    by_layer, prompts, about = _contents(path, found)
    width = len(next(iter(by_layer.values())))
    if any(matrix.shape != (width, width) for matrix in by_layer.values()):
        raise InvalidInput(f"{path}", why="its matrices are not square, or differ in size")
    layers = int(about.get("target_layer", max(by_layer) + 1)) + 1
    if not 0 <= min(by_layer) <= max(by_layer) < layers - 1:
        raise InvalidInput(
            f"{path}",
            why=f"it has matrices for layers {sorted(by_layer)}, but they must be below its target layer, {layers - 1}",
        )
    before = torch.full((layers, width, width), torch.nan)
    for layer, matrix in by_layer.items():
        before[layer + 1] = matrix.T  # resid_post of a layer is resid_pre of the next; vectors are rows here
    notes = {"estimator": about.get("estimator", ESTIMATOR), "reading": "linear", "prompts": prompts, **about}
    model = str(about.get("model_name", path.stem))
    revision, corpus = about.get("model_revision"), about.get("corpus")
    provenance = Provenance(model, revision, str(about.get("fit_dtype", "none")), corpus, "jacobian", notes=notes)
    nothing, zeros = torch.full((layers,), torch.nan), torch.zeros(layers, width)
    return JacobianLens(
        before, None, zeros, None, zeros[0].clone(), torch.nan, nothing, prompts, 0, str(about.get("fingerprint", "")),
        provenance,
    )  # fmt: skip


def _contents(path: Path, found: object) -> tuple[dict[int, Float[Tensor, "row column"]], int, dict[str, Any]]:
    """Return the Jacobians by layer, the number of prompts of the fit, and the file's metadata."""
    if not isinstance(found, Mapping) or not ({"J", "jacobian_sum"} & set(found)):
        raise InvalidInput(
            f"{path}",
            why="it has neither the field J nor the field jacobian_sum",
            instead="Give a file that a Jacobian lens was saved to",
        )
    is_sum = "J" not in found
    matrices: Any = found["jacobian_sum" if is_sum else "J"]
    if isinstance(matrices, Tensor):
        layers = found.get("source_layers", range(len(matrices)))
        matrices = dict(zip(layers, matrices, strict=True))
    prompts = int(found.get("n_done" if is_sum else "n_prompts", 0))
    if not matrices or (is_sum and prompts < 1):
        raise InvalidInput(
            f"{path}",
            why="the fit that wrote it was stopped before its first prompt was finished"
            if matrices
            else "it contains no matrix of any layer",
        )
    about = {key: value for key, value in dict(found.get("metadata") or {}).items() if _is_plain(value)}
    about |= {key: found[key] for key in ("model_name", "model_revision", "corpus", "target_layer") if key in found}
    scale = prompts if is_sum else 1
    return {int(layer): matrix.float() / scale for layer, matrix in matrices.items()}, prompts, about


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def save_published(lens: JacobianLens, path: Path) -> None:
    """Write a lens in the published format, in float16 unless a value is too large for float16.

    Only the Jacobians with respect to resid_post are written. The format has no fields for those of other capture
    points, and for mean streams.

    Raises:
        OSError: the file cannot be written.
    """
    whole = lens.in_dtype(torch.float16)
    layers = [n for n in range(len(whole.before) - 1) if not bool(whole.before[n + 1, 0, 0].isnan())]
    about = {
        "model_name": lens.provenance.model,
        "model_revision": lens.provenance.revision,
        "corpus": lens.provenance.corpus,
        "estimator": lens.estimator,
        "target_layer": len(whole.before) - 1,
        "fingerprint": lens.fingerprint,
        "unembed_version": lens.provenance.version,
    }
    content = {
        "J": {n: whole.before[n + 1].T.contiguous().cpu() for n in layers},
        "n_prompts": lens.contexts,
        "source_layers": layers,
        "d_model": whole.before.shape[1],
        "metadata": about,
    }
    with whole_file(path) as temporary:
        torch.save(content, temporary)


@torch.no_grad()
def mean_scale(lm: Decoder) -> float:
    """Measure the final norm's mean scale on a few windows of the shipped text, for a lens whose file lacks it."""
    windows = WholeWindows.of(lm, None, _LENGTH, 0, _WINDOWS).segments
    last = lm.n_layers - 1
    found = [run(lm, one.tokens.to(lm.device), "resid_post", logits=False).at("resid_post", last) for one in windows]
    return float(torch.cat([final_scale(lm, rows[0, SKIPPED:]).float() for rows in found]).mean())


def require_same_sizes(lens: JacobianLens, lm: Decoder) -> None:
    """Check that a lens and a model have the same sizes, for a lens file that does not identify the model's weights.

    Raises:
        InvalidInput: the sizes differ.
    """
    sizes, own = tuple(lens.before.shape[:2]), (lm.n_layers, lm.d_model)
    if sizes != own:
        raise InvalidInput(
            f"the lens of {lens.provenance.model}",
            why=f"it is for a model of {sizes[0]} layers and width {sizes[1]}, but {lm.name} has {own[0]} and {own[1]}",
            instead="Give the lens of this model",
        )
