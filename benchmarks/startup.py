"""What a user waits for: whole commands, from the shell's start of the process to its end.

    python benchmarks/startup.py            # all, about three minutes
    python benchmarks/startup.py --rounds 3

Commands that run no model are held to a number of seconds of CPU time; commands that run one, to a ratio: the CPU time of a
process that imports torch and the model's class, opens the same weights and makes one forward pass. Commands that compute
something besides are held to the seconds that were wanted of them, which for some are fewer than the floor.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Claim, record

LIMIT = 0.8  # seconds of CPU time of a command that runs no model
RATIO = 1.15  # of a command that runs one, to the floor
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


def cpu_seconds(command: list[str], rounds: int, folder: str | None = None) -> float:
    """Median CPU seconds of a process and its children, after one round of warm-up."""
    seconds = []
    for number in range(rounds + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        if number:
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(seconds)


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
SLOW = {
    "concepts": (["concepts", "L3M17"], 5.0),
    "clusters": (["clusters"], 3.0),
    "annotate export": (["annotate", "export", "sheet.json"], 4.0),
    "circuits stream": (["circuits", "stream"], 4.0),
}
"""Commands that compute something, and how many seconds of CPU time they may take."""


def main() -> None:
    """Measure and write a section of RESULTS.md."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    unembed = str(Path(sys.executable).with_name("unembed"))
    floor = cpu_seconds([sys.executable, "-c", FLOOR], given.rounds)
    with tempfile.TemporaryDirectory() as folder:
        corpus, index = Path(folder, "two.txt"), str(Path(folder, "index"))
        corpus.write_text("The king of France died in May.\nShe was born on 16 August.\n")
        subprocess.run([unembed, "index", "build", "--out", index, "--corpus", str(corpus)], check=True)
        subprocess.run([unembed, "annotate", "export", str(Path(folder, "sheet.json"))], check=True)
        claims = []
        for name, arguments in questions(index).items():
            seconds = cpu_seconds([unembed, *arguments], given.rounds)
            claims.append(Claim(f"{name}, to {LIMIT} s of CPU time", seconds / LIMIT, 1.0, f"{seconds:.2f} s"))
    for name, arguments in RUNS.items():
        seconds = cpu_seconds([unembed, *arguments], given.rounds)
        claims.append(Claim(f"{name}, to the floor", seconds / floor, RATIO, f"{seconds:.2f} s"))
    with tempfile.TemporaryDirectory() as folder:
        for name, (arguments, limit) in SLOW.items():
            seconds = cpu_seconds([unembed, *arguments], given.rounds, folder)
            claims.append(Claim(f"{name}, to {limit} s of CPU time", seconds / limit, 1.0, f"{seconds:.2f} s"))
    how = (
        f"Whole processes, medians of {given.rounds}. The floor, importing torch and the model's class, opening wren and one "
        f"forward pass: {floor:.2f} s of CPU time. Limits: {LIMIT} s for commands that run no model, {RATIO} of the floor "
        "for those that do."
    )
    record("Start-up of commands", claims, how=how)


if __name__ == "__main__":
    main()
