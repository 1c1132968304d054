"""Shapes are checked at run time in all tests; every family comes as one tiny model, opened once."""

from __future__ import annotations

import gc
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
USER_CACHE = os.environ.get("UNEMBED_CACHE")
"""Where `unembed models get` put the models that tests marked `real` open; None for the platform's cache folder."""
# The ready index of `make run` would put triggers into every trace: tests that want one build it.
os.environ["UNEMBED_CACHE"] = f"{tempfile.gettempdir()}/unembed-tests-{os.getpid()}"
os.environ["UNEMBED_READY_INDEX"] = "never"

from tests import run_time_checks

run_time_checks.install("unembed")

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("ci")

from tests.families import D_VOCAB, FAMILIES, build
from tests.models.decoder_classes import tiny_model
from unembed.language_model import LanguageModel, load


def pytest_collection_finish() -> None:
    """Keep the garbage collector from visiting all imported modules again and again: a sixth of the suite's time."""
    gc.collect()
    gc.freeze()


_SHARED: list[tuple[torch.Tensor, int]] = []
"""The parameters of the models of `tiny` and `tiny_kind`, with PyTorch's count of in-place changes since."""


@cache
def tiny(name: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """The tiny model of a family, opened once a session. A test that changes it fails: `build` gives one of its own."""
    lm = _shared(build(name, dtype))
    lm.name = name
    return lm


@cache
def tiny_kind(model_type: str) -> LanguageModel:
    """The tiny model of a model type of transformers, opened once a session, for tests that leave it as it is."""
    return _shared(tiny_model(model_type))


def _shared(model: Any) -> LanguageModel:
    lm = load(model)
    _SHARED.extend((parameter, parameter._version) for parameter in lm.hf.parameters())
    return lm


@pytest.fixture(autouse=True)
def shared_models_are_unchanged() -> Iterator[None]:
    """A test that writes into a shared model changes what the tests after it measure, so it fails itself."""
    yield
    changed = sum(parameter._version != version for parameter, version in _SHARED)
    if changed:  # so that only this test fails
        _SHARED[:] = [(parameter, parameter._version) for parameter, _ in _SHARED]
    assert not changed, f"the test changed {changed} parameters of shared models; use load(build(name)) instead"


@pytest.fixture(params=list(FAMILIES))
def any_lm(request: pytest.FixtureRequest) -> LanguageModel:
    """Every family in turn."""
    return tiny(request.param)


@pytest.fixture
def tokens() -> torch.Tensor:
    """Two rows of nine random tokens, none of them padding."""
    return torch.randint(3, D_VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
