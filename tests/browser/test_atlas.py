"""The atlas: thousands of points on a canvas, chosen, searched, brushed and coloured; a link restores it."""

from __future__ import annotations

import gzip
import json
import re
from urllib.parse import unquote

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import address
from unembed.gallery import Gallery, memory_descriptions
from unembed.index.atlas import AtlasView, Island, atlas_matches, atlas_view
from unembed.models.shipped_models import shipped_folder
from unembed.server.packed_atlas import pack


@pytest.fixture(scope="session")
def atlas(lm, index):
    return atlas_view(lm, index)


def ready(page: Page) -> None:
    """Wait until the map is drawn."""
    expect(page.get_by_text(re.compile(r"[\d,]+ values \(FFN neurons\) on \d+ islands"))).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^words"))).to_be_visible()


def canvas(page: Page):
    return page.get_by_role("application", name=re.compile(r"Map of \d+ values"))


def places(page: Page, atlas) -> list[tuple[float, float]]:
    """Where the points of the whole map are drawn, in pixels of the canvas."""
    box = canvas(page).bounding_box()
    scale = min(box["width"], box["height"]) * 0.96
    middle = (box["width"] / 2, box["height"] / 2)
    return [
        ((x - 0.5) * scale + middle[0], (y - 0.5) * scale + middle[1]) for x, y in zip(atlas.x, atlas.y, strict=True)
    ]


def name(atlas, point: int) -> str:
    return f"L{atlas.layer[point]}M{atlas.index[point]}"


def test_a_click_on_a_point_opens_its_memory_and_a_link_restores_it(opened, atlas):
    page = opened("#/atlas")
    ready(page)
    point = atlas.best[0].point
    x, y = places(page, atlas)[point]
    canvas(page).hover(position={"x": x, "y": y})
    expect(page.locator("#map-pop")).to_contain_text(name(atlas, point))
    expect(page.locator("#map-pop")).to_contain_text(atlas.best[0].description)
    canvas(page).click(position={"x": x, "y": y})
    chosen = page.get_by_role("region", name="Selected memory")
    expect(chosen.get_by_role("link", name=name(atlas, point))).to_be_visible()
    expect(chosen).to_contain_text(f"layer {atlas.layer[point]} · {atlas.kinds[atlas.kind[point]]}")
    page.get_by_role("radio", name="Layer", exact=True).click()
    restored = opened(address(page).split("/", 3)[3])
    ready_by_layer = restored.get_by_role("button", name=re.compile("^Layer 5"))
    expect(ready_by_layer).to_be_visible()
    expect(
        restored.get_by_role("region", name="Selected memory").get_by_role("link", name=name(atlas, point))
    ).to_be_visible()
    restored.get_by_role("button", name="Open its card").click()
    expect(restored.get_by_role("heading", level=1)).to_contain_text(name(atlas, point))


def test_a_link_to_a_memory_at_the_edge_of_the_map_shows_it_in_the_middle(opened, atlas):
    point = max(range(len(atlas.x)), key=lambda i: abs(atlas.x[i] - 0.5) + abs(atlas.y[i] - 0.5))
    page = opened(f"#/atlas?memory={name(atlas, point)}")
    ready(page)
    canvas(page).hover()  # its middle
    expect(page.locator("#map-pop")).to_contain_text(name(atlas, point))


def test_a_search_lists_all_that_the_library_finds_and_fades_the_rest(opened, atlas, lm, index):
    expected = atlas_matches(lm, index, "king", memory_descriptions(lm, index.path))
    page = opened("#/atlas")
    ready(page)
    whole = _ink(page)
    box = page.get_by_role("textbox", name="Search the map")
    box.fill("king")
    box.press("Enter")
    expect(page.get_by_text(f"{expected.total:,} found", exact=True)).to_be_visible()
    chosen = page.get_by_role("region", name="Selected memory")
    expect(chosen.get_by_text(f"{expected.total:,} memories")).to_be_visible()
    listed = chosen.locator("td button.tok").all_inner_texts()
    assert listed == [f"L{layer}M{i}" for layer, i in expected.memories][:60]
    page.wait_for_timeout(300)
    assert _ink(page) < whole / 3, "what does not match is faint"
    chosen.get_by_role("button", name="Switch all off").click()
    expect(page.get_by_role("region", name="Edits")).to_be_visible()
    assert unquote(address(page)).count(":scale:0@all") == min(expected.total, 200)


