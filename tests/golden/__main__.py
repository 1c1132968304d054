"""`python -m tests.golden save|compare`; the package's docstring is the manual."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

if __name__ == "__main__":
    from tests.golden.run import main

    sys.exit(main(sys.argv[1:]))
