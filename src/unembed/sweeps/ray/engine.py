"""The Ray engine of a sweep: each worker (a Ray actor) has the model, and idle workers get the next job.

This process cuts the corpus into shards, assigns jobs and stores copies of results; the workers run the model and merge
results. When a worker dies, with its process or its machine, its job returns to the queue and another worker is
started; the others continue. The result depends only on the corpus and the shard size (see `merge_tree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unembed.corpus.corpus import Corpus
from unembed.corpus.token_stream import TokenizedCorpus
from unembed.corpus.whole_windows import WholeWindows
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.results import format_setting
from unembed.sweeps.checkpoint import CheckpointInterval, identity_of, load, prepare
from unembed.sweeps.fast_kernels import Fast
from unembed.sweeps.progress import ProgressCallback
from unembed.sweeps.ray.driver import SweepDriver, parts_of
from unembed.sweeps.ray.model_transfer import serialize_model
from unembed.sweeps.ray.shards import cut_shards, restore_reducers, start_reducers
from unembed.sweeps.ray.workers import Ray, WorkerPool, import_ray
from unembed.sweeps.reducers.reducer import Reducer


def run(
    lm: Decoder,
    corpus: Corpus | TokenizedCorpus | WholeWindows,
    reducers: Sequence[Reducer],
    settings: Ray,
    checkpoint: Path | None,
    every: CheckpointInterval,
    tokens_per_batch: int,
    progress: ProgressCallback | None,
    fast: Fast | None = None,
) -> list[Any]:
    """Run a sweep on a Ray cluster; see `unembed.sweep`."""
    ray = import_ray()
    identity: dict[str, str] = {}
    if checkpoint is not None:
        prepare(checkpoint)
        identity = identity_of(lm, corpus, reducers, tokens_per_batch) | {
            "fast": str(fast),
            "engine": f"ray, {settings.batches_per_shard} a shard",
        }
    start_reducers(lm, reducers)  # a reducer that cannot be used with this model fails here, before any worker starts
    saved = None if checkpoint is None else load(checkpoint, identity)
    parts = [] if saved is None else parts_of(saved)
    if saved is None or not saved.finished:
        started_here = not ray.is_initialized()
        if started_here:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="WARNING")
        pool: WorkerPool | None = None
        try:
            model = None if settings.open_model else ray.put(serialize_model(lm))
            arguments = (model, settings, list(reducers), fast)
            pool = WorkerPool(ray, settings, settings.workers or _max_workers(ray, settings), arguments)
            batches = corpus.batches(lm, tokens_per_batch)
            shards = cut_shards(batches, settings.batches_per_shard, skip=sum(map(len, parts)))
            at_risk = settings.shards_at_risk
            parts = SweepDriver(pool, shards, parts, at_risk, checkpoint, every, progress, identity).run()
        finally:
            if pool is not None:
                pool.shutdown()
            if started_here:
                ray.shutdown()
    merged = start_reducers(lm, reducers) if not parts else restore_reducers(lm, reducers, parts[0].states or ())
    return [reducer.result() for reducer in merged]


def _max_workers(ray: Any, settings: Ray) -> int:
    """Return the number of workers for which the cluster has enough CPUs and GPUs; refuse if there is none."""
    resources = ray.cluster_resources()
    n = int(resources.get("CPU", 0) // settings.cpus)
    if settings.gpus:
        n = min(n, int(resources.get("GPU", 0) / settings.gpus))
    if n < 1:
        raise Unsupported(
            "engine='ray'",
            why=f"the cluster has {format_setting(resources.get('CPU', 0))} CPUs and "
            f"{format_setting(resources.get('GPU', 0))} GPUs, and a worker "
            f"needs {settings.cpus} and {format_setting(settings.gpus)}",
            instead="Use fewer cpus and gpus for each worker",
        )
    return n
