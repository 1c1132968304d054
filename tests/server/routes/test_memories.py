"""Triggers, neighbours, search: the index's own answers."""

from __future__ import annotations

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import unembed
from tests.server.conftest import TOKEN
from unembed.errors import NotOneToken
from unembed.gallery import memory_descriptions
from unembed.index.clusters import FILE, stored_clusters
from unembed.index.memory_search import understand
from unembed.server.app import create
from unembed.server.model_queue import Superseded
from unembed.server.state import ServerState


def test_triggers_are_those_of_the_index(indexed, index):
    found = indexed.get("/api/v1/memories/5/955/triggers?top=4&context=6").json()
    assert found == index.triggers(5, 955, 4, context=6).to_dict()
    first = found["rows"][0]["coefficient"]
    assert first == max(row["coefficient"] for row in found["rows"])


def test_neighbours_are_those_of_the_index(indexed, index):
    asked = {"memory": "L3M5", "top": 3}
    assert indexed.post("/api/v1/analyses/index-similar", json=asked).json() == index.similar(3, 5, 3).to_dict()


def test_without_an_index_the_pane_explains_how_to_build_one(client):
    for path in ("memories/3/5/triggers", "labels"):
        answer = client.get(f"/api/v1/{path}")
        assert answer.status_code == 409 and "index build" in answer.json()["fix"]


def test_search_finds_all_values_whose_list_holds_the_token(client, indexed, index, wren):
    pages = [{"q": '"·year"', "top": 200, "offset": offset} for offset in range(0, 1200, 200)]
    with_index, without = (
        [hit for page in pages for hit in one.get("/api/v1/memories/search", params=page).json()["hits"]]
        for one in (indexed, client)
    )
    found, first = ([(h["layer"], h["index"]) for h in hits] for hits in (with_index, without))
    token = wren.single_token(" year")
    tokens, _ = index.readings
    expected = {tuple(divmod(int(row), wren.d_mlp)) for row in (tokens == token).any(axis=1).nonzero()[0]}
    assert expected and expected == set(found[1000:]) | (expected & set(first))
    assert found[:1000] == first and all(h["why"] == "promotes" and h["found"] == " year" for h in with_index)


