"""Fit a Jacobian lens: average the derivative of the last residual stream over contexts of a text.

A fit is a sweep over windows of the text. Like other sweeps, it can be saved, resumed, merged, and run on Ray.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from unembed.corpus import CorpusSource
from unembed.corpus.whole_windows import WholeWindows
from unembed.errors import InvalidInput, Unsupported
from unembed.jacobian.check import HELD_OUT, SKIPPED, check_lens
from unembed.jacobian.lens import JacobianLens
from unembed.jacobian.sums import JacobianSums, LensMeans
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import converted_fingerprints, sampled_fingerprint
from unembed.results import make_folder
from unembed.sweeps import CheckpointInterval, Ray, sweep
from unembed.sweeps import Progress as SweepProgress
from unembed.validation import positive_int

Progress = Callable[[str, int, int], None]


def _silent(what: str, done: int, total: int) -> None:
    pass


def fit_lens(
    lm: Decoder,
    corpus: CorpusSource = None,
    contexts: int = 64,
    length: int = 64,
    *,
    first: int = 0,
    engine: str | Ray = "local",
    checkpoint: str | Path | None = None,
    every: CheckpointInterval | None = None,
    dtype: torch.dtype = torch.float32,
    progress: Progress = _silent,
) -> JacobianLens:
    """Fit a Jacobian lens on text.

    Args:
        corpus: anything `unembed.open_corpus` takes; the shipped text when None.
        contexts: number of text windows to fit on.
        length: number of tokens in each window.
        first: number of windows to leave out at the start of the text, so that several fits can use different windows;
            `lens.merged` combines their lenses.
        engine: "local"; "ray", or a `Ray` with settings. Each batch is one window. See `unembed.sweep`.
        checkpoint: the file to which the sums are saved, and from which an interrupted fit resumes.
        every: how often the sums are saved; every five minutes when None.
        dtype: the dtype of the lens's Jacobians. float16 halves the size of its file. If a value is too large for
            float16, they stay float32.
        progress: called with the name of a step, the amount done, and the total.

    Returns:
        The lens, bound to this model.

    Raises:
        InvalidInput: the text has fewer than two windows of this length.
        Unsupported: the model has no layers or several residual streams, or its forward pass cannot be differentiated.
        CheckpointFault: the checkpoint is damaged, belongs to another fit, or cannot be written.

    Memory: as for `JacobianSums`; with a checkpoint or Ray, a second copy of its sums.
    """
    contexts, length = positive_int("contexts", contexts, 2), positive_int("length", length, SKIPPED + 2)
    if not lm.n_layers or lm.structure.streams is not None:
        what = "layers" if not lm.n_layers else "one stream"
        raise Unsupported(f"a Jacobian lens of {lm.name}", why=f"it does not have {what}")
    first = positive_int("first", first, 0)
    text = WholeWindows.of(lm, corpus, length, first, contexts + HELD_OUT)
    fitted, held_out = text.part(0, contexts), text.part(contexts)
    if len(fitted.segments) < 2:
        raise InvalidInput(
            f"{len(fitted.segments)} windows of {length} tokens",
            why="a lens needs at least two",
            instead="Give a longer text",
        )

    def report(done: SweepProgress) -> None:
        progress("fitting the lens", done.batches, len(fitted.segments))

    (means,) = sweep(
        lm, fitted, [JacobianSums()], engine=engine, checkpoint=checkpoint, every=every, tokens_per_batch=length,
        progress=report,
    )  # fmt: skip
    lens = _lens_of_means(lm, fitted.text, means, length, first, dtype)
    windows = [segment.tokens.to(lm.device) for segment in held_out.segments]
    lens.check = check_lens(lens, windows, SKIPPED) if windows else None
    return lens


def fit_to_file(lm: Decoder, path: Path, corpus: CorpusSource = None, *args: int, **options: Any) -> JacobianLens:
    """Fit a lens with Jacobians in float16 and save it; `args` and `options` are further arguments of `fit_lens`.

    The sums are saved to a second file in the same folder, from which the same call resumes an interrupted fit.
    """
    saved = path.with_name(f"{path.name}.progress")
    make_folder(path.parent)
    lens = fit_lens(lm, corpus, *args, checkpoint=saved, dtype=torch.float16, **options)
    lens.save(path)
    saved.unlink(missing_ok=True)
    return lens


def _lens_of_means(
    lm: Decoder, text: str, means: LensMeans, length: int, first: int, dtype: torch.dtype
) -> JacobianLens:
    notes = {"estimator": "same position", "contexts": means.contexts, "length": length, "skipped": SKIPPED}
    lens = JacobianLens(
        **vars(means),
        length=length,
        fingerprint=sampled_fingerprint(lm),
        converted=converted_fingerprints(lm),
        provenance=lm.provenance(corpus=text, basis="jacobian", notes=notes),
        spans=((first, first + means.contexts),),
    )
    return lens.in_dtype(dtype).bound_to(lm)
