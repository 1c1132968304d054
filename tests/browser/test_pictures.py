"""The script that makes the documentation's pictures makes those that are shown."""

from __future__ import annotations

import re

from tests.browser.pictures import IMAGES, SCREENS, names
from tests.browser.printed_pictures import PAGES


def test_every_picture_of_the_documentation_can_be_made_again():
    pages = [*IMAGES.parent.glob("**/*.md"), IMAGES.parents[1] / "README.md"]
    linked = r"\]\(\S*images/([\w-]+\.(?:png|webp))\)"
    shown = {name for page in pages for name in re.findall(linked, page.read_text("utf-8"))}
    made = {f"{name}.webp" for screen in SCREENS for name, *_ in names(screen)} | {f"{name}.png" for name in PAGES}
    assert shown == made == {path.name for path in IMAGES.iterdir()}
