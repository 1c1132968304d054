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
PEERS = HERE.parent / ".peers"
NEXT_TO_A_PEER = {
    "transformer-lens-4.3.0": (["causality.py"],),
    "transformer-lens-3.9.0": (
        ["attribution_graphs.py"],
        ["circuits.py", "composition", "copying"],
        ["sweep.py", "lens", "lens-wren"],
        ["trace.py", "capture", "trace", "attribution"],
    ),
}
"""What is measured next to TransformerLens, by the environment that `make bench` installs for it."""


def commands() -> dict[str, list[str | Path]]:
    """Each benchmark's command line, by the name of its stamp."""
    found: dict[str, list[str | Path]] = {}
    for script in sorted(HERE.glob("*.py")):
        if (
            script.name not in (*NOT_SCRIPTS, *BY_HAND)
            and [script.name] not in NEXT_TO_A_PEER["transformer-lens-4.3.0"]
        ):
            found[script.name] = [sys.executable, script]
    for environment, runs in NEXT_TO_A_PEER.items():
        for script, *parts in runs:
            found[f"{script} in {environment}"] = [PEERS / environment / "bin" / "python", HERE / script, *parts]
    return found


def main() -> int:
    """Run what is left; the exit status is 1 where a script failed, after all others have run."""
    last = ["git", "log", "-1", "--format=%H", "--", "../src", ".", ":!RESULTS.md", ":!all.py"]
    commit = subprocess.run(last, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
    STAMPS.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, command in commands().items():
        stamp = STAMPS / name
        if stamp.exists() and stamp.read_text() == commit:
            continue
        began = time.monotonic()
        print(f"{name} ...", file=sys.stderr, flush=True)
        status = subprocess.run(command, check=False).returncode
        print(f"{name}: {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr, flush=True)
        if status:
            failed.append(name)
        else:
            stamp.write_text(commit)
    for name in failed:
        print(f"FAILED: {name}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
