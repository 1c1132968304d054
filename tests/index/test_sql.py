"""SQL over an index: the same numbers as the arrays, one SELECT, nothing written, nothing else read."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from tests.index.test_queries import all_coefficients
from unembed.errors import InvalidInput
from unembed.index import Index


def test_tables_hold_what_the_arrays_hold(built: Index, gated_index: Index) -> None:
    for index in (built, gated_index):
        rows = list(index.sql("SELECT * FROM triggers").rows())
        expected = 0
        for pole, (coefficient, position) in index.trigger_lists.items():
            mine = [row for row in rows if row["pole"] == pole]
            key = [(index.row(row["layer"], row["index"]), row["rank"] - 1) for row in mine]
            at = tuple(np.array(key).T)
            np.testing.assert_array_equal([row["coefficient"] for row in mine], coefficient[at])
            np.testing.assert_array_equal([row["stream_position"] for row in mine], position[at])
            expected += int((position >= 0).sum())
        assert len(rows) == expected
        for row in rows[:: len(rows) // 40]:
            place = index.passages.place(row["stream_position"])
            assert [row[name] for name in ("document", "sentence", "position", "token", "next_token")] == [
                place.document,
                place.sentence,
                place.position,
                place.token,
                place.next_token,
            ]


def test_values_and_statistics(built: Index) -> None:
    rows = list(built.sql("SELECT * FROM values WHERE layer = 1 AND index = 11 ORDER BY rank").rows())
    expected = list(built.value_tokens(1, 11).rows())
    assert [(r["token_id"], r["token"], r["score"]) for r in rows] == [
        (r["token_id"], r["token"], r["score"]) for r in expected
    ]
    norms = list(built.sql("SELECT value_norm FROM statistics ORDER BY layer, index").rows())
    values = np.concatenate([built.model.weights.W_out[n].norm(dim=1).tolist() for n in range(2)])
    np.testing.assert_allclose([row["value_norm"] for row in norms], values, rtol=1e-6)
    names = built.sql("SELECT name FROM documents ORDER BY document").columns
    assert names.column("name").to_pylist() == ["text 0", "text 1", "text 2", "text 3"]


def test_statistics_are_those_of_all_counted_coefficients(built: Index, gated_index: Index) -> None:
    for index, segmentation in ((built, "sentences"), (gated_index, "windows")):
        coefficients, _ = all_coefficients(index.model, segmentation)  # pyright: ignore[reportArgumentType]
        x = coefficients.double().permute(0, 2, 1).flatten(0, 1).numpy()
        table = index.sql("SELECT * FROM statistics ORDER BY layer, index").columns
        column = {name: table.column(name).to_numpy() for name in table.column_names}
        np.testing.assert_allclose(column["mean"], x.mean(axis=1), atol=1e-6)
        np.testing.assert_allclose(column["variance"], x.var(axis=1), rtol=1e-4, atol=1e-8)
        np.testing.assert_allclose(column["least"], x.min(axis=1), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(column["largest"], x.max(axis=1), rtol=1e-4, atol=1e-6)
        usual = np.sqrt((x**2).mean(axis=1, keepdims=True))  # the first batch holds the whole corpus
        active = (x > 0).sum(axis=1) if index is built else (np.abs(x) >= 0.5 * usual).sum(axis=1)
        np.testing.assert_array_equal(column["active"], active)
        np.testing.assert_allclose(column["active_fraction"], active / x.shape[1], rtol=1e-6)


def test_a_question_over_several_tables(built: Index) -> None:
    query = """
        SELECT t.layer, count(*) AS keys, avg((t.next_token_id = v.token_id)::DOUBLE) AS agreement
        FROM triggers t JOIN values v USING (layer, index) WHERE t.rank = 1 AND v.rank = 1 GROUP BY 1 ORDER BY 1
    """
    rows = list(built.sql(query).rows())
    for row in rows:
        layer = row["layer"]
        keys = [i for i in range(built.manifest.layers[layer]) if len(built.triggers(layer, i, 1))]
        pairs = [(next(built.triggers(layer, i, 1).rows()), next(built.value_tokens(layer, i, 1).rows())) for i in keys]
        assert row["keys"] == len(keys)
        known = [t["next_token"] == v["token"] for t, v in pairs if t["next_token"] is not None]
        assert row["agreement"] == pytest.approx(sum(known) / len(known))


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO '{outside}'",
        "CREATE TABLE t AS SELECT 1",
        "INSERT INTO labels VALUES (1)",
        "DROP VIEW triggers",
        "DELETE FROM labels",
        "SET enable_external_access = true",
        "PRAGMA database_list",
        "ATTACH '{outside}'",
        "INSTALL fts",
        "LOAD fts",
        "EXPORT DATABASE '{outside}'",
        "SELECT 1; SELECT 2",
        "SELECT 1; COPY (SELECT 1) TO '{outside}'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_text('{folder}/manifest.json')",
        "SELECT * FROM read_text('{folder}/labels.sqlite')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM secret_table",
        "SELECT getenv('HOME')",
        "WITH t AS (SELECT 1) INSERT INTO labels SELECT * FROM t",
        "SELEC 1",
        "",
        "SELECT nothing FROM triggers",
    ],
)
def test_what_is_no_harmless_select_is_refused(built: Index, tmp_path: Path, query: str) -> None:
    secret_table = built.sql("SELECT 1").columns  # a variable that DuckDB would find by its name
    assert secret_table is not None
    outside = tmp_path / "written.parquet"
    before = sorted(built.path.rglob("*"))
    with pytest.raises(InvalidInput):
        built.sql(query.format(outside=outside, folder=built.path))
    assert not outside.exists()
    assert sorted(built.path.rglob("*")) == before


def test_a_query_without_end_is_stopped(built: Index) -> None:
    with pytest.raises(InvalidInput, match=r"ran for 0\.2 seconds"):
        built.sql("SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = 7", timeout=0.2)
    assert len(built.sql("SELECT 1 AS one")) == 1


def test_many_readers_at_once(built: Index) -> None:
    opened = Index.open(built.path)
    expected = str(built.triggers(1, 3))
    wrong: list[object] = []

    def read(number: int) -> None:
        try:
            for _ in range(5):
                assert (
                    next(opened.sql(f"SELECT count(*) AS n FROM values WHERE layer = {number % 2}").rows())["n"] == 1152
                )
                assert str(opened.triggers(1, 3)) == expected
                assert len(opened.search("year", 3)) == 3
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
