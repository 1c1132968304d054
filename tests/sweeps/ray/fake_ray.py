"""As much of Ray as the engine uses, in this process, with actors that die and objects that vanish when told."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """Ray's word for whatever it failed at, a worker that is gone among it."""


class RayTaskError(RayError):
    """Ray's word for an error inside a worker."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class ObjectLostError(RayError):
    """Ray's word for an object that no machine holds any more."""


class Reference:
    """What stands for an object: how to make it, then it, then perhaps that it is gone."""

    def __init__(self, make: Callable[[], Any], *, safe: bool = False) -> None:
        self.make, self.safe, self.gone = make, safe, False

    def get(self) -> Any:
        if self.gone:
            raise ObjectLostError
        value = self.make()
        self.make = lambda: value
        return value


class FakeRay:
    """Every `mortal`-th job kills its actor; what every `leaky`-th made is gone at once, five times in all."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, ObjectLostError=ObjectLostError)

    def __init__(self, mortal: int = 0, leaky: int = 0, startup_failures: int = 0) -> None:
        self.mortal, self.leaky, self.startup_failures = mortal, leaky, startup_failures
        self.in_order = False
        """Whether jobs are done first come, first served, or the latest first."""
        self.jobs = self.deaths = self.leaks = self.living = self.merges = 0

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def put(self, value: Any) -> Reference:
        return Reference(lambda: value, safe=True)

    def remote(self, **_: Any) -> Callable[[type], Any]:
        def decorate(kind: type) -> Any:
            return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: self.actor(kind)))

        return decorate

    def actor(self, kind: type) -> Any:
        self.living += 1
        worker: Any = kind()

        def job(name: str) -> Any:
            return SimpleNamespace(
                options=lambda num_returns: SimpleNamespace(remote=lambda *given: self.job(worker, name, given))
            )

        return SimpleNamespace(
            open=SimpleNamespace(remote=lambda *given: Reference(lambda: self.opened(worker, given))),
            read=job("read"),
            merge=job("merge"),
        )

    def opened(self, worker: Any, given: tuple[Any, ...]) -> Any:
        if self.startup_failures:
            self.startup_failures -= 1
            raise RayError("the actor died")
        return self.inside(lambda: worker.open(*(g.get() if isinstance(g, Reference) else g for g in given)))

    def inside(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except Exception as error:
            raise RayTaskError(error) from error

    def job(self, worker: Any, name: str, given: tuple[Any, ...]) -> tuple[Reference, Reference]:
        states = Reference(lambda: (answer.get(), answer.states)[1])

        def run() -> Any:
            self.jobs += 1
            if self.mortal and self.jobs % self.mortal == 0:
                self.deaths += 1
                raise RayError("the actor died")
            self.merges += name == "merge"
            seen, answer.states = self.inside(
                lambda: getattr(worker, name)(*(g.get() if isinstance(g, Reference) else g for g in given))
            )
            if self.leaky and self.leaks < 5 and self.jobs % self.leaky == 0:
                self.leaks += 1
                states.gone = True
            return seen

        answer: Any = Reference(run)
        return answer, states

    def wait(self, waiting: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        first = waiting[0] if self.in_order else waiting[-1]
        return [first], [other for other in waiting if other is not first]

    def get(self, reference: Reference) -> Any:
        return reference.get()

    def kill(self, actor: Any) -> None:
        self.living -= 1
