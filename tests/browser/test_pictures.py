"""The script that makes the documentation's pictures makes those that are shown."""

from __future__ import annotations

import re

from tests.browser.pictures import IMAGES, PICTURES
from tests.browser.printed_pictures import PAGES


def test_every_picture_of_the_documentation_can_be_made_again():
    pages = [*IMAGES.parent.glob("**/*.md"), IMAGES.parents[1] / "README.md"]
    shown = {name for page in pages for name in re.findall(r"\]\(\S*images/([\w-]+)\.png\)", page.read_text("utf-8"))}
    assert shown == {*PICTURES, *PAGES} == {path.stem for path in IMAGES.iterdir()}
