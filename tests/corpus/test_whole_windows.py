"""Windows of one length: which are left out, and which batches a sweep reads."""

from __future__ import annotations

from tests.sweeps.recorder import lettered, texts
from unembed.corpus import WholeWindows
from unembed.corpus.windows import windows_of


def test_windows_are_those_of_the_text_without_shorter_ones() -> None:
    lm, given = lettered("llama"), texts(40)
    whole = [s.tokens.tolist() for s in windows_of(given, 10, overlap=0).segments(lm) if len(s) == 10]
    assert 10 < len(whole) < len(list(windows_of(given, 10, overlap=0).segments(lm)))
    found = WholeWindows.of(lm, given, 10, 3, 5)
    assert [one.tokens.tolist() for one in found.segments] == whole[3:8]
    batches = list(found.part(1).batches(lm))
    assert [batch.tokens[0].tolist() for batch in batches] == whole[4:8]
    assert [batch.number for batch in batches] == [0, 1, 2, 3] and batches[-1].share == 1
    assert len(WholeWindows.of(lm, given, 10, len(whole) - 2, 5).segments) == 2


def test_fingerprints_tell_texts_and_parts_apart() -> None:
    lm, given = lettered("llama"), texts(40)
    found = WholeWindows.of(lm, given, 10, 0, 6)
    others = (
        found.part(0, 3),
        found.part(3),
        WholeWindows.of(lm, texts(41), 10, 0, 6),
        WholeWindows.of(lm, given, 9, 0, 6),
    )
    assert len({one.fingerprint for one in (found, *others)}) == 5
    assert found.part(3, 5).fingerprint == WholeWindows.of(lm, given, 10, 3, 2).fingerprint
