"""What an index answers, computed again by plain SQL in a DuckDB of its own.

Once from the index's Parquet files, and once from nothing of ours: the checkpoint in float64, run by transformers, its
activations and readings put into tables as they are. The model is the embedded one; on tiny models, gated ones
included, tests/index compares with full sorts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import torch

import unembed
from unembed.index import Index, IndexSettings
from unembed.language_model import LanguageModel

TOP, TOP_TOKENS = 6, 8
TEXTS = [
    "The first month of the year is January , and the second one is February . The last month is December .",
    "She put the book on the table and left the house . He was born in the United States of America .",
    "The capital of France is Paris , and the capital of Italy is Rome . In the night it rained a lot .",
    "In December , the king of France left Paris . The river ran high . It was a cold month .",
]
KEYS = [(0, 0), (1, 17), (2, 555), (3, 1023), (5, 221), (5, 700)]


@pytest.fixture(scope="module")
def wren() -> LanguageModel:
    return unembed.load()


@pytest.fixture(scope="module")
def index(wren: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Index:
    corpus = unembed.open_corpus(TEXTS, segmentation="sentences")
    return Index.build(
        wren, corpus, tmp_path_factory.mktemp("index") / "wren", top=TOP, settings=IndexSettings(top_tokens=TOP_TOKENS)
    )


@pytest.fixture(scope="module")
def own(wren: LanguageModel) -> Any:
    """The same checkpoint in float64, for transformers alone."""
    return copy.deepcopy(wren.hf).double()


@pytest.fixture(scope="module")
def db(wren: LanguageModel, own: Any, index: Index) -> Iterator[duckdb.DuckDBPyConnection]:
    """`fired`: every coefficient at every counted place; `said`: every value's score of every token; both float64."""
    connection = duckdb.connect()
    layers = len(own.transformer.h)
    seen: dict[int, list[torch.Tensor]] = {n: [] for n in range(layers)}
    hooks = [
        block.mlp.c_proj.register_forward_pre_hook(lambda _m, given, n=n: seen[n].append(given[0][0]))
        for n, block in enumerate(own.transformer.h)
    ]
    places: list[tuple[int, int, int]] = []  # document, token, token after; -1 where none follows in the document
    segments = list(unembed.open_corpus(TEXTS, segmentation="sentences").segments(wren))
    with torch.no_grad():
        for segment in segments:
            ids = segment.tokens.tolist()
            own(torch.tensor([ids]), use_cache=False)
            for column in range(segment.skip, len(ids)):
                after = ids[column + 1] if column + 1 < len(ids) else int(segment.next_token)
                places.append((segment.document, ids[column], after))
    for hook in hooks:
        hook.remove()
    skips = [segment.skip for segment in segments]
    fired = np.stack(
        [torch.cat([x[skip:] for x, skip in zip(seen[n], skips, strict=True)]).numpy() for n in range(layers)]
    )  # (layer, place, key)
    assert fired.dtype == np.float64 and fired.shape == (layers, len(places), wren.d_mlp)
    layer, place, key = (axis.ravel() for axis in np.indices(fired.shape))
    document, token, after = np.array(places).T
    put(connection, "fired", layer=layer, place=place, key=key, coefficient=fired.ravel())
    put(connection, "places", place=np.arange(len(places)), document=document, token=token, after=after)
    state = own.state_dict()
    values = np.stack([state[f"transformer.h.{n}.mlp.c_proj.weight"].numpy() for n in range(layers)])
    numbers = np.repeat(np.arange(layers), wren.d_mlp), np.tile(np.arange(wren.d_mlp), layers)
    put(connection, "vectors", layer=numbers[0], key=numbers[1], v=pa.array(list(values.reshape(-1, wren.d_model))))
    unembedding = state["lm_head.weight"].numpy()
    for n in range(layers):
        scores = values[n] @ unembedding.T
        scores[:, wren.unlisted.numpy()] = -np.inf  # an index leaves out single bytes and tokens never learned
        best = np.argpartition(-scores, 4 * TOP_TOKENS, axis=1)[:, : 4 * TOP_TOKENS]  # SQL ranks these
        put(
            connection,
            "said",
            layer=np.full(best.size, n),
            key=np.repeat(np.arange(wren.d_mlp), best.shape[1]),
            token=best.ravel(),
            score=np.take_along_axis(scores, best, axis=1).ravel(),
        )
    for name in ("triggers", "values", "statistics", "vocabulary"):
        connection.execute(f"CREATE VIEW file_{name} AS SELECT * FROM read_parquet('{table(index, name)}')")
    yield connection
    connection.close()


