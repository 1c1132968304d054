"""Moses tokenisation of text, as the papers' released code ran it over WikiText before WikiLM's dictionary.

WikiText is tokenised already, so Moses breaks 4 % of its words (`@-@`, `<unk>`, `'s`). It serves comparisons with the
published figures; without it words are split at spaces, as in the model's training.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from unembed.errors import ExtraMissing


@cache
def _tokenizer() -> Any:
    try:
        from sacremoses import MosesTokenizer  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        if error.name != "sacremoses":
            raise
        raise ExtraMissing(
            "Moses tokenisation", why="sacremoses is not installed", instead="Run `pip install sacremoses`"
        ) from error
    return MosesTokenizer(lang="en")


def moses_tokenized(text: str) -> str:
    """The words of each line as the released code's Moses tokeniser splits them, with a space between.

    Dashes are split and characters of markup escaped (`@-@`, `&lt;`), the defaults of fairseq's encoder.

    Raises:
        ExtraMissing: sacremoses is not installed.
    """
    tokenizer = _tokenizer()
    return "\n".join(
        tokenizer.tokenize(line, aggressive_dash_splits=True, return_str=True, escape=True) if line.strip() else line
        for line in text.split("\n")
    )
