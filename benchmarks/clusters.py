"""Clustering of value-like vectors: ours beside scikit-learn, fastcluster and one bare pass of all similarities.

    python benchmarks/clusters.py peers      # 20,000 x 768: ours, the bare pass, scikit-learn, fastcluster
    python benchmarks/clusters.py small      # 36,864 x 768, all values of GPT-2 small: ours and the bare pass
    python benchmarks/clusters.py medium     # 98,304 x 1024, all values of GPT-2 medium: ours alone
    python benchmarks/clusters.py peers --n 4000 --dry     # another size, nothing written into RESULTS.md

fastcluster comes with `pip install -e .[peers]`. Each contestant runs in its own process, which prints seconds and how
far its peak memory rose, imports left out. The vectors have two levels of groups and 15 % of them stand alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

PARTS = {
    "peers": (20_000, 768, ("ours", "bare", "sklearn", "fastcluster")),
    "small": (36_864, 768, ("ours", "bare")),
    "medium": (98_304, 1024, ("ours",)),
}
"""Vectors, their width, and who clusters them."""


def values(n: int, d: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    k = max(2, n // 20)
    top = torch.randn(max(2, k // 8), d, generator=g)
    centres = top[torch.randint(len(top), (k,), generator=g)] + torch.randn(k, d, generator=g)
    out = centres[torch.randint(k, (n,), generator=g)]
    out += 0.7 * torch.randn(n, d, generator=g)
    alone = torch.rand(n, generator=g) < 0.15
    out[alone] = 1.7 * torch.randn(int(alone.sum()), d, generator=g)
    return out


def bare(x: torch.Tensor, k: int) -> None:
    """Every block of the cosine matrix, and the maximum of each row."""
    unit = torch.nn.functional.normalize(x, dim=1)
    for start in range(0, len(x), 1024):
        (unit[start : start + 1024] @ unit.T).amax(dim=1)


def ours(x: torch.Tensor, k: int) -> None:
    from unembed.memories.clustering.value_clusters import cluster

    cluster(x, k)


def sklearn(x: torch.Tensor, k: int) -> None:
    from sklearn.cluster import AgglomerativeClustering

    AgglomerativeClustering(n_clusters=k, metric="cosine", linkage="average").fit(x.numpy())


def fastcluster(x: torch.Tensor, k: int) -> None:
    """Condensed float64 distances, formed by one matrix product, then fastcluster's tree."""
    import fastcluster as peer  # pyright: ignore[reportMissingImports]
    import numpy as np

    unit = torch.nn.functional.normalize(x, dim=1)
    n = len(x)
    condensed = np.empty(n * (n - 1) // 2)
    at = 0
    for start in range(0, n, 1024):
        block = (1 - unit[start : start + 1024] @ unit.T).numpy()
        for i in range(len(block)):
            row = block[i, start + i + 1 :]
            condensed[at : at + len(row)] = row
            at += len(row)
    peer.linkage(condensed.clip(0, out=condensed), method="average", preserve_input=False)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all when none")
    options.add_argument("--n", type=int, help="another number of vectors")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--dry", action="store_true", help="print only, leave RESULTS.md as it is")
    options.add_argument("--one", nargs=3, metavar=("WHO", "N", "D"), help=argparse.SUPPRESS)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        alone(given.one[0], int(given.one[1]), int(given.one[2]))
        return
    if unknown := sorted(set(given.parts) - set(PARTS)):
        options.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    for part in given.parts or PARTS:
        n, d, contestants = PARTS[part]
        n = given.n or n
        found = {}
        for name in contestants:
            command = [sys.executable, __file__, "--one", name, str(n), str(d), "--threads", str(given.threads)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[name] = json.loads(done.stdout)
            print(f"{n:,} x {d}", found[name], flush=True)
        keep(n, d, given.threads, found, dry=given.dry)


def alone(name: str, n: int, d: int) -> None:
    """One contestant in this process; a small run first, so that what it imports is there and warm."""
    contestant = globals()[name]
    contestant(values(600, d), 20)
    empty = peak_mb()
    x = values(n, d)
    before, wall, cpu = peak_mb(), time.perf_counter(), time.process_time()
    contestant(x, max(1, n * 10_000 // 36_864))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        json.dumps(
            {
                "name": name,
                "wall_s": wall,
                "cpu_s": cpu,
                "peak_mb": peak_mb() - before,
                "with_vectors_mb": peak_mb() - empty,
            }
        )
    )


TARGETS = {
    ("sklearn", "time"): 1 / 6,
    ("sklearn", "memory"): 1 / 8,
    ("fastcluster", "time"): 0.5,
    ("bare", "time"): 2.0,
}
LARGEST_MB = {36_864: 600, 98_304: 2_500}


def keep(n: int, d: int, threads: int, found: dict[str, dict[str, float]], *, dry: bool) -> None:
    """The ratios beside their targets; the bare pass has one at 36,864 vectors only."""
    from measure import Claim, record

    mine = found["ours"]
    claims = []
    for name, row in found.items():
        if name == "ours":
            continue
        target = TARGETS[name, "time"] if name != "bare" or n == 36_864 else None
        note = f"{mine['cpu_s']:.1f} and {row['cpu_s']:.1f} CPU seconds"
        claims.append(Claim(f"time, to {PEERS[name]}", mine["cpu_s"] / row["cpu_s"], target, note))
        if (name, "memory") in TARGETS:
            note = f"{mine['peak_mb']:.0f} and {row['peak_mb']:.0f} MB beyond the vectors"
            claims.append(Claim(f"memory, to {PEERS[name]}", mine["peak_mb"] / row["peak_mb"], 1 / 8, note))
    if n in LARGEST_MB:
        # What drawing the vectors took counts as well: freed before the clustering, it hides a smaller peak.
        note = f"{mine['with_vectors_mb']:.0f} MB, the vectors and their drawing included"
        claims.append(Claim("peak memory, to its limit", mine["with_vectors_mb"] / LARGEST_MB[n], 1.0, note))
    how = (
        f"Whole dendrogram of all vectors, two levels of groups and 15 % alone; {threads} thread(s), one process each."
    )
    if not dry:
        record(f"Clustering {n:,} x {d}, average linkage, cosine", claims, how=how)
    else:
        print(*claims, sep="\n")


PEERS = {
    "bare": "one bare blocked pass of all similarities",
    "sklearn": "scikit-learn",
    "fastcluster": "fastcluster",
}


if __name__ == "__main__":
    main()
