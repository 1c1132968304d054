"""Builds on a disk that is really full, again and again with a little more room; run inside `unshare --mount`.

Arguments: the disk's folder, the model's folder. Prints one JSON object a build: the error or null, what was left under
temporary names, and which finished files were unsound; in the end the finished index lies on the disk, which is copied
to DISK.copy, because the disk goes with this process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.index.conftest import corpus_of
from unembed.errors import UnembedError
from unembed.index import Index, IndexSettings
from unembed.language_model import load


def main(disk: Path, model: str) -> None:
    lm = load(model)
    for step, kilobytes in enumerate(range(8, 400, 12)):
        options = f"{'remount,' if step else ''}size={kilobytes}k"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)
        error = None
        try:
            Index.build(lm, corpus_of(), disk / "index", top=5, settings=IndexSettings(top_tokens=6))
        except UnembedError as failure:
            error = str(failure)
        left = [path.name for path in disk.rglob("*") if path.name.endswith((".writing", ".tmp"))]
        unsound = []
        if (disk / "index/manifest.json").exists():
            faults = Index.open(disk / "index", partial=True).verify()
            unsound = [row["file"] for row in faults.rows() if row["fault"]]
        print(json.dumps({"error": error, "left": left, "unsound": unsound}), flush=True)
        if error is None:
            break
    shutil.copytree(disk, disk.with_suffix(".copy"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
