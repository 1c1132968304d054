"""Runs cases, and keeps what they return in compressed files."""

from __future__ import annotations

import argparse
import json
import lzma
import re
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.golden import commands, requests, studies
from tests.golden.case import Case, Place, place
from tests.golden.comparison import difference, normalised

EXPECTED = Path(__file__).parent / "expected"
Outputs = dict[str, dict[str, str]]


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description="Save or compare golden outputs.")
    parser.add_argument("action", choices=["save", "compare"])
    parser.add_argument("--only", metavar="PATTERN", default="", help="cases whose name this regular expression finds")
    parser.add_argument("--list", action="store_true", help="only list the names of the cases")
    parser.add_argument("--times", action="store_true", help="print the seconds of each case")
    given = parser.parse_args(arguments)
    if given.list:
        print("\n".join(case.name for case in chosen(given.only)))
        return 0
    if given.action == "save":
        save(given.only, given.times)
        return 0
    differing = 0
    for text in compare(given.only, times=given.times):
        differing += 1
        print(text, flush=True)
    print(f"{differing} outputs differ" if differing else "all outputs are as expected")
    return 1 if differing else 0


def chosen(only: str = "") -> list[Case]:
    """The cases whose names a regular expression finds."""
    every = [*commands.cases(), *requests.cases(), *studies.cases()]
    return [case for case in every if re.search(only, case.name)]


def save(only: str = "", times: bool = False) -> None:
    """Take what the cases return as expected. Cases that no longer exist are dropped when all are saved."""
    kept = {name: outputs for name, outputs in expected().items() if only and not re.search(only, name)}
    kept.update(_made(chosen(only), times))
    groups: dict[str, Outputs] = {}
    for name in sorted(kept):
        groups.setdefault(_group(name), {})[name] = kept[name]
    EXPECTED.mkdir(exist_ok=True)
    for file in EXPECTED.glob("*.json.xz"):
        if file.name.removesuffix(".json.xz") not in groups:
            file.unlink()
    for group, outputs in groups.items():
        content = lzma.compress(json.dumps(outputs, ensure_ascii=False, indent=0).encode(), preset=9)
        file = EXPECTED / f"{group}.json.xz"
        if not file.exists() or file.read_bytes() != content:
            file.write_bytes(content)


def compare(only: str = "", *, cases: Iterable[Case] | None = None, times: bool = False) -> Iterator[str]:
    """A short diff for every output that is not as expected, and a line for every case without its counterpart."""
    before = expected()
    run = chosen(only) if cases is None else list(cases)
    for name, found in _made(run, times):
        if name not in before:
            yield f"new case: {name}"
            continue
        for output in before[name] | found:
            old, new = before[name].get(output), found.get(output)
            if old is None or new is None:
                yield f"{name}: {output} is {'new' if old is None else 'missing'}"
            elif text := difference(f"{name} [{output}]", old, new):
                yield text
    if cases is None:
        names = {case.name for case in run}
        yield from (f"missing case: {name}" for name in before if re.search(only, name) and name not in names)


def expected() -> Outputs:
    """The saved outputs of all cases."""
    found: Outputs = {}
    for file in sorted(EXPECTED.glob("*.json.xz")):
        found.update(json.loads(lzma.decompress(file.read_bytes())))
    return found


def _group(name: str) -> str:
    return "-".join(name.split("/")[:2]) if name.count("/") > 1 else name.split("/")[0]


def _made(cases: Iterable[Case], times: bool) -> Iterator[tuple[str, dict[str, str]]]:
    with place() as here:
        for case in cases:
            started = time.monotonic()
            yield case.name, _outputs(case, here)
            if times:
                print(f"{time.monotonic() - started:7.2f} s  {case.name}", flush=True)


def _outputs(case: Case, here: Place) -> dict[str, str]:
    """What a case returns; where it raises, the last line of the traceback is its output."""
    try:
        made = case.outputs(here)
    except Exception as error:
        made = {"raised": "".join(traceback.format_exception_only(error))}
    return {name: normalised(text, here.folder) for name, text in made.items()}
