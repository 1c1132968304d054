"""Every benchmark, one script after another: `make bench`.

Stopped and started again, it goes on with the first script that has not finished since the measured code last changed.
`toxicity.py` needs comments and a model of `make toxic-model`; `faults.py` takes the better part of an hour: both are
run by hand.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
STAMPS = HERE.parent / ".cache" / "bench"
NOT_SCRIPTS = ("all.py", "measure.py", "summary.py")
BY_HAND = ("toxicity.py", "faults.py")


def main() -> int:
    """Run what is left; the exit status is 1 where a script failed, after all others have run."""
    last = ["git", "log", "-1", "--format=%H", "--", "../src", ".", ":!RESULTS.md", ":!all.py"]
    commit = subprocess.run(last, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
    STAMPS.mkdir(parents=True, exist_ok=True)
    failed = []
    for script in sorted(HERE.glob("*.py")):
        stamp = STAMPS / script.stem
        if script.name in (*NOT_SCRIPTS, *BY_HAND) or (stamp.exists() and stamp.read_text() == commit):
            continue
        began = time.monotonic()
        print(f"{script.name} ...", file=sys.stderr, flush=True)
        status = subprocess.run([sys.executable, script], check=False).returncode
        print(f"{script.name}: {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr, flush=True)
        if status:
            failed.append(script.name)
        else:
            stamp.write_text(commit)
    for name in failed:
        print(f"FAILED: {name}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
