"""`unembed fit-lens`: parts that are merged, formats of files, and a fit that goes on after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.sweeps.recorder import lettered, texts
from unembed.jacobian import JacobianLens, cached_lens, lens_path, open_lens
from unembed.jacobian.fit_answer import fit_lens_answer
from unembed.models.fingerprint import sampled_fingerprint


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.jsonl"
    path.write_text("".join(f'{{"text": "{one}"}}\n'.replace("\n", " ") + "\n" for one in texts(40)))
    return str(path)


def fitted(corpus: str, out: Path, contexts: int, first: int = 0) -> JacobianLens:
    lm = lettered("llama")
    fit_lens_answer(lm, out=out, corpus=corpus, contexts=contexts, context_length=10, first_window=first)
    return open_lens(out)


def test_parts_are_merged_and_checked_on_text_behind_them(corpus: str, tmp_path: Path) -> None:
    whole = fitted(corpus, tmp_path / "whole.lens", 6)
    parts = [tmp_path / "a.lens", tmp_path / "b.lens"]
    fitted(corpus, parts[0], 3)
    fitted(corpus, parts[1], 3, first=3)
    lm, out = lettered("llama"), tmp_path / "merged.lens"
    table = fit_lens_answer(lm, merge=parts, out=out, corpus=corpus)
    merged = open_lens(out)
    torch.testing.assert_close(merged.before.float(), whole.before.float(), rtol=2e-3, atol=2e-3)
    assert merged.before.dtype == torch.float16 and merged.check is not None and whole.check is not None
    torch.testing.assert_close(merged.check.kl, whole.check.kl, rtol=2e-2, atol=2e-3)
    assert list(table["kl"]) == merged.check.kl.tolist()


def test_a_published_file_becomes_the_lens_that_is_kept(corpus: str, tmp_path: Path) -> None:
    lens = fitted(corpus, tmp_path / "a.pt", 4)
    assert lens.middle is None and set(torch.load(tmp_path / "a.pt", weights_only=True)) >= {"J", "n_prompts"}
    lm = lettered("llama")
    assert cached_lens(lm) is None
    fit_lens_answer(lm, merge=[tmp_path / "a.pt"], corpus=corpus)
    kept = cached_lens(lm)
    assert kept is not None and kept.contexts == 4 and kept.check is not None


def test_an_interrupted_fit_goes_on(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from unembed.corpus.segments import Batch
    from unembed.jacobian.sums import JacobianSums
    from unembed.sweeps import checkpoint

    lm, fed, update = lettered("llama"), list[int](), JacobianSums.update

    def stopped(sums: JacobianSums, batch: Batch) -> None:
        if fed == [0, 1, 2]:
            fed.append(-1)
            raise KeyboardInterrupt
        fed.append(batch.number)
        update(sums, batch)

    monkeypatch.setattr(JacobianSums, "update", stopped)
    monkeypatch.setattr(checkpoint.CheckpointInterval, "is_due", lambda *_: True)
    how = {"corpus": corpus, "contexts": 5, "context_length": 10}
    with pytest.raises(KeyboardInterrupt):
        fit_lens_answer(lm, **how)
    path = lens_path(sampled_fingerprint(lm))
    saved = path.with_name(f"{path.name}.progress")
    assert saved.exists() and not path.exists()
    fit_lens_answer(lm, **how)
    assert fed == [0, 1, 2, -1, 3, 4] and path.exists() and not saved.exists()
