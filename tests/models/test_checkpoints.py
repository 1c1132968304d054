"""The checkpoints of one training, from folders and from a hub."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from unembed.errors import InvalidInput, ModelUnavailable
from unembed.models.checkpoints import Checkpoint, find_checkpoints, training_counts


def _folders(parent: Path, *names: str) -> str:
    for name in names:
        (parent / name).mkdir(parents=True)
        (parent / name / "config.json").write_text("{}")
    return str(parent)


def test_folders_are_in_the_order_of_training(tmp_path: Path) -> None:
    model = _folders(tmp_path, "step1000", "step20", "step300", "final")
    (tmp_path / "step5").mkdir()  # no model in it
    found = find_checkpoints(model, "step*")
    assert [one.name for one in found] == ["step20", "step300", "step1000"]
    assert found[0] == Checkpoint("step20", str(tmp_path / "step20"))
    assert [one.name for one in find_checkpoints(model, "step[23]*")] == ["step20", "step300"]


def test_revisions_of_a_hub_are_its_branches_and_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    refs = SimpleNamespace(
        branches=[SimpleNamespace(name=name) for name in ("main", *(f"step{n}" for n in range(0, 154_000, 1000)))],
        tags=[SimpleNamespace(name="step512")],
    )
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(list_repo_refs=lambda _: refs))
    found = find_checkpoints("EleutherAI/pythia-160m", "step*")
    assert len(found) == 155
    assert [one.name for one in found[:3]] == ["step0", "step512", "step1000"]
    assert found[-1] == Checkpoint("step153000", "EleutherAI/pythia-160m", "step153000")


def test_a_hub_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise OSError("no route to host\nmore")

    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(list_repo_refs=fail))
    with pytest.raises(ModelUnavailable, match="no route to host") as error:
        find_checkpoints("someone/model", "step*")
    assert "\n" not in str(error.value)
    with pytest.raises(ModelUnavailable, match="--offline forbids the network"):
        find_checkpoints("someone/model", "step*", offline=True)


def test_a_path_without_a_folder_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="there is no such folder"):
        find_checkpoints(str(tmp_path / "none"), "step*")


@pytest.mark.parametrize(("pattern", "number"), [("step2", 1), ("epoch*", 0)])
def test_less_than_a_series_is_refused(tmp_path: Path, pattern: str, number: int) -> None:
    model = _folders(tmp_path, "step1", "step2")
    with pytest.raises(InvalidInput, match=f"{number} of the 2 folders"):
        find_checkpoints(model, pattern)


def test_numbers_are_read_from_the_ends_of_names() -> None:
    assert training_counts(["run-step1000", "step20"]) == ("steps", [1000, 20])
    assert training_counts(["tokens-100", "tokens_7"]) == ("tokens", [100, 7])


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["step1", "final"], "does not end with a number"),
        (["step1", "tokens2"], "some names state steps and others tokens"),
        (["step1", "step01"], "two names state the same number"),
    ],
)
def test_names_without_one_number_each_are_refused(names: list[str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        training_counts(names)
