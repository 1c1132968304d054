"""Outputs as text without what differs from run to run, and the difference of two of them."""

from __future__ import annotations

import difflib
import json
import math
import re
from pathlib import Path
from typing import Any

import unembed

_NUMBER = re.compile(r"-?(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+−]?\d+)?")
_LONG = re.compile(r"(?<![\w.#])(\d+\.\d{7,}(?:e[-+]?\d+)?|\d\.\d*e[-+]?\d+)(?![\w.])")
_VERSION = re.compile(rf"(?<![\d.]){re.escape(unembed.__version__)}(?![\d.])")
_ROOT = Path(unembed.__file__).parent
_WORDS = [
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+\d\d:\d\d)?"), "<date>"),
    (re.compile(r'("(?:[a-z_]*seconds[a-z_]*|[a-z_]*per_second|version)": )[^,}\n]+'), r"\1<measured>"),
    (re.compile(r"(?<![\w.])\d+(\.\d+)? (ms|s|seconds?|minutes?|min)\b"), "<seconds>"),
    (re.compile(r" \(<seconds> if the machine stays as busy as now\)"), ""),
    (re.compile(r"[\d,]+ tokens (per second|a second|/s)"), "<speed>"),
    (re.compile(r"(?<=[^0-9a-f])[0-9a-f]{40,64}(?=[^0-9a-f])"), "<hash>"),
]
_PLAIN_LIST = re.compile(r"\[\n\s+([^\[\]{}]*?)\n\s+\]")
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6
_LINES = 24


def normalised(text: str, folder: Path) -> str:
    """The text with dates, durations, versions and folders replaced, and numbers of 7 digits at most."""
    for path, name in ((str(folder.resolve()), "<folder>"), (str(folder), "<folder>"), (str(_ROOT), "<package>")):
        text = text.replace(path, name)
    text = _VERSION.sub("<version>", text)
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    return _LONG.sub(lambda found: f"{float(found[0]):.7g}", text)


def indented(content: Any) -> str:
    """JSON with one value a line, so that a difference is short; lists of plain values stay on one line."""
    text = json.dumps(content, ensure_ascii=False, indent=1)
    return _PLAIN_LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", text)


def difference(name: str, expected: str, found: str) -> str:
    """A short unified diff of the lines that differ by more than the tolerance; empty where none does."""
    before, after = expected.splitlines(), found.splitlines()
    if len(before) == len(after):
        after = [b if _same(b, a) else a for b, a in zip(before, after, strict=True)]
    else:  # lines were added or taken away: those that stay are found by their words
        after = _aligned(before, after)
    lines = list(difflib.unified_diff(before, after, f"expected {name}", f"found {name}", n=1, lineterm=""))
    more = [f"... {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
    return "\n".join([line[:240] for line in lines[:_LINES]] + more)


def _aligned(before: list[str], after: list[str]) -> list[str]:
    """The lines of `after`; each that says the same as the line that it stands for is replaced by that line."""
    words = [[_NUMBER.sub("0", line) for line in lines] for lines in (before, after)]
    aligned = list(after)
    for start, other, n in difflib.SequenceMatcher(None, *words, autojunk=False).get_matching_blocks():
        for i in range(n):
            if _same(before[start + i], after[other + i]):
                aligned[other + i] = before[start + i]
    return aligned


def _same(before: str, after: str) -> bool:
    if before == after:
        return True
    if _NUMBER.sub("0", before) != _NUMBER.sub("0", after):
        return False
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=True)
    return all(math.isclose(_number(a), _number(b), rel_tol=_RELATIVE, abs_tol=_ABSOLUTE) for a, b in pairs)


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))
