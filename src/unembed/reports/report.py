"""List the studies, and run them with one function: `unembed.report`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from unembed.corpus import CorpusSource, open_corpus
from unembed.document.files import prepared, reopen, write
from unembed.document.model import Report
from unembed.errors import InvalidInput
from unembed.jacobian import lens_identity, reading_by
from unembed.lens import comparable_basis
from unembed.models.decoder import Decoder, require_decoder
from unembed.models.fingerprint import weights_fingerprint
from unembed.reports.stages import Work, code_digest, is_finished, silent
from unembed.validation import as_str, valid_seed

SHIPPED = "shipped"
"""The name that stands for the corpus that comes with the package."""


STUDIES: Mapping[str, bool] = {"geva2021": False, "geva2022": True, "elhage2021": True}
"""For each study, by name: whether it uses the text that comes with the package if no text is given.

The name is also that of the study's module, which has a function `run(lm, corpus, work, **options) -> Report`.
"""


def report(
    name: str,
    lm: Decoder,
    corpus: CorpusSource = None,
    out: str | os.PathLike[str] = "report/",
    *,
    detokenize: bool | None = None,
    moses: bool = False,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
    resume: bool = False,
    **options: Any,
) -> Report:
    """Run a paper's experiments on a model, and write tables and figures next to the published ones into a folder.

    A run that is started again after an interruption continues with the interrupted step. Stored steps of a run with
    another model, text, option, seed or version are deleted, and `progress` is called with what differs.
    Vectors are decoded to tokens as in the paper, even if the model has a fitted lens. The report on such a model has
    an additional section, on the verdicts that change if the lens decodes the vectors.

    Args:
        name: "geva2021", "geva2022" or "elhage2021".
        corpus: the text to measure on: a path, a corpus, "shipped" for the WikiText sample, or the study's default.
        out: folder for `report.html`, `report.json`, `tables/` and `figures/`.
        detokenize: undo the spacing of WikiText (` , `, ` @-@ `) in the corpus. When None, this is done only for the
            text that comes with the package, and not for WikiLM, which was trained on such spacing.
        moses: split the corpus into words by the Moses tokenizer, as the papers' released code does for WikiLM (needs
            sacremoses).
        progress: called with the name of a step, the amount done, and the total.
        resume: return the finished report in the folder if it was made with these settings, instead of making it again.
        options: the options of the study, such as those of `unembed.reports.geva2021.options.Options`.

    Returns:
        The report; `report[table]` gives its tables. `unembed.reports.reopen(out)` reads it again without a model.

    Raises:
        InvalidInput: no such study or option, the corpus is missing or too small, the folder cannot be written to.
        Unsupported: the model lacks what the study requires.
    """
    reads_shipped, seed, lm = find(name), valid_seed(seed), require_decoder(lm)
    shipped = corpus is None or (isinstance(corpus, str) and corpus == SHIPPED)
    if corpus is not None or (shipped and reads_shipped):
        # The key of stored results identifies the text by its fingerprint (a hash) and not by its path, because the
        # file at that path may change. The corpus is opened before the key is made, because only an open corpus has a
        # fingerprint.
        corpus = open_corpus(None if shipped else corpus)
        plain = shipped and comparable_basis(lm) == "raw" if detokenize is None else detokenize
        if moses and (detokenize or corpus.detokenize):
            raise InvalidInput("both detokenize and moses", why="one reverses the other", instead="Choose one")
        corpus = replace(
            corpus,
            detokenize=not moses and (corpus.detokenize or plain),
            moses=moses or corpus.moses,
            tokenized={},  # the steps of the study and of its control read the same text
        )
    elif moses:
        raise InvalidInput(
            "moses without a corpus", why=f"{name} takes its text from the index", instead="Give a corpus"
        )
    folder = prepared(out)
    key = {
        "study": name,
        "model": lm.name,
        "weights": weights_fingerprint(lm),
        "dtype": str(lm.dtype),
        "lens": lens_identity(lm),
        "corpus": getattr(corpus, "fingerprint", None) or str(corpus),
        "seed": seed,
        "options": {k: str(getattr(v, "annotator", v)) for k, v in sorted(options.items())},
        "version": code_digest(),
    }
    if resume and is_finished(folder, key):
        return reopen(folder)
    with reading_by(lm, None) as lens:
        work = Work(folder, key, seed, silent if progress is None else progress, lens)
        work.begin()
        made: Report = importlib.import_module(f"unembed.reports.{name}").run(lm, corpus, work, **options)
    write(made, folder)
    work.finished()
    return made


def find(name: str) -> bool:
    """Return whether the study with this name uses the text that comes with the package if no text is given.

    Raises:
        InvalidInput: there is no study with this name.
    """
    if as_str("report", name) not in STUDIES:
        raise InvalidInput(f"report {name!r}", why="there is no such study", instead=f"Use {', '.join(STUDIES)}")
    return STUDIES[name]
