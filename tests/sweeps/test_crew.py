"""The driver of the Ray engine over actors that die when told: nothing is lost, nothing is counted twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sweeps.recorder import lettered, texts
from tests.sweeps.test_checkpoint import same
from unembed.corpus import open_corpus
from unembed.errors import CheckpointFault, Unsupported
from unembed.sweeps import ActiveFraction, Every, Ray, TopTriggers, ray_engine, sweep


class RayError(Exception):
    """Ray's word for a worker that is gone."""


class RayTaskError(RayError):
    """Ray's word for an error inside a worker."""


class FakeRay:
    """As much of Ray as the engine uses, in this process; every `mortal`-th piece of work kills its actor."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, mortal: int) -> None:
        self.mortal, self.works, self.deaths, self.living = mortal, 0, 0, 0

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **_: Any) -> Callable[[type], Any]:
        def decorate(kind: type) -> Any:
            return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *given: self.actor(kind, given)))

        return decorate

    def actor(self, kind: type, given: tuple[Any, ...]) -> Any:
        self.living += 1
        worker = kind(*given)
        return SimpleNamespace(
            ready=SimpleNamespace(remote=lambda: (object(), worker.ready)),
            work=SimpleNamespace(remote=lambda shard: (object(), lambda: self.work(worker, shard))),
        )

    def work(self, worker: Any, shard: Any) -> Any:
        self.works += 1
        if self.mortal and self.works % self.mortal == 0:
            self.deaths += 1
            raise RayError("the actor died")
        return worker.work(shard)

    def wait(self, waiting: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return waiting[-num_returns:], waiting[:-num_returns]  # the latest first: out of order on purpose

    def get(self, answer: Any) -> Any:
        return answer[1]()

    def kill(self, actor: Any) -> None:
        self.living -= 1


@pytest.mark.parametrize("mortal", [0, 2, 3])
def test_lost_workers_change_nothing(mortal: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeRay(mortal)
    monkeypatch.setattr(ray_engine, "imported", lambda: fake)
    lm, corpus = lettered("gpt2"), open_corpus(texts(20))
    todo = lambda: [TopTriggers(6), ActiveFraction()]  # noqa: E731
    settings, file = Ray(batches_per_shard=2), tmp_path / "sweep.pt"
    options: dict[str, Any] = {"tokens_per_batch": 150, "engine": settings, "checkpoint": file}
    found = sweep(lm, corpus, todo(), every=Every(batches=2), **options)
    assert (fake.deaths > 1) == bool(mortal)
    local = sweep(lm, corpus, todo(), tokens_per_batch=150)
    assert all(same(a, b) for a, b in zip(found, local, strict=True))
    before = fake.works
    again = sweep(lm, corpus, todo(), **options)  # a finished checkpoint asks no worker
    assert fake.works == before and all(same(a, b) for a, b in zip(again, found, strict=True))
    with pytest.raises(CheckpointFault, match="engine"):
        sweep(lm, corpus, todo(), tokens_per_batch=150, engine=Ray(batches_per_shard=3), checkpoint=file)


def test_a_cluster_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "imported", lambda: FakeRay(0))
    with pytest.raises(Unsupported, match="3 CPUs and 0 GPUs"):
        sweep(lettered("gpt2"), ["abc"], [TopTriggers(5)], engine=Ray(cpus=4))