def test_a_brush_selects_exactly_the_points_inside(opened, atlas):
    page = opened("#/atlas")
    ready(page)
    page.get_by_role("radio", name="Select").click()
    island = max(range(len(atlas.islands)), key=lambda i: atlas.islands[i].size)
    members = [i for i, c in enumerate(atlas.cluster) if c == island]
    at = places(page, atlas)
    corners = [at[i] for i in members]
    left, right = min(x for x, _ in corners) - 3, max(x for x, _ in corners) + 3
    top, bottom = min(y for _, y in corners) - 3, max(y for _, y in corners) + 3
    inside = [i for i, (x, y) in enumerate(at) if left <= x <= right and top <= y <= bottom]
    box = canvas(page).bounding_box()
    page.mouse.move(box["x"] + left, box["y"] + top)
    page.mouse.down()
    page.mouse.move(box["x"] + right, box["y"] + bottom, steps=4)
    page.mouse.up()
    expect(
        page.get_by_role("region", name="Selected memory").get_by_text(f"{len(inside)} memories", exact=True)
    ).to_be_visible()
    assert set(members) <= set(inside)


def test_the_keyboard_goes_from_value_to_value_and_opens_its_card(opened, atlas):
    page = opened("#/atlas")
    ready(page)
    canvas(page).focus()
    page.keyboard.press("ArrowRight")
    chosen = page.get_by_role("region", name="Selected memory")
    first = chosen.get_by_role("link").first.inner_text()
    page.keyboard.press("ArrowRight")
    expect(chosen.get_by_role("link").first).not_to_have_text(first)
    at = {name(atlas, i): i for i in range(len(atlas.x))}
    second = chosen.get_by_role("link").first.inner_text()
    assert atlas.x[at[second]] > atlas.x[at[first]]
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(second)


def test_kinds_are_counted_and_can_be_hidden(opened, atlas):
    page = opened("#/atlas")
    ready(page)
    for number, kind in enumerate(atlas.kinds):
        count = atlas.kind.count(number)
        expect(page.get_by_role("button", name=re.compile(f"^{kind} {count:,}$"))).to_have_attribute(
            "aria-pressed", "true"
        )
    before = _ink(page)
    page.get_by_role("button", name=re.compile("^word pieces")).click()
    page.wait_for_timeout(300)
    assert _ink(page) < before
    page.get_by_role("button", name="Clear").click()
    page.wait_for_timeout(300)
    assert _ink(page) == pytest.approx(before, rel=0.02)


def test_a_map_of_fewer_points_than_values_states_it(opened, monkeypatch, lm):
    from tests.browser.conftest import Served
    from unembed.index import atlas as module
    from unembed.memories.value_map import value_map

    monkeypatch.setattr(module, "value_map", lambda lm, **settings: value_map(lm, 600, **settings))
    view = atlas_view(lm)
    shown = set(zip(view.layer, view.index, strict=True))
    missing = next(i for i in range(lm.d_mlp) if (3, i) not in shown)
    served = Served(lm)
    try:
        page = opened(f"#/atlas?memory=L3M{missing}", at=served.address)
        n_values = lm.n_layers * lm.d_mlp
        sample = (
            f"A sample: {len(shown)} of {n_values:,} values, evenly spaced over all layers and with the best memories"
        )
        expect(page.get_by_text(sample)).to_be_visible()
        expect(page.get_by_text(f"L3M{missing} is not on the map")).to_be_visible()
        assert page.get_by_role("radio", name="Activation density").count() == 0, "there is no index"
    finally:
        served.stop()


LARGE, LAYERS, PER_LAYER = 50_000, 40, 25_000


def large_atlas() -> AtlasView:
    """A map of a model with a million values: 50,000 of them on 160 islands, made up."""
    n_islands = 160
    draws = np.random.default_rng(0)
    island = draws.integers(n_islands, size=LARGE)
    centres = np.column_stack(np.divmod(np.arange(n_islands), 13)) / 13 + 0.04
    angle, radius = draws.uniform(0, 2 * np.pi, LARGE), 0.03 * np.sqrt(draws.uniform(size=LARGE))
    position = centres[island] + radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    layer, number = np.divmod(np.linspace(0, LAYERS * PER_LAYER - 1, LARGE).round().astype(int), PER_LAYER)
    return AtlasView(
        schema="unembed.atlas/1",
        n_values=LAYERS * PER_LAYER,
        layer=layer.tolist(),
        index=number.tolist(),
        x=position[:, 0].round(5).tolist(),
        y=position[:, 1].round(5).tolist(),
        cluster=island.tolist(),
        density=None,
        kind=draws.integers(2, size=LARGE).tolist(),
        kinds=["words", "names"],
        top=draws.integers(50, size=(LARGE, 4)).tolist(),
        tokens={i: f" token{i}" for i in range(50)},
        islands=[
            Island(x, y, 0.031, int((island == i).sum()), [f" token{i % 50}"])
            for i, (x, y) in enumerate(centres.tolist())
        ],
        best=[],
        provenance={},
    )


