"""`unembed fit-lens`: fit a Jacobian lens, write it to a file, and show how far it can be trusted, layer by layer."""

from __future__ import annotations

from typing import Annotated

from unembed.analyses import Analysis, Cost, Needs
from unembed.jacobian.fit import fit_lens
from unembed.jacobian.lens_cache import lens_path
from unembed.models.decoder import Decoder
from unembed.options import Corpus, Option, Out
from unembed.results import Table, check_writable, make_folder


def fit_lens_answer(
    lm: Decoder,
    *,
    out: Out = None,
    corpus: Corpus = None,
    contexts: Annotated[int, Option("Number of text windows that the lens is fitted on.", low=2)] = 64,
    context_length: Annotated[int, Option("Tokens in each of these windows.", low=6)] = 64,
) -> Table:
    """Fit a Jacobian lens, and show by layer how well it predicts the model's prediction on held-out text.

    The lens carries a stream, or a part of it, through the layers that follow by their mean derivative on text. Beside
    it stands the logit lens, which takes these layers for the identity. --out writes the lens to a file, for --lens.
    Without it the lens is kept in the cache folder, where all commands find it: it is the model's default from then on,
    and --lens none reads with the logit lens.
    """
    if out is not None:
        check_writable(out)
    lens = fit_lens(lm, corpus, contexts, context_length)
    path = lens_path(lens.fingerprint) if out is None else out
    make_folder(path.parent)
    lens.save(path)
    return lens.to_table()


ANALYSIS = Analysis(
    "fit-lens",
    fit_lens_answer,
    Needs.MODEL,
    Cost.MINUTES,
    example="unembed fit-lens --out wren.lens",
    source="Gurnee et al. 2026, the Jacobian lens",
)
