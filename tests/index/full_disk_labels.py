"""Labels on a disk that is full, and on one that nobody may write to; run inside `unshare --mount`.

Arguments: the disk's folder, a finished index. Prints one JSON object a state of the disk: the error of a label that is
added then, or null, and the labels that are read after it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from unembed.errors import UnembedError
from unembed.index import Index, Label


def main(disk: Path, index: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=True)
    index_ = Index.open(shutil.copytree(index, disk / "index"))

    def tell() -> None:
        error = None
        try:
            index_.add_labels(Label(0, i, "x" * 5000, "ann") for i in range(4))
        except UnembedError as failure:
            error = str(failure)
        rows = list(Index.open(index_.path).sql("SELECT count(*) AS n FROM labels").rows())
        print(json.dumps({"error": error, "labels": len(index_.labels()), "in_sql": rows[0]["n"]}), flush=True)

    tell()
    with (disk / "filling").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"0" * 4096)
        except OSError:
            pass
    tell()
    (disk / "filling").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    tell()
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    tell()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
