"""The page's one script and style sheet are its folder's, and the bundled example is what the library says today."""

from __future__ import annotations

import gzip
import json
import re

from tests.server.closeness import close
from unembed import __version__
from unembed.server import example
from unembed.server.assets import STATIC, script, style
from unembed.server.bundle import joined


def test_every_module_of_the_folder_is_in_the_script():
    text = script()
    names = {f.relative_to(STATIC).as_posix() for f in STATIC.rglob("*.js")} - {"js/islands/notebook.js"}
    found = re.findall(r'\$modules\["(.*?)"\] =', joined(lambda name: (STATIC / name).read_text(), "js/main.js"))
    assert set(found) == names
    assert len(set(re.findall(r"\$modules\[(\d+)\]=", text))) == len(found) == text.count("$modules[") - 1
    assert not re.search(r"^(import|export) ", text, re.MULTILINE)
    names = re.compile(r"[.#-][a-z][\w-]+")
    for file in (STATIC / "app.css", STATIC / "islands.css"):
        assert set(names.findall(re.sub(r"/\*.*?\*/", "", file.read_text(), flags=re.DOTALL))) <= set(
            names.findall(style())
        )


def test_modules_are_joined_in_whatever_way_they_import():
    files = {
        "a/main.js": 'import { one as uno, two } from "./b.js";\nimport * as c from "../c.js";\ngo(uno, two, c);\n',
        "a/b.js": "export const one = 1;\nexport async function two() {}\n",
        "c.js": 'export { three };\nconst three = () => import("./a/b.js");\n',
    }
    text = joined(files.__getitem__, "a/main.js")
    assert 'const { one: uno, two } = $load("a/b.js");' in text and 'const c = $load("c.js");' in text
    assert "return { one, two };" in text and "return { three };" in text
    assert 'Promise.resolve($load("a/b.js"))' in text


def test_a_module_stands_after_those_that_it_imports():
    text = script()
    places = {name: i for i, name in enumerate(re.findall(r"\$modules\[(\d+)\]=", text))}
    assert len(places) > 30
    for name, body in zip(places, re.split(r"\$modules\[(?=\d)", text)[1:], strict=True):
        for needed in re.findall(r"const[^=]*=\$load\((\d+)\)", body):
            assert places[needed] <= places[name], (name, needed)


def test_every_text_and_icon_that_the_script_names_is_in_its_file():
    texts, icons = json.loads((STATIC / "about.json").read_text()), (STATIC / "icons.svg").read_text()
    named = set(re.findall(r'(?:about\(|written\(h\([^()]*\),)"(.*?)"\)', script()))
    assert len(named) > 8 and named | {"tour", "keys", "help"} == set(texts)
    steps = re.search(r"const STEPS=\[(.*?)\];", script())
    assert steps and len(json.loads(f"[{steps[1]}]")) == len(texts["tour"])
    drawn = set(re.findall(r'icon(?:Button)?\("(\w+)"', script())) | set(
        re.findall(r'\["(\w+)","\w+",\(\)=>Promise', script())
    )
    assert len(drawn) == 11 and drawn == set(re.findall(r'id="(\w+)"', icons))


def test_what_several_modules_import_is_taken_once_and_own_names_go_before_it():
    files = {
        "main.js": 'import { one, two } from "./b.js";\nimport { one as uno } from "./c.js";\n'
        'import { other } from "./d.js";\n',
        "b.js": 'export { one };\nimport { one } from "./c.js";\nexport const two = 2;\n',
        "c.js": "export const one = 1;\n",
        "d.js": 'import { two } from "./b.js";\nconst one = 0;\nexport const other = one + two;\n',
    }
    text = joined(files.__getitem__, "main.js")
    assert re.findall(r"^const .*load.*;$", text, re.MULTILINE)[1:] == [
        'const { one } = $load("c.js");',
        'const { two } = $load("b.js");',
        'const { one: uno } = $load("c.js");',
        'const { other } = $load("d.js");',
    ]


def test_files_are_compressed_once_and_known_again(client):
    where = f"/static/{__version__}/js/page.js"
    answer = client.get(where)
    assert answer.headers["content-encoding"] == "gzip" and answer.text == script()
    assert client.get(where, headers={"if-none-match": answer.headers["etag"]}).status_code == 304
    plain = client.get(where, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.text == script()
    page = client.get("/").text
    assert where.lstrip("/") in page and "{{" not in page


def test_templates_stay_as_they_are_and_none_holds_another():
    served = script()
    for path in (STATIC / "js").rglob("*.js"):
        for line in re.sub(r"^ *(?:/\*\*.*?\*/|//[^\n]*)$", "", path.read_text(), flags=re.M | re.S).splitlines():
            for template in line.split("`")[1::2]:
                assert template.count("${") <= template.count("}"), f"{path.name}: {template}"
                assert path.name == "notebook.js" or f"`{template}`" in served


def test_the_page_weighs_less_than_60_kb():
    assert sum(len(gzip.compress(text.encode(), 9)) for text in (script(), style())) < 60_000


def test_the_example_is_what_the_library_says(wren):
    kept, now = json.loads(example.FILE.read_text()), example.example(wren)
    for found in (kept, now):
        del found["trace"]["provenance"], found["position"]["provenance"]
    close(kept, now, rel=1e-3, abs_=1e-4)  # five digits are kept
