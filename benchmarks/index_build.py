"""What an index of the whole default corpus costs to build, beside the build that read the corpus three times.

    python benchmarks/index_build.py                   # wren; about ten minutes on one thread
    python benchmarks/index_build.py --documents 12    # the first articles, to try it

Until commit e7d8b65 a build tokenised the corpus for the token stream, read it once more for the names of documents, and
tokenised it again for the sweep. Since 0f8b050 the sweep reads the stream that the build has just written. Each of these
two commits and the working tree builds the same index in a process of its own, round after round; the figures are
medians of CPU seconds on one thread. The two commits differ in nothing else that a build runs.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEFORE, AFTER = "e7d8b65", "0f8b050"
PARTS = ("vocabulary", "tokens", "triggers", "values", "tables", "search")


def build(documents: int | None) -> dict[str, Any]:
    """One build: CPU seconds by part, passes over the documents, tokens made by the tokenizer, checksums of the files."""
    import torch

    import unembed
    from unembed.corpus.corpus import Corpus
    from unembed.index import build as building

    torch.set_num_threads(1)
    lm = unembed.load()
    corpus = unembed.open_corpus(None, max_documents=documents)
    seconds: dict[str, float] = {}
    counted = {"passes": 0, "tokens": 0}

    def timed(part: str, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def measured(builder: Any) -> Any:
            start = time.process_time()
            result = make(builder)
            seconds[part] = time.process_time() - start
            return result

        return measured

    for part in PARTS:
        setattr(building._Builder, f"_{part}", timed(part, getattr(building._Builder, f"_{part}")))
    read, encode = Corpus.documents, lm.encode_all

    def documents_read(self: Corpus) -> Any:
        counted["passes"] += 1
        return read(self)

    def encoded(texts: Any) -> Any:
        result = encode(texts)
        counted["tokens"] += sum(map(len, result))
        return result

    Corpus.documents, lm.encode_all = documents_read, encoded  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        unembed.Index.build(lm, corpus, folder)
        seconds["whole build"] = time.process_time() - start
        files = [p for p in sorted(Path(folder).rglob("*")) if p.is_file() and p.name not in ("manifest.json", ".lock")]
        sums = {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    return {"seconds": seconds, **counted, "files": sums}


def built_by(source: Path, documents: int | None) -> dict[str, Any]:
    """`build` by the package under `source`, in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(Path(__file__)), "--child", "--documents", str(documents or 0)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def sources_at(commit: str, folder: Path) -> Path:
    """The package as it was at a commit."""
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder / commit, filter="data")
    return folder / commit / "src"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=0, help="only the first articles; 0: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    documents = given.documents or None
    if given.child:
        print(json.dumps(build(documents)))
        return
    from measure import Claim, record

    with tempfile.TemporaryDirectory() as folder:
        sources = {name: sources_at(name, Path(folder)) for name in (BEFORE, AFTER)} | {"now": ROOT / "src"}
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
        for _ in range(given.rounds):
            for name, source in sources.items():
                results[name].append(built_by(source, documents))

    def median(name: str, part: str) -> float:
        return statistics.median(run["seconds"][part] for run in results[name])

    before, after, now = (results[name][0] for name in (BEFORE, AFTER, "now"))
    other = [name for name, digest in after["files"].items() if before["files"].get(name) != digest]
    claims = [
        Claim(
            f"passes over the documents, {label}",
            run["passes"],
            1 if label == "now" else None,
            f"{run['tokens']:,} tokens made by the tokenizer",
        )
        for label, run in (("before", before), ("now", now))
    ]
    for part in ("whole build", "tokens", "triggers"):  # the others do not read the corpus
        a, b, c = (median(name, part) for name in (BEFORE, AFTER, "now"))
        claims.append(
            Claim(
                f"CPU time, {part}: reading once to reading three times",
                b / a,
                None,
                f"{a:.2f}, {b:.2f}, now {c:.2f} s",
            )
        )
    how = (
        f"wren, {'the whole default corpus' if documents is None else f'{documents} articles'}; one thread, medians of "
        f"{given.rounds} builds, of which running the model over the text is "
        f"{median('now', 'triggers') / median('now', 'whole build'):.0%}. The last column: CPU seconds at {BEFORE} (before), at {AFTER} (the corpus is read once), "
        f"and now. {len(after['files']) - len(other)} of {len(after['files'])} files of the two are the same, byte for byte"
        f"{'; not ' + ', '.join(other) if other else ''}."
    )
    record("Index build of the default corpus", claims, how=how)


if __name__ == "__main__":
    main()
