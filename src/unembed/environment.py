"""Check which packages, devices and data files that unembed uses are present, and how to install missing ones."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from unembed.results import bytes_in_words, format_number

State = Literal["ok", "missing", "too old or new", "absent"]
"""`missing` and `too old or new` are faults, with a command that repairs them; `absent`: an optional package or device
is not installed."""


@dataclass(frozen=True)
class Finding:
    """One package, device or file that unembed uses.

    Attributes:
        what: the package, device or file.
        found: its version, size or name; empty if it is not present.
        state: whether it can be used.
        used_for: what does not work without it.
        command: the command that installs or repairs it; empty if nothing needs to be done.
    """

    what: str
    found: str
    state: State
    used_for: str
    command: str = ""


_USES = {
    "": "everything",
    "ray": "sweeps on several machines",
    "notebook": "widgets in Jupyter",
    "nlp": "early exit by classifiers",
    "data": "corpora by their Hugging Face name",
    "big": "models spread over devices, memory and disk",
    "gguf": "GGUF files, unembed models get",
    "mcp": "tools for agents, unembed mcp",
}
"""Optional dependencies (extras of the package) and their uses; the empty name stands for required packages."""
_WORK = {
    "dev": "make test, make lint",
    "browser": "make browser",
    "docs": "make docs",
    "parity": "make parity",
}
"""Extras for developers of unembed and their uses. Each is one `Finding`, because it contains many packages."""


def check_environment() -> list[Finding]:
    """Return a `Finding` for each package, device and file. Imports torch only if its build can use a GPU."""
    return [*_python(), *_packages(), *_extras_for_work(), *_devices(), *_shipped()]


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    fine = sys.version_info >= (3, 11)
    command = "" if fine else "install Python 3.11 or newer"
    yield Finding(
        "Python", f"{version} ({platform.machine()})", "ok" if fine else "too old or new", "everything", command
    )


def _packages() -> Iterator[Finding]:
    """Yield a `Finding` for each required package and each package of the extras in `_USES`."""
    for text in metadata.requires("unembed") or []:
        requirement = Requirement(text)
        extra = next((name for name in _USES if name and _needed_by(requirement, name)), "")
        if requirement.marker is not None and not extra:
            continue  # a package for development only, or for another operating system
        wanted = (
            f"pip install 'unembed[{extra}]'" if extra else f"pip install '{requirement.name}{requirement.specifier}'"
        )
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield Finding(requirement.name, "", "absent" if extra else "missing", _USES[extra], wanted)
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        command = "" if fits else f"pip install '{requirement.name}{requirement.specifier}'"
        yield Finding(requirement.name, version, "ok" if fits else "too old or new", _USES[extra], command)


def _extras_for_work() -> Iterator[Finding]:
    for extra, use in _WORK.items():
        wanted = _whole_extra(extra)
        if not wanted:
            continue
        there = sum(_fits(requirement) for requirement in wanted)
        state: State = "ok" if there == len(wanted) else "absent"
        command = "" if state == "ok" else f"pip install 'unembed[{extra}]'"
        yield Finding(f"[{extra}]", f"{there} of {len(wanted)} packages", state, use, command)


def _whole_extra(extra: str) -> list[Requirement]:
    """Return the requirements of an extra, including those of other extras that it contains."""
    needed = [r for r in map(Requirement, metadata.requires("unembed") or []) if _needed_by(r, extra)]
    own = [r for r in needed if r.name != "unembed"]
    return own + [r for other in needed if other.name == "unembed" for name in other.extras for r in _whole_extra(name)]


def _fits(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def _needed_by(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _devices() -> Iterator[Finding]:
    yield Finding("processor", f"{os.cpu_count()} cores", "ok", "everything")
    if (memory := _memory()) is not None:
        yield Finding(
            "memory", f"{format_number(memory / 2**30, decimals=1)} GiB", "ok", "4 bytes a parameter in float32"
        )
    try:
        if sys.platform != "darwin" and metadata.version("torch").endswith("+cpu"):
            yield Finding(
                "GPU", "", "absent", "large models"
            )  # a build of torch for CPUs only; importing it would take seconds
            return
        import torch
    except ImportError:
        return
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        found = f"{properties.name}, {format_number(properties.total_memory / 2**30, decimals=0)} GiB"
        yield Finding(f"cuda:{number}", found, "ok", "--device cuda")
    if torch.backends.mps.is_available():
        yield Finding("mps", "Apple GPU", "ok", "--device mps")
    if not torch.cuda.device_count() and not torch.backends.mps.is_available():
        yield Finding("GPU", "", "absent", "large models")


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _shipped() -> Iterator[Finding]:
    """Yield findings about the shipped model weights and text, and about the free disk space."""
    from unembed.models.shipped_models import SHIPPED, shipped_folder

    again = "pip install --force-reinstall unembed"
    for name in SHIPPED:
        weights = Path(str(shipped_folder(name))) / "model.safetensors"
        there = weights.is_file()
        found = bytes_in_words(weights.stat().st_size) if there else ""
        yield Finding(name, found, "ok" if there else "missing", f"--model {name}", "" if there else again)
    text = Path(str(resources.files("unembed.corpus") / "shipped" / "wikitext" / "valid.txt"))
    there = text.is_file()
    found = bytes_in_words(text.stat().st_size) if there else ""
    yield Finding("WikiText", found, "ok" if there else "missing", "the default corpus", "" if there else again)
    yield Finding(
        "disk",
        f"{format_number(shutil.disk_usage('.').free / 2**30, decimals=1)} GiB free here",
        "ok",
        "indexes and reports",
    )
