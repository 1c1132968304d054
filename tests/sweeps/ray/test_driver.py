"""The Ray engine over actors that die and objects that vanish when told: nothing is lost, nothing is counted twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sweeps.ray.fake_ray import FakeRay
from tests.sweeps.recorder import lettered, texts
from tests.sweeps.test_checkpoint import same
from unembed.corpus import open_corpus
from unembed.corpus.segments import Batch
from unembed.errors import CheckpointFault, ExtraMissing, InvalidInput, NotFinite, PointMissing, Unsupported
from unembed.language_model import LanguageModel
from unembed.sweeps import ActiveFraction, CheckpointInterval, MeanVariance, Ray, Reducer, TopTriggers, sweep
from unembed.sweeps.ray import engine as ray_engine


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch):
    def fake(**how: int) -> FakeRay:
        made = FakeRay(**how)
        monkeypatch.setattr(ray_engine, "import_ray", lambda: made)
        return made

    return fake


def opened() -> LanguageModel:
    return lettered("gpt2")


def todo() -> list[Reducer]:
    return [TopTriggers(6), ActiveFraction(), MeanVariance()]


def swept(**options: Any) -> list[Any]:
    return sweep(lettered("gpt2"), open_corpus(texts(9)), todo(), tokens_per_batch=150, **options)


@pytest.mark.parametrize(
    ("how", "at_risk"),
    [({"mortal": 2}, 8), ({"mortal": 3}, 1), ({"leaky": 3}, 8), ({"leaky": 2}, 2), ({"mortal": 4, "leaky": 3}, 4)],
    ids=str,
)
def test_lost_workers_and_lost_objects_change_nothing(faked, how: dict[str, int], at_risk: int, tmp_path: Path) -> None:
    whole = (
        swept(engine=(settings := Ray(batches_per_shard=1, shards_at_risk=at_risk, open_model=opened)))
        if faked()
        else []
    )
    fake, file = faked(**how), tmp_path / "sweep.pt"
    found = swept(engine=settings, checkpoint=file, every=CheckpointInterval(batches=2))
    assert (fake.deaths > 1) == ("mortal" in how) and (fake.leaks > 1) == ("leaky" in how)
    assert all(same(a, b) for a, b in zip(found, whole, strict=True))
    local = swept()
    assert same(found[0], local[0]) and same(found[1], local[1])
    before = fake.jobs
    again = swept(engine=settings, checkpoint=file)  # a finished checkpoint asks no worker
    assert fake.jobs == before and all(same(a, b) for a, b in zip(again, found, strict=True))
    with pytest.raises(CheckpointFault, match="engine"):
        swept(engine=Ray(batches_per_shard=3), checkpoint=file)


def test_the_workers_join_the_build(faked) -> None:
    fake = faked()
    swept(engine=Ray(batches_per_shard=1))
    shards = fake.jobs - fake.merges
    assert shards > 6 and fake.merges == shards - 1


class Stopped(Exception):
    """Stands for whatever ends the driving process."""


@pytest.mark.parametrize("leaky", [0, 3])
def test_it_resumes_after_a_stop_at_any_save(
    faked, leaky: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unembed.sweeps.ray import driver

    settings, file = Ray(batches_per_shard=1, open_model=opened), tmp_path / "sweep.pt"
    fake = faked(leaky=leaky)
    fake.in_order = True
    whole = swept(engine=settings)
    alone, stops, jobs = fake.jobs, 0, fake.jobs
    keep = driver.save

    def stopping(*given: Any) -> None:
        keep(*given)
        if not given[1].finished:
            raise Stopped

    monkeypatch.setattr(driver, "save", stopping)
    while True:
        try:
            found = swept(engine=settings, checkpoint=file, every=CheckpointInterval(batches=2))
            break
        except Stopped:
            stops += 1
    assert stops > 3
    assert all(same(a, b) for a, b in zip(found, whole, strict=True))
    if not leaky:
        assert fake.jobs - jobs < 2 * alone, "what was saved is not done again"


def test_a_ray_cluster_that_is_too_small_is_refused(faked) -> None:
    faked()
    with pytest.raises(Unsupported, match="3 CPUs and 0 GPUs"):
        sweep(lettered("gpt2"), ["abc"], [TopTriggers(5)], engine=Ray(cpus=4))


def test_work_that_kills_every_worker_ends_the_sweep(faked) -> None:
    fake = faked(mortal=1)
    with pytest.raises(Unsupported, match=r"9 workers died on the same job\. Use fewer workers"):
        swept(engine=Ray(workers=3, open_model=opened))
    assert fake.living == fake.deaths, "every dead actor is asked for again, and the living are let go"


def test_workers_that_die_while_they_open_the_model(faked) -> None:
    faked(startup_failures=7)
    assert same(swept(engine=Ray(workers=3))[0], swept()[0])
    faked(startup_failures=1000)
    with pytest.raises(Unsupported, match="9 workers in a row died before their model was open"):
        swept(engine=Ray(workers=3))


class Failing(ActiveFraction):
    """Fails at its second batch."""

    def update(self, batch: Batch) -> None:
        if batch.number == 1:
            raise NotFinite(f"batch {batch.number}")


def failing_open() -> Any:
    raise InvalidInput("this model")


def test_errors_inside_a_worker_come_as_they_were_raised(faked) -> None:
    fake = faked()
    with pytest.raises(NotFinite, match="batch 1"):
        sweep(lettered("gpt2"), texts(20), [Failing()], engine="ray", tokens_per_batch=150)
    with pytest.raises(InvalidInput, match="this model"):
        swept(engine=Ray(open_model=failing_open))
    living = fake.living
    with pytest.raises(PointMissing):
        sweep(lettered("gpt2"), ["abc"], [MeanVariance("gate")], engine="ray")
    assert fake.living == living, "what cannot work is told before a worker is asked for"


def test_inconsistent_settings_are_refused() -> None:
    bad: list[dict[str, Any]] = [
        {"workers": 0}, {"cpus": 0}, {"batches_per_shard": 0}, {"gpus": -1.0}, {"shards_at_risk": 3},
    ]  # fmt: skip
    for options in bad:
        with pytest.raises(InvalidInput):
            Ray(**options)


def test_without_ray_the_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExtraMissing, match=r"unembed\[ray\]"):
        sweep(lettered("gpt2"), ["abc"], [TopTriggers(5)], engine="ray")
