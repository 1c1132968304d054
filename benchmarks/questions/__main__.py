"""`python -m benchmarks.questions`; the package's docstring is the manual."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.questions.asked import graded, questions
from benchmarks.questions.plants import make
from benchmarks.questions.replay import model_of, replayed


def main() -> int:
    """Do what the arguments name; 1 where a question is answered wrongly."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.questions", description="Questions with known answers.")
    parser.add_argument("what", choices=["make", "list", "grade", "replay"])
    parser.add_argument("path", type=Path, help="the folder of the changed copies, or the file of answers")
    parser.add_argument("--without", default="", metavar="MODEL", help="leave out the questions about a model")
    options = parser.parse_args()
    asked = [one for one in questions() if one.model != options.without]
    if options.what in ("make", "replay"):
        make(options.path)
    if options.what == "list":
        for one in asked:
            print(json.dumps({"id": one.id, "model": model_of(one.model, options.path), "question": one.text}))
        return 0
    if options.what == "make":
        return 0
    if options.what == "grade":
        try:
            lines = options.path.read_text("utf-8").splitlines()
            right = graded([json.loads(line) for line in lines if line.strip()], asked)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f'{options.path}: {error}. Give a file with lines of {{"id": ..., "answer": ...}}.', file=sys.stderr)
            return 1
    else:
        right = {}
        for one, said in replayed(asked, options.path):
            right[one.id] = one.accepts(said)
            if not right[one.id]:
                print(f"{one.id}: the calls say {said!r}, the answer is {one.answer!r}", file=sys.stderr)
    for name, held in right.items():
        print(f"{'right' if held else 'WRONG'}  {name}")
    print(f"{sum(right.values())} of {len(right)} right")
    return 0 if all(right.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
