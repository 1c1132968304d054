"""What a user waits for: whole commands, from the shell's start of the process to its end.

    python benchmarks/startup.py            # all, about five minutes
    python benchmarks/startup.py --rounds 3

Commands that run no model are held to a number of seconds of CPU time; commands that run one, to a ratio: the CPU time of a
process that imports torch and the model's class, opens the same weights and makes one forward pass. Commands that compute
something besides are measured in turn with the code as it was before they were made faster, in a worktree of that commit, on
one thread; they are held to a third of that, or to the same ratio to the floor where the floor alone is more.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Claim, record

LIMIT = 0.8  # seconds of CPU time of a command that runs no model
RATIO = 1.15  # of a command that runs one, to the floor
TWO = "The king of France died in May.\nShe was born on 16 August.\n"
PROMPT = "The first month of the year is"
FLOOR = f"""
import torch
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast
from unembed.models.shipped_models import shipped_folder, tokenizer_folder
model = GPT2LMHeadModel.from_pretrained(shipped_folder("wren")).float()
tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder("wren"))
with torch.no_grad():
    model(**tokenizer({PROMPT!r}, return_tensors="pt"))
"""


def cpu_seconds(
    command: list[str], rounds: int, folder: str | None = None, environment: dict[str, str] | None = None
) -> float:
    """Median CPU seconds of a process and its children, after one round of warm-up."""
    seconds = [_seconds(command, folder, environment) for _ in range(rounds + 1)]
    return statistics.median(seconds[1:])


def _seconds(command: list[str], folder: str | None, environment: dict[str, str] | None) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=os.environ | READY | (environment or {})
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def questions(index: str) -> dict[str, list[str]]:
    """Commands that run no model."""
    return {
        "value, from an index": ["value", "L5M278", "--index", index],
        "index status": ["index", "status", index],
        "index triggers": ["index", "triggers", index, "5", "278"],
        "index search": ["index", "search", index, "king"],
        "index sql": ["index", "sql", index, "select count(*) from triggers"],
        "index verify": ["index", "verify", index],
        "annotate import": ["annotate", "import", str(Path(index).with_name("sheet.json"))],
        "models": ["models"],
        "doctor": ["doctor"],
    }


RUNS = {
    "trace": ["trace", PROMPT],
    "explain": ["explain", PROMPT, "--token", " the"],
    "value": ["value", "L5M278", "--basis", "final"],
    "circuits heads": ["circuits", "heads", "--model", "attn-2l"],
}
EARLIER = "25151cd"
"""The commit of 2026-11-23 with which the commands below are compared."""
SLOW = {
    "concepts": ["concepts", "3.17"],
    "clusters": ["clusters"],
    "annotate export": ["annotate", "export", "sheet.json"],
    "index build, two sentences": ["index", "build", "--out", "index", "--corpus", "two.txt"],
    "early-exit evaluate": ["early-exit", "evaluate", "rule.npz", "--examples", "100"],
    "circuits stream": ["circuits", "stream"],
}
READY = {"UNEMBED_READY_INDEX": "never"}


def compared(rounds: int) -> tuple[float, dict[str, tuple[float, float]]]:
    """CPU seconds on one thread: of the floor, and of each slow command as it was and as it is, in turn."""
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        then = Path(folder, "then")
        subprocess.run(["git", "worktree", "add", "--detach", str(then), EARLIER], cwd=root, check=True)
        try:
            return _compared({"then": then / "src", "now": root / "src"}, Path(folder), rounds)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(then)], cwd=root, check=True)


def _compared(sources: dict[str, Path], folder: Path, rounds: int) -> tuple[float, dict[str, tuple[float, float]]]:
    def measured(which: str, arguments: list[str]) -> float:
        """In a new folder that holds the text and that code's own early-exit rule."""
        with tempfile.TemporaryDirectory() as place:
            Path(place, "two.txt").write_text(TWO)
            if (rule := folder / f"{which}.npz").exists():
                Path(place, "rule.npz").write_bytes(rule.read_bytes())
            environment = {
                "PYTHONPATH": str(sources[which]),
                "UNEMBED_CACHE": str(folder / which),
                "OMP_NUM_THREADS": "1",
            }
            return _seconds([sys.executable, "-m", "unembed", *arguments], place, environment)

    for which in sources:
        measured(which, ["early-exit", "fit", "--examples", "200", "--out", str(folder / f"{which}.npz")])
    found: dict[str, tuple[float, float]] = {}
    for name, arguments in SLOW.items():
        turns = [(measured("then", arguments), measured("now", arguments)) for _ in range(rounds + 1)][1:]
        then, now = (statistics.median(column) for column in zip(*turns, strict=True))
        found[name] = then, now
    floor = cpu_seconds([sys.executable, "-c", FLOOR], rounds, environment={"OMP_NUM_THREADS": "1"})
    return floor, found


def main() -> None:
    """Measure and write a section of RESULTS.md."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    unembed = str(Path(sys.executable).with_name("unembed"))
    floor = cpu_seconds([sys.executable, "-c", FLOOR], given.rounds)
    with tempfile.TemporaryDirectory() as folder:
        corpus, index = Path(folder, "two.txt"), str(Path(folder, "index"))
        corpus.write_text(TWO)
        subprocess.run([unembed, "index", "build", "--out", index, "--corpus", str(corpus)], check=True)
        subprocess.run([unembed, "annotate", "export", str(Path(folder, "sheet.json"))], check=True)
        claims = []
        for name, arguments in questions(index).items():
            seconds = cpu_seconds([unembed, *arguments], given.rounds)
            claims.append(Claim(f"{name}, to {LIMIT} s of CPU time", seconds / LIMIT, 1.0, f"{seconds:.2f} s"))
    for name, arguments in RUNS.items():
        seconds = cpu_seconds([unembed, *arguments], given.rounds)
        claims.append(Claim(f"{name}, to the floor", seconds / floor, RATIO, f"{seconds:.2f} s"))
    alone, slow = compared(given.rounds)
    for name, (then, now) in slow.items():
        third, least = then / 3, RATIO * alone
        limit, of_what = (third, "a third of what it was") if third > least else (least, f"{RATIO} of the floor")
        detail = f"{now:.2f} s on one thread; {then:.2f} s at {EARLIER}"
        claims.append(Claim(f"{name}, to {of_what}, {limit:.2f} s of CPU time", now / limit, 1.0, detail))
    how = (
        f"Whole processes, medians of {given.rounds}. The floor, importing torch and the model's class, opening wren and one "
        f"forward pass: {floor:.2f} s of CPU time, {alone:.2f} s on one thread. Limits: {LIMIT} s for commands that run no "
        f"model, {RATIO} of the floor for those that do. Commands that compute something besides are compared with the code "
        f"of 2026-11-23 ({EARLIER}), in turn; the limit is a third of that, or {RATIO} of the floor where that is more."
    )
    record("Start-up of commands", claims, how=how)


if __name__ == "__main__":
    main()