def put(connection: duckdb.DuckDBPyConnection, name: str, **columns: Any) -> None:
    """Make a table of these columns, or add them to it."""
    connection.register("given", pa.table(columns))
    connection.execute(f"CREATE TABLE IF NOT EXISTS {name} AS SELECT * FROM given LIMIT 0")
    connection.execute(f"INSERT INTO {name} SELECT * FROM given")


def table(index: Index, name: str) -> Path:
    return index.path / "tables" / f"{name}.parquet"


def rows(db: duckdb.DuckDBPyConnection, query: str, *given: Any) -> list[tuple[Any, ...]]:
    return db.execute(query, list(given)).fetchall()


def test_every_trigger_of_every_key_is_that_of_a_window_function(db: duckdb.DuckDBPyConnection) -> None:
    """Ranks, coefficients and what follows, of all 6,144 keys at once."""
    db.execute(
        f"""CREATE TABLE best AS
            SELECT layer, key, coefficient, document, token, after,
                   row_number() OVER (PARTITION BY layer, key ORDER BY coefficient DESC, place) AS rank
            FROM fired JOIN places USING (place) WHERE coefficient > 0
            QUALIFY rank <= {TOP}"""
    )
    (counts,) = rows(
        db,
        """SELECT count(*), count(b.rank), max(abs(f.coefficient - b.coefficient) / (2e-3 + b.coefficient)),
                  avg((f.token_id = b.token AND coalesce(f.next_token_id, -1) = b.after
                       AND f.document = b.document)::INT)
           FROM file_triggers f FULL JOIN best b ON (f.layer, f.index, f.rank) = (b.layer, b.key, b.rank)""",
    )
    n, matched, furthest, same_place = counts
    assert n == matched == rows(db, "SELECT count(*) FROM file_triggers")[0][0] > 15_000
    assert furthest < 1e-3
    assert same_place > 0.999  # places whose coefficients are equal in float32 may stand in either order


def test_statistics_are_those_of_sql_aggregates_in_float64(db: duckdb.DuckDBPyConnection, wren: LanguageModel) -> None:
    (found,) = rows(
        db,
        """WITH ours AS (
             SELECT layer, key, avg(coefficient) AS mean, var_pop(coefficient) AS variance, min(coefficient) AS least,
                    max(coefficient) AS largest, count(*) FILTER (coefficient > 0) AS active,
                    avg((coefficient > 0)::INT) AS share
             FROM fired GROUP BY layer, key)
           SELECT count(*), max(abs(f.mean - o.mean)), max(abs(f.variance - o.variance)), max(abs(f.least - o.least)),
                  max(abs(f.largest - o.largest)), max(abs(f.active - o.active)), max(abs(f.active_fraction - o.share)),
                  max(o.largest)
           FROM file_statistics f JOIN ours o ON (f.layer, f.index) = (o.layer, o.key)""",
    )
    assert found[0] == wren.n_layers * wren.d_mlp
    assert max(found[1:5]) < 2e-5 * max(1.0, found[7])
    assert found[5] <= 1 and found[6] < 0.02  # a pre-activation within rounding of 0 may fall on either side
    (norms,) = rows(
        db,
        """SELECT max(abs(f.value_norm - sqrt(list_dot_product(v.v, v.v))))
           FROM file_statistics f JOIN vectors v ON (f.layer, f.index) = (v.layer, v.key)""",
    )
    assert norms[0] < 1e-5


