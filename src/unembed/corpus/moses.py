"""Tokenise text with Moses, as the code released by Geva et al. does before it looks words up in WikiLM's dictionary.

WikiText is tokenised already, so Moses splits 4 % of its words wrongly (`@-@`, `<unk>`, `'s`). It is used only to
reproduce published figures. Otherwise words are split at spaces, as in WikiLM's training.
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
    """Return the words of each line, separated by spaces, as the Moses tokeniser of the released code splits them.

    Dashes are split and markup characters are escaped (`@-@`, `&lt;`), as fairseq's encoder does by default.

    Raises:
        ExtraMissing: sacremoses is not installed.
    """
    tokenizer = _tokenizer()
    return "\n".join(
        tokenizer.tokenize(line, aggressive_dash_splits=True, return_str=True, escape=True) if line.strip() else line
        for line in text.split("\n")
    )
