"""Faults and abuse, many times: what `tests/faults` tries a few times on every change.

    python benchmarks/faults.py                  # all of it, the better part of an hour on one thread
    python benchmarks/faults.py --share 0.05     # a twentieth

A tiny model (2 layers, 160 keys), 8 short documents, an index of 20 files. A line of the table counts what was tried and
how many ended as they must not: other bytes, a wrong answer, a traceback, a status 500, a file left half-written.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from measure import Claim, record
from tests.faults import damage, interrupts, kills, made, odd_arguments, odd_requests, starving, together

Line = tuple[str, list[str], str]
"""What was tried, each way in which it ended badly, and a note."""


def killing(world: made.World, n: int, seed: int) -> Line:
    draw = random.Random(seed)
    start = time.perf_counter()
    world.build(world.folder / "timed")
    seconds = time.perf_counter() - start
    rounds = [kills.killed(world, draw, seconds) for _ in range(n)]
    bad = [str(r) for r in rounds if not r.good]
    stops = sum(r.stops for r in rounds)
    parts = sorted({p for r in rounds for p in r.parts})
    return f"{n} builds killed (kill -9), then resumed", bad, f"{stops} kills met a build with {parts} parts finished"


def full_disks(world: made.World, n: int, seed: int) -> Line:
    draw = random.Random(seed)
    found = [kills.disk_full(world, draw) for _ in range(n)]
    bad = [str(r) for r, _ in found if not r.good]
    ends = [e for _, some in found for e in some if e.code]
    bad += [e.stderr[-400:] for e in ends if e.code != 1 or e.stderr.count("\n") != 1]
    return f"{n} builds on a disk that fills up, then resumed", bad, f"{len(ends)} stopped, each with one line"


def damages(world: made.World, n: int, seed: int) -> Line:
    draw, expected = random.Random(seed), damage.answers(world, world.index)
    tried = [(file, kind) for _ in range(n) for file in world.built for kind in damage.KINDS]
    found = [damage.tried(world, file, kind, draw, expected) for file, kind in tried]
    bad = [str(o) for o in found if o.wrong or not o.named or not o.repaired]
    right, refused = sum(len(o.right) for o in found), sum(len(o.refused) for o in found)
    what = f"{len(found)} damages to the {len(world.built)} files of an index (a bit changed, cut short, gone)"
    return what, bad, f"{right + refused} questions: {refused} refused, {right} right; `verify` names each file"


def shared(world: made.World, n: int, seed: int) -> Line:
    expected = damage.answers(world, world.index)
    found = together.run(world, readers=3, repairs=n, seed=seed, expected=expected)
    bad = [name for name in found if name not in ("right", "refused")]
    return f"3 readers while one builder builds and repairs {n} times", bad, f"{dict(found)}"


def command_lines(world: made.World, n: int, seed: int) -> Line:
    tally = odd_arguments.run(world, n, seed)
    return f"{n:,} malformed command lines", tally.broken, f"ended with {dict(sorted(tally.ended.items()))}"


def requests(world: made.World, n: int, seed: int) -> Line:
    tally = odd_requests.run(world, n, seed)
    return f"{n:,} malformed requests", tally.broken, f"answered with {dict(sorted(tally.answer_counts.items()))}"


def ctrl_c(world: made.World, n: int, seed: int) -> Line:
    bad, codes = [], []
    lines = interrupts.commands(world)
    for number, arguments in enumerate(lines):
        for seconds in interrupts.moments(n, 3.0, seed + number):
            ended = interrupts.during(world, arguments, seconds)
            codes.append(ended.code)
            if why := interrupts.fault(ended, world.folder / "interrupted"):
                bad.append(f"{' '.join(arguments)} after {seconds:.2f} s: {why}")
    for seconds in interrupts.moments(2 * n, 6.0, seed):
        if why := interrupts.fault(interrupts.starting(seconds)):
            bad.append(f"starting, after {seconds:.2f} s: {why}")
    what = f"Ctrl-C {len(codes)} times in {len(lines)} long commands, {2 * n} times in a process that starts"
    return what, bad, f"{sum(code != 0 for code in codes)} interrupted with one line, the others had ended"


def hunger(world: made.World, n: int, seed: int) -> Line:
    draw, bad, ends = random.Random(seed), [], []
    for _ in range(n):
        name, room = draw.choice(list(starving.HUNGRY)), draw.randrange(6, 80)
        ended = starving.starved(starving.HUNGRY[name], room)
        ends.append(ended.code)
        if why := starving.fault(ended):
            bad.append(f"{name}, {room} MB: {why}")
    return f"{n} commands given 6 to 80 MB", bad, f"{ends.count(1)} said so in one line, {ends.count(0)} had enough"


PARTS: dict[str, tuple[Callable[[made.World, int, int], Line], int]] = {
    "kills": (killing, 100),
    "disks": (full_disks, 60),
    "damages": (damages, 5),
    "shared": (shared, 20),
    "ctrl-c": (ctrl_c, 5),
    "memory": (hunger, 30),
    "arguments": (command_lines, 10_000),
    "requests": (requests, 10_000),
}
"""What is tried, and how often."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--share", type=float, default=1.0, help="of the full numbers")
    options.add_argument("--only", choices=list(PARTS), help="one part; nothing is recorded")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    torch.set_num_threads(1)
    claims = []
    with tempfile.TemporaryDirectory() as folder:
        world = made.make(Path(folder))
        for name, (run, full) in PARTS.items():
            if given.only not in (None, name):
                continue
            what, bad, note = run(world, max(1, round(full * given.share)), given.seed)
            claims.append(Claim(what, len(bad), 0, note))
            print(f"{what}: {len(bad)} ended badly; {note}", flush=True)
            print("\n\n".join(bad), file=sys.stderr, flush=True)
    if given.only is None and given.share == 1.0:
        record("Faults and abuse", claims, how="The ratio column counts what ended badly.")
    sys.exit(any(claim.ratio for claim in claims))


if __name__ == "__main__":
    main()
