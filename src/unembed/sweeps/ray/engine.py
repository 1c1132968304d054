"""The Ray engine: one model in each actor, shards handed out as they are done, a lost worker's share done again.

This process cuts the corpus, hands jobs out and keeps copies of what is done; all reading and all joining happens in
the actors. An actor that dies, with its process or its machine, gives its job back to the queue, and another is asked
for; meanwhile the others go on. The result depends on the corpus and the shard size only (see `merge_tree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unembed.corpus.corpus import Corpus
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.sweeps.checkpoint import identity, load, prepare
from unembed.sweeps.fast_kernels import Fast
from unembed.sweeps.local import Every
from unembed.sweeps.progress import Report
from unembed.sweeps.ray.driver import Drive, parts_of
from unembed.sweeps.ray.model_transfer import packed
from unembed.sweeps.ray.shards import begun, restored, shards
from unembed.sweeps.ray.workers import Crew, Ray, imported
from unembed.sweeps.reducers.reducer import Reducer


def run(
    lm: Decoder,
    corpus: Corpus,
    reducers: Sequence[Reducer],
    settings: Ray,
    checkpoint: Path | None,
    every: Every,
    tokens_per_batch: int,
    progress: Report | None,
    fast: Fast | None = None,
) -> list[Any]:
    """See `unembed.sweep`."""
    ray = imported()
    who: dict[str, str] = {}
    if checkpoint is not None:
        prepare(checkpoint)
        who = identity(lm, corpus, reducers, tokens_per_batch) | {
            "fast": str(fast),
            "engine": f"ray, {settings.batches_per_shard} a shard",
        }
    begun(lm, reducers)  # what a reducer cannot do with this model is said here, before any worker is asked for
    saved = None if checkpoint is None else load(checkpoint, who)
    parts = [] if saved is None else parts_of(saved)
    if saved is None or not saved.finished:
        started_here = not ray.is_initialized()
        if started_here:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="WARNING")
        crew: Crew | None = None
        try:
            sent = None if settings.open_model else ray.put(packed(lm))
            given = (sent, settings, list(reducers), fast)
            crew = Crew(ray, settings, settings.workers or _room(ray, settings), given)
            coming = shards(corpus.batches(lm, tokens_per_batch), settings.batches_per_shard, sum(map(len, parts)))
            parts = Drive(crew, coming, parts, settings.shards_at_risk, checkpoint, every, progress, who).finish()
        finally:
            if crew is not None:
                crew.leave()
            if started_here:
                ray.shutdown()
    whole = begun(lm, reducers) if not parts else restored(lm, reducers, parts[0].held or ())
    return [reducer.result() for reducer in whole]


def _room(ray: Any, settings: Ray) -> int:
    """How many workers the cluster has room for.

    Raises:
        Unsupported: none.
    """
    has = ray.cluster_resources()
    n = int(has.get("CPU", 0) // settings.cpus)
    if settings.gpus:
        n = min(n, int(has.get("GPU", 0) / settings.gpus))
    if n < 1:
        raise Unsupported(
            "engine='ray'",
            why=f"the cluster has {has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs, and a worker wants "
            f"{settings.cpus} and {settings.gpus:g}",
            instead="Ask for less",
        )
    return n
