"""The page and its modules, as they are served."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable

from unembed import __version__
from unembed.server.assets import STATIC, STYLES, first_modules

ROOT = f"/static/{__version__}"
IMPORT = re.compile(r'(?:from |import\()"(\.[^"]+)"')


def modules() -> dict[str, str]:
    """Every module of the page by its path below the folder."""
    return {file.relative_to(STATIC).as_posix(): file.read_text() for file in STATIC.rglob("*.js")}


def imported(name: str, text: str) -> list[str]:
    """The paths of the modules that a module imports."""
    folder = (STATIC / name).parent
    return [(folder / path).resolve().relative_to(STATIC.resolve()).as_posix() for path in IMPORT.findall(text)]


def test_every_import_leads_to_a_module_and_every_module_is_reached():
    found = modules()
    reached, waiting = set(), ["js/main.js", "js/islands/notebook.js"]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += imported(name, found[name])
    assert reached == found.keys()


def test_the_page_preloads_all_that_the_first_screen_imports(client):
    page = client.get("/").text
    assert "{{" not in page and f'src="{ROOT.lstrip("/")}/js/main.js"' in page
    assert re.findall(r'modulepreload" href="([^"]+)"', page) == [f"{ROOT.lstrip('/')}/{m}" for m in first_modules()]
    found, needed, waiting = modules(), set(), ["js/main.js", "js/screens/trace.js"]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            text = re.sub(r'import\("[^"]+"\)', "", found[name])  # the screens, which are imported when they open
            waiting += imported(name, text)
    assert needed == set(first_modules())


def test_the_page_links_every_style_sheet_in_order(client):
    linked = re.findall(r'stylesheet" href="([^"]+)"', client.get("/").text)
    assert linked == [f"{ROOT.lstrip('/')}/css/{name}.css" for name in STYLES]
    assert {file.stem for file in STATIC.rglob("*.css")} == set(STYLES)
    for address in linked:
        assert client.get(f"/{address}").headers["content-type"].startswith("text/css")


def test_files_are_served_as_they_are_and_revalidated(client):
    answer = client.get(f"{ROOT}/js/main.js")
    assert answer.text == (STATIC / "js/main.js").read_text() and answer.headers["cache-control"] == "no-cache"
    assert "javascript" in answer.headers["content-type"]
    assert client.get(f"{ROOT}/js/main.js", headers={"if-none-match": answer.headers["etag"]}).status_code == 304


def test_every_text_and_icon_that_a_module_names_is_in_its_file():
    texts, icons = json.loads((STATIC / "about.json").read_text()), (STATIC / "icons.svg").read_text()
    script = "".join(modules().values())
    named = set(re.findall(r'(?:about\(|written\(h\([^()]*\), )"(.*?)"\)', script))
    assert len(named) > 8 and named | {"tour", "keys", "help"} == set(texts)
    steps = re.search(r"const STEPS = (\[.*?\]);", script)
    assert steps and len(json.loads(steps[1])) == len(texts["tour"])
    drawn = set(re.findall(r'icon(?:Button)?\("(\w+)"', script))
    drawn |= set(re.findall(r'\["(\w+)", "\w+", \(\) => import', script))
    assert drawn == set(re.findall(r'id="(\w+)"', icons))


def weight(names: Iterable[str]) -> int:
    """Bytes of some files, each compressed on its own, as a browser gets them."""
    return sum(len(gzip.compress((STATIC / name).read_bytes(), 1)) for name in names)


def test_no_screen_needs_more_than_135_kb():
    """The page with its style sheets, and the modules of the screen that is open: others come when they are opened."""
    found = modules()
    screens = [name for name in found if name.startswith("js/screens/")]
    start = {*first_modules(), *(f"css/{name}.css" for name in STYLES)}
    for name in screens:
        needed, waiting = set(start), [name]
        while waiting:
            if (one := waiting.pop()) not in needed:
                needed.add(one)
                waiting += imported(one, re.sub(r'import\("[^"]+"\)', "", found[one]))
        assert weight(needed) < 135_000, name
    assert len(screens) > 30 and weight(start) < 110_000


OTHER_WORDS = """
    What each layer would say|race to the top|account of a logit|place of the answer|KL to the end
    holds the final answer|settled|dropped|length of the value|raw basis|final norm left out|active in the corpus
    What sets it off|How large it usually is|What people call it|how sure|^Keep$|Classes its tokens share|Values like it
    Group them|They part at|^points$|change, points|^Between$|^For the target$|^Against$|Said twice|^the strongest$
    Where it reads|Who are you|random vectors|would say something else|Layers are not seconds|^place$
"""
"""Labels of earlier versions of the page, for which the field has a word."""


def shown_texts() -> list[tuple[str, str]]:
    """Every string literal of the page's modules without comments, and every text of its files, with the file."""
    literal = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
    found = []
    for name, script in modules().items():
        code = re.sub(r"/\*.*?\*/|(?m:(?<!:)//.*$)", "", script, flags=re.S)
        found += [(name, match[1] or match[2] or "") for match in literal.finditer(code)]
    return found + [(name, (STATIC / name).read_text()) for name in ("about.json", "index.html")]


def test_labels_are_words_of_the_field():
    texts = shown_texts()
    assert len(texts) > 2000, "the literals are found"
    words = [part.strip() for line in OTHER_WORDS.strip().splitlines() for part in line.split("|")]
    other = re.compile("|".join(f"(?-i:{word})" if word[0] == "^" else rf"\b{word}\b" for word in words), re.I)
    assert not [(name, text) for name, text in texts if other.search(text)]
