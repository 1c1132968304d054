"""`unembed fit-lens`: fit a Jacobian lens, write it to a file, and show by layer how well it predicts the output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from unembed.analyses import Analysis, Cost, Needs
from unembed.jacobian.check import checked_on
from unembed.jacobian.fit import fit_to_file
from unembed.jacobian.lens import JacobianLens, open_lens
from unembed.jacobian.lens_cache import lens_path
from unembed.models.decoder import Decoder
from unembed.models.fingerprint import sampled_fingerprint
from unembed.options import Corpus, Option, Out, Progress
from unembed.results import Table, check_writable, make_folder


def fit_lens_answer(
    lm: Decoder,
    *,
    out: Out = None,
    corpus: Corpus = None,
    contexts: Annotated[int, Option("Number of text windows that the lens is fitted on.", low=2)] = 64,
    context_length: Annotated[
        int, Option("Number of tokens in each text window that the lens is fitted on.", low=6)
    ] = 64,
    first_window: Annotated[
        int,
        Option(
            "Number of windows to skip at the start of the text, to fit one of several lenses that are merged later."
        ),
    ] = 0,
    merge: Annotated[
        list[Path] | None,
        Option(
            "Use the lens in this file instead of fitting one. Repeatable: lenses fitted on different windows "
            "are merged. Published lenses (.pt) can be read, too.",
            metavar="FILE",
        ),
    ] = None,
    engine: Annotated[Literal["local", "ray"], Option("Run in this process or on a Ray cluster.")] = "local",
    progress: Progress = None,
) -> Table:
    """Fit a Jacobian lens, and show by layer how well it predicts the model's prediction on held-out text.

    The lens multiplies a vector of the residual stream by the mean derivative of the layers that follow, measured on
    text. The table compares it with the logit lens, which skips these layers. --out writes the lens to a file, which
    --lens opens; a file whose name ends in .pt is written in the format of published lenses. Without --out the lens is
    stored in the cache folder and is the model's default from then on; --lens none selects the logit lens. If a fit is
    interrupted, the same command resumes it.

    Caution: The check is on text of the same corpus; on text of another kind the lens may be less accurate.
    """
    if out is not None:
        check_writable(out)
    path = lens_path(sampled_fingerprint(lm)) if out is None else out
    if merge:
        return _taken(lm, merge, path, corpus).to_table()
    report = progress or (lambda _what, _done, _total: None)
    how = {"first": first_window, "engine": engine, "progress": report}
    return fit_to_file(lm, path, corpus, contexts, context_length, **how).to_table()


def _taken(lm: Decoder, files: list[Path], path: Path, corpus: Corpus) -> JacobianLens:
    """Open the lens in a file, or merge those of several files; check the result on other text, and save it."""
    first, *others = (open_lens(file) for file in files)
    lens = (first.merged(*others) if others else first).bound_to(lm)
    lens.check = checked_on(lens, corpus)
    make_folder(path.parent)
    lens.save(path)
    return lens


ANALYSIS = Analysis(
    "fit-lens",
    fit_lens_answer,
    Needs.MODEL,
    Cost.MINUTES,
    example="unembed fit-lens --out wren.lens",
    source="Gurnee et al. 2026, the Jacobian lens",
)
