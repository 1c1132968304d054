"""The tiny model of the tests of the index."""

from tests.index.conftest import folders, lm

__all__ = ["folders", "lm"]