@pytest.mark.parametrize("token", [" January", " France", " not"])
def test_promoting_is_a_search_of_all_readings(
    db: duckdb.DuckDBPyConnection, index: Index, wren: LanguageModel, token: str
) -> None:
    expected = rows(
        db,
        f"""SELECT layer, key, rank, score FROM (
              SELECT *, row_number() OVER (PARTITION BY layer, key ORDER BY score DESC) AS rank FROM said)
            WHERE rank <= {TOP_TOKENS} AND token = ? ORDER BY score DESC""",
        wren.single_token(token),
    )
    found = [tuple(row[name] for name in ("layer", "index", "rank")) for row in index.promoting(token, 10_000).rows()]
    assert sorted(found) == sorted(row[:3] for row in expected) and found
    np.testing.assert_allclose(
        [row["score"] for row in index.promoting(token, 10_000).rows()], [row[3] for row in expected], rtol=1e-5
    )


@pytest.mark.parametrize(("layer", "key"), KEYS)
def test_similar_is_the_order_of_all_cosines(db: duckdb.DuckDBPyConnection, index: Index, layer: int, key: int) -> None:
    expected = rows(
        db,
        """SELECT o.layer, o.key, list_cosine_similarity(o.v, mine.v) AS cosine
           FROM vectors o, (SELECT v FROM vectors WHERE layer = $1 AND key = $2) mine
           WHERE (o.layer, o.key) <> ($1, $2) ORDER BY cosine DESC LIMIT 12""",
        layer,
        key,
    )
    found = [(row["layer"], row["index"], row["cosine"]) for row in index.similar(layer, key, 12).rows()]
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    np.testing.assert_allclose([row[2] for row in found], [row[2] for row in expected], atol=1e-6)


@pytest.mark.parametrize(("layer", "key"), KEYS)
def test_triggers_and_value_tokens_are_rows_of_the_parquet_files(
    db: duckdb.DuckDBPyConnection, index: Index, layer: int, key: int
) -> None:
    stored = rows(
        db,
        """SELECT rank, coefficient, document, sentence, position, v.token, n.token FROM file_triggers
           JOIN file_vocabulary v USING (token_id) LEFT JOIN file_vocabulary n ON next_token_id = n.token_id
           WHERE layer = $1 AND index = $2 ORDER BY rank""",
        layer,
        key,
    )
    names = ("rank", "coefficient", "document", "sentence", "position", "token", "next_token")
    assert [tuple(row[name] for name in names) for row in index.triggers(layer, key).rows()] == stored
    tokens = rows(
        db,
        """SELECT rank, token_id, token, score FROM file_values JOIN file_vocabulary USING (token_id)
           WHERE layer = $1 AND index = $2 ORDER BY rank""",
        layer,
        key,
    )
    names = ("rank", "token_id", "token", "score")
    assert [tuple(row[name] for name in names) for row in index.value_tokens(layer, key).rows()] == tokens
    assert len(tokens) == TOP_TOKENS


def test_the_same_question_in_the_indexs_own_sql(
    db: duckdb.DuckDBPyConnection, index: Index, wren: LanguageModel
) -> None:
    """What readers ask of whole layers; the index's connection refuses files, this one reads them."""
    query = """SELECT t.layer, count(*) AS keys, avg((t.next_token_id = v.token_id)::INT) AS agreement,
                      median(s.active_fraction) AS active
               FROM {0}triggers t JOIN {0}values v USING (layer, index) JOIN {0}statistics s USING (layer, index)
               WHERE t.rank = 1 AND v.rank = 1 GROUP BY t.layer ORDER BY t.layer"""
    ours = [list(row.values()) for row in index.sql(query.format("")).rows()]
    np.testing.assert_allclose(ours, rows(db, query.format("file_")), rtol=1e-12)
    assert len(ours) == wren.n_layers
