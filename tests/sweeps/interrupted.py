"""A sweep run as a program of its own, slowly, so that a test can kill it: folder, seconds a batch."""

import sys
import time
from pathlib import Path
from typing import Any

from tests.sweeps.recorder import lettered, texts
from unembed.corpus import open_corpus
from unembed.corpus.segments import Batch
from unembed.sweeps import ActiveFraction, CheckpointInterval, MeanVariance, Reducer, TopTriggers, sweep


class Slow(ActiveFraction):
    """Active shares, with a pause after each batch."""

    pause = 0.0

    def update(self, batch: Batch) -> None:
        super().update(batch)
        time.sleep(self.pause)


def reducers() -> list[Reducer]:
    return [TopTriggers(6), MeanVariance(), Slow()]


def run(folder: Path) -> list[Any]:
    return sweep(
        lettered("gpt2"),
        open_corpus(texts(30)),
        reducers(),
        checkpoint=folder / "sweep.pt",
        every=CheckpointInterval(batches=2),
        tokens_per_batch=150,
    )


if __name__ == "__main__":
    Slow.pause = float(sys.argv[2])
    run(Path(sys.argv[1]))
