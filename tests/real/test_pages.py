"""What the pages show of the real model is what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.package.shown import PAGES, blocks, drift, fresh, is_real

SHOWN = [page for page in PAGES if any(is_real(what) for what, _ in blocks(page.read_text(encoding="utf-8")))]


@pytest.mark.usefixtures("named", "smollm2_lens")
@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.name)
def test_a_page_shows_what_the_real_model_prints(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    only = "\n".join(f"<!-- shown: {what} -->\n```text\n{body}```\n" for what, body in blocks(text) if is_real(what))
    for (what, body), now in zip(blocks(only), fresh(only), strict=True):
        assert drift(body, now) == [], f"`{what}`: run `make readme`"
