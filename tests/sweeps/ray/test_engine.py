"""Ray's engine gives the local engine's result, also when a node dies mid-way. Two nodes simulated on this machine."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sweeps.recorder import lettered, texts
from tests.sweeps.test_checkpoint import same
from unembed.corpus import open_corpus
from unembed.corpus.segments import Batch
from unembed.errors import NotFinite
from unembed.index import Index
from unembed.sweeps import ActiveFraction, CheckpointInterval, MeanVariance, Ray, TopTriggers, sweep
from unembed.sweeps.ray import workers

# A busy machine needs longer to start Ray's processes than Ray waits by itself.
os.environ.setdefault("RAY_agent_register_timeout_ms", "300000")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402


class Paused(ActiveFraction):
    """Active shares that leave a sign of every batch and take their time."""

    def __init__(self, folder: str, pause: float, fails: bool = False, waits: str | None = None) -> None:
        super().__init__()
        self.folder, self.pause, self.fails, self.waits = folder, pause, fails, waits

    def update(self, batch: Batch) -> None:
        super().update(batch)
        node = ray.get_runtime_context().get_node_id()
        if node == self.waits:
            others_sign(Path(self.folder), node)
        (Path(self.folder) / f"{batch.number}.{node}.{time.monotonic_ns()}").touch()
        if self.fails:
            raise NotFinite(f"batch {batch.number}")
        time.sleep(self.pause)


def others_sign(folder: Path, node: str, seconds: float = 300) -> None:
    """Wait until another node has done a batch; however slowly, it must, if work is handed to it at all."""
    end = time.monotonic() + seconds
    while all(name == node for _, name in signs(folder)):
        if time.monotonic() > end:
            raise NotFinite("all work stays on one node")
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster():
    workers.import_ray()
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80_000_000})
    nodes.add_node(num_cpus=1, object_store_memory=80_000_000)
    ray.init(address=nodes.address, include_dashboard=False, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


CORPUS = texts(25)


def swept(folder: Path, pause: float, waits: str | None = None, **options: Any) -> list[Any]:
    todo = [TopTriggers(6), Paused(str(folder), pause, waits=waits), MeanVariance()]
    return sweep(lettered("gpt2"), open_corpus(CORPUS), todo, tokens_per_batch=150, **options)


def expected() -> list[Any]:
    return sweep(lettered("gpt2"), open_corpus(CORPUS), [TopTriggers(6), ActiveFraction()], tokens_per_batch=150)


def signs(folder: Path) -> list[tuple[int, str]]:
    return [(int(name[0]), name[1]) for name in (p.name.split(".") for p in folder.iterdir())]


def test_an_index_is_the_same_bytes(cluster, tmp_path: Path) -> None:
    built = [
        Index.build(lettered("llama"), CORPUS, tmp_path / name, 5, engine, tokens_per_batch=150)
        for name, engine in (("local", "local"), ("ray", Ray(batches_per_shard=2)))
    ]
    statistics = (
        "tables/statistics.parquet"  # means are sums in another order: equal to the last digits, not the last bit
    )
    sums = [{e.path: e.sha256 for e in index.manifest.files if e.path != statistics} for index in built]
    assert sums[0] == sums[1] and "triggers/negative/position.npy" in sums[0]
    ask = "SELECT layer, index, active, mean, variance, largest FROM statistics ORDER BY layer, index"
    local, distributed = (index.sql(ask).columns for index in built)
    assert local["active"] == distributed["active"] and local["largest"] == distributed["largest"]
    for name in ("mean", "variance"):
        assert list(local[name]) == pytest.approx(list(distributed[name]), rel=1e-5)


def test_an_error_of_a_reducer_is_raised_as_it_is(cluster, tmp_path: Path) -> None:
    with pytest.raises(NotFinite, match="batch"):
        sweep(lettered("gpt2"), ["abc"], [Paused(str(tmp_path), 0, fails=True)], engine=Ray(workers=1))


def test_work_that_stays_on_one_node_is_detected(tmp_path: Path) -> None:
    (tmp_path / "0.head.1").touch()
    with pytest.raises(NotFinite, match="one node"):
        others_sign(tmp_path, "head", seconds=0.1)
    (tmp_path / "1.other.2").touch()
    others_sign(tmp_path, "head")


def test_a_node_killed_mid_way_changes_nothing(cluster, tmp_path: Path) -> None:
    (tmp_path / "signs").mkdir()
    other = cluster.list_all_nodes()[-1]
    head = ray.get_runtime_context().get_node_id()

    def kill() -> None:
        others_sign(tmp_path / "signs", head)
        cluster.remove_node(other, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    settings, file = Ray(workers=2, batches_per_shard=3), tmp_path / "sweep.pt"
    # The head does no batch before the other node has done one: that both work is no luck of scheduling.
    found = swept(tmp_path / "signs", 0.2, head, engine=settings, checkpoint=file, every=CheckpointInterval(batches=3))
    killer.join()
    done = signs(tmp_path / "signs")
    n_batches = sum(1 for _ in open_corpus(CORPUS).batches(lettered("gpt2"), 150))
    assert len({node for _, node in done}) == 2 and {number for number, _ in done} == set(range(n_batches))
    assert all(same(a, b) for a, b in zip(found, expected(), strict=False))
    # The finished checkpoint answers without any worker.
    again = swept(tmp_path / "signs", 0.2, head, engine=settings, checkpoint=file)
    assert all(same(a, b) for a, b in zip(again, found, strict=True))
    # And with one node left, the same bits in all that is summed, too.
    alone = swept(tmp_path / "signs", 0.0, engine=Ray(workers=1, batches_per_shard=3))
    assert all(same(a, b) for a, b in zip(alone, found, strict=True))
