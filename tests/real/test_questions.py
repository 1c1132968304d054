"""The questions about SmolLM2: their numbers are those of transformers alone, and the tools answer them."""

from pathlib import Path

import pytest

from tests.benchmarks.test_questions import ALL, BY_ID, difference, per_cent, without, wrong
from unembed import LanguageModel

CAPITAL = "The capital of France is"
pytestmark = pytest.mark.real


@pytest.mark.usefixtures("named")
def test_the_tools_answer_the_questions_about_smollm2(tmp_path: Path, smollm2: LanguageModel) -> None:
    assert float(BY_ID["capital-probability"].answer) == pytest.approx(per_cent(smollm2, CAPITAL, " Paris"), abs=0.1)
    whole = difference(smollm2, CAPITAL, " Paris", " London")
    assert float(BY_ID["capital-difference"].answer) == pytest.approx(whole, abs=1e-3)
    with without(smollm2.hf.model.layers[23].self_attn.o_proj, slice(4 * 64, 5 * 64)):
        left = difference(smollm2, CAPITAL, " Paris", " London")
    assert float(BY_ID["capital-without"].answer) == pytest.approx(left, abs=1e-3)
    assert not wrong([one for one in ALL if one.model == "smollm2"], tmp_path)