def test_a_map_of_a_million_values_states_its_sample_and_finds_its_points(opened):
    sample = large_atlas()
    shown, missing = [7, 31_234], [3, 2]
    assert missing[1] not in {i for layer, i in zip(sample.layer, sample.index, strict=True) if layer == 3}
    found = [[sample.layer[i], sample.index[i]] for i in shown]
    page = opened("#/search")
    packed = pack(sample)
    lines = "".join(
        json.dumps(line) + "\n" for line in ({"kind": "atlas", "version": packed.version}, {"kind": "done"})
    )
    page.route("**/api/v1/atlas", lambda route: route.fulfill(body=lines, content_type="application/x-ndjson"))
    page.route(f"**/api/v1/atlas/maps/{packed.version}", lambda route: route.fulfill(body=gzip.decompress(packed.body)))
    page.route("**/api/v1/memories/*/*?top=8", lambda route: route.fulfill(json={"promoted": []}))
    matches = {"query": "q", "memories": [*found, missing], "total": 3, "notes": []}
    page.route("**/api/v1/atlas/matches?*", lambda route: route.fulfill(json=matches))
    page.get_by_role("navigation", name="Screens").get_by_role("link", name="Atlas").click()
    stated = "A sample: 50,000 of 1,000,000 values, evenly spaced over all layers, on 160 islands"
    expect(page.get_by_text(stated)).to_be_visible()
    for number, kind in enumerate(sample.kinds):
        expect(page.get_by_role("button", name=f"{kind} {sample.kind.count(number):,}")).to_be_visible()
    assert _ink(page) > 0.05, "the points are drawn"
    box = page.get_by_role("textbox", name="Search the map")
    box.fill("q")
    box.press("Enter")
    expect(page.get_by_text("3 found, 1 of them not on the map")).to_be_visible()
    chosen = page.get_by_role("region", name="Selected memory")
    names = [f"L{layer}M{i}" for layer, i in found]
    assert chosen.locator("td button.tok").all_inner_texts() == names
    chosen.get_by_role("button", name=names[1]).click()
    expect(chosen.get_by_role("link", name=names[1])).to_be_visible()
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("application", name="Map of 50000 values").focus()
    page.keyboard.press("ArrowRight" if sample.x[shown[0]] > sample.x[shown[1]] else "ArrowLeft")
    expect(chosen.get_by_role("link", name=names[0])).to_be_visible()  # the keys go through what was found


def test_what_the_atlas_saves_is_what_it_shows(opened, atlas, tmp_path):
    page = opened("#/atlas")
    ready(page)
    page.get_by_role("button", name="Copy or export").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Save data as JSON").click()
    saved = json.loads(download.value.path().read_text())
    # The page gets positions as whole steps, so they are rounded.
    assert saved["x"] == pytest.approx(atlas.x, abs=2e-3) and saved["saved_from"]["model"] == "wren"
    page.get_by_role("button", name="Download this figure").first.click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Save figure as SVG").click()
    assert "data:image/png;base64," in download.value.path().read_text(), "the canvas is in the drawing"


def _ink(page: Page) -> float:
    """The share of the canvas's pixels with a saturated colour: points, and neither the sea nor faint ones."""
    return page.evaluate(
        """() => {
          const canvas = document.querySelector(".map-canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          let n = 0;
          for (let i = 0; i < data.length; i += 4) {
            const rgb = [data[i], data[i + 1], data[i + 2]];
            if (data[i + 3] > 200 && Math.max(...rgb) - Math.min(...rgb) > 40) n++;
          }
          return n / (data.length / 4);
        }"""
    )


def test_the_best_memories_listed_are_those_that_the_command_lists_first(opened, atlas):
    page = opened("#/atlas")
    ready(page)
    listed = page.get_by_role("region", name="Best memories").get_by_role("listitem").locator("b").all_inner_texts()
    assert listed == [row.name for row in Gallery.load(shipped_folder("wren") / "memories.json").varied().first(30)]