def test_search_for_what_suppresses(client, wren):
    found = client.get("/api/v1/memories/search", params={"q": '-"year" layer:2', "top": 200}).json()
    forms = [wren.single_token(text) for text in ("year", " year", " Year", "Year") if _is_token(wren, text)]
    every = torch.cat([wren.weights.W_out[n] @ wren.weights.W_U for n in range(wren.n_layers)])
    deviations = every[:, forms] / every.std(dim=1, correction=0, keepdim=True)  # in those of the value's scores
    lowest = deviations.amin(dim=1).argsort()[:1000].tolist()
    expected = [divmod(row, 1024) for row in lowest if row // 1024 == 2]
    assert [(h["layer"], h["index"]) for h in found["hits"]] == expected[:200] and found["total"] == len(expected)


def test_search_in_triggers_and_names(indexed, index):
    hits = indexed.get("/api/v1/memories/search", params={"q": 'ctx:"capital of"'}).json()["hits"]
    assert hits and all("capital of" in h["found"].replace("[", "").replace("]", "") for h in hits)
    index.add_label(2, 8, "Cities of Europe", author="ann")
    hits = indexed.get("/api/v1/memories/search", params={"q": "name:cities"}).json()["hits"]
    assert (hits[0]["layer"], hits[0]["index"], hits[0]["found"]) == (2, 8, "Cities of Europe")


def test_a_word_that_is_not_a_token_is_explained(client):
    found = client.get("/api/v1/memories/search", params={"q": "antidisestablishmentarianism"}).json()
    assert found["hits"] == [] and "no form of it is a single token" in found["notes"][0]
    assert len(found["tokens"]["antidisestablishmentarianism"]) > 1


def test_a_query_is_parsed():
    found = understand('breakfast -dinner "·Paris" ctx:"capital of" name:city layer:3-5 L4M17')
    assert (found.promote, found.suppress, found.exact) == (["breakfast"], ["dinner"], [" Paris"])
    assert (found.context, found.names, found.layers, found.memory) == (["capital of"], ["city"], (3, 5), (4, 17))
    assert understand("").promote == [] and understand('"" ctx: -').promote == ["ctx:", "-"]


def test_concepts_are_the_table_of_the_library(client, wren):
    found = client.post("/api/v1/analyses/concepts", json={"named": ["L3M5"]}).json()
    assert found == unembed.value_concepts(wren, [(3, 5)]).to_table().to_dict() and found["rows"]


def test_contexts_end_where_the_key_fires_with_the_stored_coefficient(indexed, index, wren):
    found = indexed.get("/api/v1/memories/5/955/contexts?top=8").json()
    rows = list(index.triggers(5, 955, 8).rows())
    assert found["stored"] == 25 and len(found["contexts"]) == len(rows)
    for one, row in zip(found["contexts"], rows, strict=True):
        assert one["coefficient"] == row["coefficient"]
        assert one["coefficients"][-1] == pytest.approx(row["coefficient"], rel=1e-4)
        assert "".join(one["tokens"]) == row["prefix"] + row["token"] and one["next_token"] == row["next_token"]
        m = wren.run(row["prefix"] + row["token"], "coefficients").at("coefficients", 5)[0, :, 955]
        assert one["coefficients"] == pytest.approx(m.tolist(), rel=1e-3, abs=1e-5)


def test_bands_hold_every_sampled_token_that_fires(indexed, index):
    found = indexed.get("/api/v1/memories/5/955/coefficients").json()
    assert found["sampled"] == sum(found["counts"])
    assert found["layer_largest"] == max(
        row["largest"] for row in index.sql("SELECT max(largest) AS largest FROM statistics WHERE layer = 5").rows()
    )
    bands = found["bands"]
    assert [b["above"] for b in bands] == sorted((b["above"] for b in bands), reverse=True)
    for band in bands:
        assert band["contexts"]
        for one in band["contexts"]:
            assert band["above"] < one["coefficient"] <= band["up_to"] and one["coefficients"][-1] == one["coefficient"]
    # The sample of so small a corpus is all of it.
    fires = found["statistics"]["active_fraction"] * found["tokens"]
    assert sum(b["tokens"] for b in bands if b["up_to"] > 0) == pytest.approx(fires)
    assert bands[0]["contexts"][0]["coefficient"] == pytest.approx(found["statistics"]["largest"])


def test_a_window_is_read_with_its_context(wren, tmp_path):
    from unembed.corpus import open_corpus
    from unembed.index.coefficients import coefficients_view
    from unembed.index.contexts import contexts_view

    text = "The first month of the year is January and the last one is December of the same year . " * 3
    corpus = open_corpus([text], segmentation="windows", window=16, overlap=8)
    built = unembed.Index.build(wren, corpus, tmp_path / "windows", top=5)
    for index in (5, 100, 955):
        for one in contexts_view(wren, built, 5, index, 5).contexts:
            assert one.coefficients[-1] == pytest.approx(one.coefficient, rel=1e-4)
            assert len(one.tokens) <= 16
        view = coefficients_view(wren, built, 5, index)
        assert view.sampled == view.tokens
        fires = view.statistics["active_fraction"] * view.tokens
        assert sum(b.tokens for b in view.bands if b.up_to > 0) == pytest.approx(fires)


@pytest.fixture
def own_index(wren, tmp_path):
    """An index whose folder a test may fill and spoil."""
    return unembed.Index.build(wren, ["She put the book on the table ."], tmp_path / "own", top=5)


@pytest.fixture
def served(wren):
    """Opens explorers of their own, one after the other."""
    opened = []

    def page(index) -> TestClient:
        opened.append(ServerState(wren, index, index_name="own"))
        app = create(opened[-1], token=TOKEN, port=7335)
        return TestClient(app, base_url="http://127.0.0.1:7335", headers={"authorization": f"Bearer {TOKEN}"})

    yield page
    for one in opened:
        one.close()


def test_a_cluster_equals_the_librarys_and_survives_a_restart_of_the_server(served, wren, own_index, monkeypatch):
    page = served(own_index)
    before = page.get("/api/v1/memories/3/5/cluster").json()
    assert before["cluster"] is None and before["size"] == 0 and before["values"] == wren.n_layers * wren.d_mlp
    expected = unembed.cluster_values(wren, before["n_clusters"])
    *progress, found, end = map(json.loads, page.post("/api/v1/clusters").text.splitlines())
    assert found == {"kind": "clusters", "n_clusters": expected.n_clusters} and end == {"kind": "done"}
    steps = [line["done"] for line in progress]
    assert steps == sorted(set(steps)) and 10 < len(steps) <= 101
    values = torch.cat([wren.weights.W_out[layer] for layer in range(wren.n_layers)])
    n_distinct = len(torch.unique(values, dim=0))  # equal values are one leaf of the tree
    assert n_distinct >= before["values"] - 1
    assert steps[-1] == progress[0]["of"] == 2 * n_distinct - 1
    monkeypatch.setattr("unembed.index.clusters.cluster_values", None)  # from here on nothing is grouped again
    for client in (page, served(own_index)):
        found = client.get("/api/v1/memories/3/5/cluster").json()
        number = expected.of(3, 5)
        members = expected.members(number)
        assert (found["cluster"], found["size"], sum(found["by_layer"])) == (number, len(members), len(members))
        card = next(expected.cards(numbers=[number]).rows())
        assert found["coherence"] == pytest.approx(card["coherence"])
        own = wren.weights.W_out[3][5]
        cosines = {
            (n, i): float(torch.cosine_similarity(own, wren.weights.W_out[n][i], dim=0))
            for n, i in members
            if (n, i) != (3, 5)
        }
        nearest = sorted(cosines, key=lambda at: -cosines[at])[:8]
        assert [(m["layer"], m["index"]) for m in found["members"]] == nearest
        assert [m["cosine"] for m in found["members"]] == pytest.approx([cosines[at] for at in nearest], abs=1e-5)
        lists = [wren.values.top_tokens(n, i, 30) for n, i in members]
        assert found["counted"] == len(members)
        for token, n in found["shared"]:
            assert n == sum(token in tokens for tokens in lists) > 1


def test_a_newer_request_cancels_the_clustering_under_way(served, own_index, monkeypatch):
    begun, ended = threading.Event(), list[BaseException]()
    grouped = unembed.cluster_values

    def slow(lm, n_clusters, progress):
        def count(done: int, of: int) -> None:
            begun.set()
            time.sleep(0.05)
            progress(done, of)

        try:
            return grouped(lm, n_clusters, progress=count)
        except BaseException as error:
            ended.append(error)
            raise

    monkeypatch.setattr("unembed.index.clusters.cluster_values", slow)
    page = served(own_index)
    headers = {"x-client": "a page clusters"}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(page.post, "/api/v1/clusters", headers=headers)
        assert begun.wait(20)
        monkeypatch.setattr("unembed.index.clusters.cluster_values", grouped)
        newer = page.post("/api/v1/clusters", headers=headers)
        last = json.loads(first.result(20).text.splitlines()[-1])
    assert (last["kind"], last["code"]) == ("error", "superseded")
    assert isinstance(ended[0], Superseded), "it ended on its way, not after"
    assert newer.text.splitlines()[-1] == '{"kind":"done"}'


def test_clusters_of_other_weights_or_a_damaged_file_are_refused(served, wren, own_index):
    assert served(own_index).post("/api/v1/clusters").status_code == 200
    path = own_index.path / FILE
    with np.load(path) as stored:
        before = dict(stored)
    np.savez(path, **{**before, "weights": np.array("of another model")})
    assert stored_clusters(wren, own_index) is None
    path.write_bytes(b"no archive")
    assert served(own_index).get("/api/v1/memories/3/5/cluster").json()["cluster"] is None


def test_without_an_index_clusters_last_as_long_as_the_server(client):
    client.post("/api/v1/clusters")
    assert client.get("/api/v1/memories/3/5/cluster").json()["size"] > 0
    assert client.get("/api/v1/memories/3/999999/cluster").status_code == 404


def test_pages_of_a_search_are_all_of_it_with_one_row_for_each_memory(indexed, index, wren):
    def page(**more):
        return indexed.get("/api/v1/memories/search", params={"q": "year", "top": 7, **more}).json()

    first = page()
    assert first["total"] > 7 == len(first["hits"])
    hits = [hit for offset in range(0, first["total"], 190) for hit in page(offset=offset, top=190)["hits"]]
    assert hits[:7] == first["hits"] and hits[7:14] == page(offset=7)["hits"]
    forms = {wren.single_token(text) for text in (" year", "year", "Year", " Year") if _is_token(wren, text)}
    tokens, _ = index.readings
    holds = np.isin(tokens, list(forms)).any(axis=1).nonzero()[0]
    described = {row[:2] for row in memory_descriptions(wren, index.path) if re.search(r"\byear\b", row[3], re.I)}
    promoting = {divmod(int(row), wren.d_mlp) for row in holds}
    found = [(h["layer"], h["index"]) for h in hits]
    assert len(set(found)) == len(found) and described | promoting <= set(found)
    assert described and {(h["layer"], h["index"]) for h in hits if h["why"] == "description"} == described
    assert [h["why"] for h in hits] == ["description"] * len(described) + ["promotes"] * (len(hits) - len(described))
    assert sum(first["layers"].values()) == first["total"] == len(hits)
    assert all(hit["found"] not in hit["also"] for hit in hits) and any(hit["also"] for hit in hits)


def _is_token(lm, text):
    try:
        return lm.single_token(text) >= 0
    except NotOneToken:
        return False


def test_filters_act_on_all_pages(indexed, index, wren):
    def ask(**more):
        return indexed.get("/api/v1/memories/search", params={"q": "year", "top": 200, **more}).json()

    everything = ask()
    for layer, n in everything["layers"].items():
        found = ask(layer=layer)
        assert found["total"] == n and {h["layer"] for h in found["hits"]} == {int(layer)}
        assert found["layers"] == everything["layers"], "what else could be chosen stays visible"
    rare = ask(density_below=0.3)
    hits = [hit for offset in range(0, everything["total"], 200) for hit in ask(offset=offset)["hits"]]
    of_all = [(h["layer"], h["index"]) for h in hits if h["density"] <= 0.3]
    assert [(h["layer"], h["index"]) for h in rare["hits"]] == of_all[:200] and rare["total"] == len(of_all)
    one = everything["hits"][0]
    index.add_label(one["layer"], one["index"], "years", author="ann")
    labelled = ask(labelled=True)["hits"]  # other tests label others
    assert (one["layer"], one["index"]) in [(h["layer"], h["index"]) for h in labelled]
    assert all(h["labelled"] for h in labelled) and ask(labelled=False)["total"] == len(hits) - len(labelled)


def test_a_wildcard_and_a_regular_expression_match_tokens(indexed, wren):
    vocabulary = wren.token_strings(list(range(wren.d_vocab)))
    for query, matches in (
        ("*anuar*", lambda text: "anuar" in text),
        ("/^·[Yy]ear$/", lambda t: t in (" year", " Year")),
    ):
        found = indexed.get("/api/v1/memories/search", params={"q": query, "top": 200}).json()
        shown = {text for hit in found["hits"] for text in (hit["found"], *hit["also"])}
        assert shown and shown <= {text for text in vocabulary if matches(text)}
    refused = indexed.get("/api/v1/memories/search", params={"q": "/(/"}).json()
    assert "not a regular expression" in refused["notes"][0]


def test_a_word_that_is_not_found_has_suggestions(client, wren):
    found = client.get("/api/v1/memories/search", params={"q": "Januarry"}).json()
    assert not found["hits"] and any("anuary" in text for text in found["suggestions"])


def test_descriptions_are_those_of_the_embedded_models_gallery(client, wren):
    from unembed.gallery import memory_descriptions

    rows = client.get("/api/v1/memories/descriptions").json()["rows"]
    expected = memory_descriptions(wren)
    assert len(rows) == len(expected) > 100
    assert all(
        expected.of(row["layer"], row["index"], negative=row["pole"] == "negative") == row["description"]
        for row in rows
    )


def test_a_memory_on_a_prompt_brings_its_effect_on_the_question(client, wren):
    prompt = "The first month of the year is"
    trace = wren.trace(prompt)
    question = trace.question(" the", " a", 3)
    request = {"prompt": prompt, "position": 3, "token": " the", "against": " a"}
    found = client.post("/api/v1/memories/4/9/activations", json=request).json()
    here = trace.memory_effect(4, 9, question, 3)
    assert found["here"]["score"] == pytest.approx(here.score, rel=1e-4)
    assert found["here"]["deviation"] == pytest.approx(here.deviation, rel=1e-4)
    assert (found["target"]["token"], found["against"]["token"], found["position"]) == (" the", " a", 3)
    alone = client.post("/api/v1/memories/4/9/activations", json={"prompt": prompt, "alone": True}).json()
    assert alone["against"] is None and alone["target"]["id"] == int(trace.prediction[-1])
    assert client.post("/api/v1/memories/4/9/activations", json={**request, "position": 99}).status_code == 404


def test_connections_are_those_of_the_weights(client, wren):
    from unembed.attention.paths.memory_connections import memory_connections

    found = client.get("/api/v1/memories/3/5/connections?top=4").json()
    expected = memory_connections(wren, 3, 5, 4)
    for name in ("heads", "writers", "readers"):
        rows = getattr(expected, name)
        assert [(r["layer"], r["index"]) for r in found[name]] == [(r.layer, r.index) for r in rows]
        assert [r["strength"] for r in found[name]] == pytest.approx([r.strength for r in rows], rel=1e-4)
    first = expected.readers[0]
    assert found["readers"][0]["top_tokens"] == wren.values.top_tokens(first.layer, first.index, 8)
    assert client.get("/api/v1/memories/3/99999/connections").status_code == 404


def test_a_card_says_what_was_measured_and_measures_on_demand(client, wren):
    from unembed.memories import reading_truth

    stored = client.get("/api/v1/memories/2/17/truth").json()
    assert stored["of"] is None and stored["words"].endswith("was not measured.")
    measured = client.get("/api/v1/memories/2/17/truth/measured").json()
    expected = reading_truth(wren, [(2, 17)])
    assert measured["of"] == "memory" and measured["correlation"] == pytest.approx(float(expected.correlation[0]))
    assert measured["control"] == pytest.approx(expected.bound(2))
    assert measured["borne_out"] == expected.borne_out[0]


def test_the_usual_size_is_that_of_the_index(indexed, client, index):
    found = indexed.get("/api/v1/memories/5/955/usual").json()
    assert found["size"] == pytest.approx(index.usual_size(5, 955)) and found["source"] == "the index's corpus"
    assert client.get("/api/v1/memories/5/955/usual").json()["size"] is None, "rare in a sample of the shipped text"
    assert client.get("/api/v1/memories/5/99999/usual").status_code == 404
