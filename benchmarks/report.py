"""One geva2021 report on wren over the shipped text: under three minutes on two cores, under 2 GB.

python benchmarks/report.py
"""

from __future__ import annotations

import resource
import tempfile
import time

import torch
from measure import Claim, record

import unembed

CPU_SECONDS, GIGABYTES = 2 * 180, 2.0


def main() -> None:
    """Run the report once in this process, on one thread, and record what it took."""
    torch.set_num_threads(1)
    lm = unembed.load()
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        report = unembed.report("geva2021", lm, "shipped", folder)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    claims = [
        Claim(f"processor time ({seconds:.0f} s), to two cores for three minutes", seconds / CPU_SECONDS, 1.0),
        Claim(f"peak memory of the process ({peak:.2f} GB), to 2 GB", peak / GIGABYTES, 1.0),
    ]
    agree = sum(finding.agrees is True for finding in report.findings)
    how = (
        f"4,000 examples, 120 keys with shortened triggers; {agree} of {len(report.findings)} published findings hold."
    )
    record("Report geva2021 on wren, shipped text", claims, how=how)


if __name__ == "__main__":
    main()
