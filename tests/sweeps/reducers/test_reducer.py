"""What every reducer promises: merged parts equal the whole."""

from __future__ import annotations

import pytest
import torch

from tests.sweeps.recorder import lettered, texts
from unembed.corpus import open_corpus
from unembed.sweeps import ActiveFraction, MeanVariance
from unembed.sweeps.forward import feed_reducers

MAKERS = {
    "moments": lambda: MeanVariance(),
    "active": lambda: ActiveFraction(),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_merged_parts_equal_the_whole_also_through_saved_states(make) -> None:
    lm = lettered("opt")
    whole, *parts = [make() for _ in range(3)]
    for reducer in (whole, *parts):
        reducer.start(lm)
    for i, batch in enumerate(open_corpus(texts(15)).batches(lm, 200)):
        with feed_reducers(lm, [whole, parts[i % 2]]) as feed:
            feed(batch)
    taken = make()
    taken.start(lm)
    taken.load_state(parts[1].state())
    parts[0].merge(taken)
    a, b = whole.state(), parts[0].state()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(torch.as_tensor(a[name]), torch.as_tensor(b[name]), rtol=1e-9, atol=1e-12)
