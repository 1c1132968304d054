"""The mean of two models' weights."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from tools.mean_weights import main


@pytest.mark.parametrize(("arguments", "share"), [([], 0.5), (["--share", "0.6"], 0.6)])
def test_the_folder_has_the_mean_of_each_tensor_in_half_precision(tmp_path, arguments, share):
    draw = torch.Generator().manual_seed(0)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        weights = {"a": torch.randn(3, 4, generator=draw).half(), "b": torch.randn(5, generator=draw).half()}
        save_file(weights, folder / "model.safetensors")
    (folders[1] / "config.json").write_text("{}")
    assert main([*map(str, folders), str(tmp_path / "out"), *arguments]) == 0
    first, second, mean = (load_file(folder / "model.safetensors") for folder in (*folders, tmp_path / "out"))
    for name in ("a", "b"):
        assert mean[name].dtype == torch.float16
        expected = (1 - share) * first[name].double() + share * second[name].double()
        torch.testing.assert_close(mean[name].double(), expected, atol=2**-21, rtol=2**-11)
    assert (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("arguments", [[], ["first", "second", "out", "--share", "1.5"]])
def test_a_missing_folder_or_a_share_above_1_is_a_usage_error(arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


def test_models_of_other_sizes_and_missing_ones_are_refused_in_one_line(tmp_path, capsys):
    folders = [tmp_path / "first", tmp_path / "second"]
    for n, folder in enumerate(folders):
        folder.mkdir()
        save_file({"a": torch.zeros(3 + n)}, folder / "model.safetensors")
    assert main([*map(str, folders), str(tmp_path / "out")]) == 1
    assert main([str(folders[0]), str(tmp_path / "nothing"), str(tmp_path / "out")]) == 1
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "model.safetensors").write_bytes(b"half")
    assert main([str(folders[0]), str(damaged), str(tmp_path / "out")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and "other names or shapes" in lines[0] and "nothing" in lines[1]
    assert not (tmp_path / "out").exists()
