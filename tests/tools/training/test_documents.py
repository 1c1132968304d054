"""Reading the corpus folder, and the rule that holds documents back."""

from __future__ import annotations

import json
import lzma

import pytest
from tools.training.documents import HELD_BACK_ONE_IN, Document, as_read, documents, is_held_back, split

from unembed.corpus.markup import looks_like_wikitext, title
from unembed.errors import CorpusUnreadable


def shard(folder, name, rows):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / name).write_bytes(lzma.compress(lines.encode()))


def test_documents_come_shard_by_shard_with_their_sources(tmp_path):
    shard(tmp_path, "b.jsonl.xz", [{"id": "3", "source": "books", "text": "c"}])
    shard(tmp_path, "a.jsonl.xz", [{"id": "1", "source": "x", "text": "a"}, {"text": "é"}])
    read = list(documents(tmp_path))
    assert [(d.id, d.source, d.text) for d in read] == [("1", "x", "a"), ("a.jsonl.xz:2", "", "é"), ("3", "books", "c")]


def test_one_document_in_eighty_is_held_back_whatever_the_order():
    ids = [f"doc-{i}" for i in range(40_000)]
    assert 430 < sum(map(is_held_back, ids)) < 570
    # Pinned: another rule would let text that the shipped models were trained on into their measurement.
    assert [i for i in range(300) if is_held_back(f"doc-{i}")] == [87, 125, 148, 163, 289]


def held_back_key(prefix):
    return next(key for i in range(1000) if is_held_back(key := f"{prefix}{i}"))


def test_a_document_is_held_back_by_its_id_and_the_rest_of_its_work_set_aside():
    key = held_back_key("doc-")
    piece = Document(key, "books", "a", work="Heidi")
    other = Document("doc-0", "books", "b", work="Heidi")
    continued = Document("more-books-0", "books", "c", work="Heidi")
    free = Document("doc-1", "books", "d", work="Emma")
    parts = split([free, other, piece, continued])
    assert (parts.trained, parts.held_back, parts.set_aside) == ([free], [piece], [other, continued])


def test_a_document_of_the_second_corpus_is_held_back_with_all_of_its_work():
    work = held_back_key("https://page/")
    pages = [Document(f"more-wikipedia-{i}", "wikipedia", "a", work=work) for i in range(3)]
    older = Document("wikipedia-7", "wikipedia", "b", work=work)
    by_its_id = Document("more-" + held_back_key("more-").removeprefix("more-"), "usgov", "c", work="elsewhere")
    parts = split([*pages, older, by_its_id])
    assert (parts.trained, parts.held_back, parts.set_aside) == ([by_its_id], pages, [older])


def test_the_parts_of_a_folder_share_no_page_and_no_book():
    every = [Document(f"{'more-' * (i % 2)}books-{i}", "books", "x", work=f"book {i % 400}") for i in range(4000)]
    parts = split(every)
    assert len(parts.trained) + len(parts.held_back) + len(parts.set_aside) == 4000
    measured = {document.work for document in parts.held_back}
    assert not measured & {document.work for document in parts.trained}
    assert {document.work for document in parts.set_aside} <= measured
    assert 4000 / HELD_BACK_ONE_IN / 2 < len(parts.held_back) < 4000 / HELD_BACK_ONE_IN * 2


def test_the_work_of_a_document_is_its_page_or_book(tmp_path):
    rows = [
        {"id": "1", "source": "wikipedia", "title": "Oak", "url": "https://oak", "text": "a"},
        {"id": "2", "source": "books", "title": "Heidi", "text": "b"},
        {"id": "3", "source": "openstax", "title": "Physics", "text": "c"},
    ]
    shard(tmp_path, "a.jsonl.xz", rows)
    assert [document.work for document in documents(tmp_path)] == ["https://oak", "Heidi", "3"]


def test_an_empty_folder_is_refused_with_what_it_should_contain(tmp_path):
    with pytest.raises(CorpusUnreadable, match=r"no file that ends in \.jsonl\.xz"):
        list(documents(tmp_path))


@pytest.mark.parametrize("row", ['{"id": "1"}', "not json", '"a string"'])
def test_a_malformed_line_is_named_in_the_error(tmp_path, row):
    with lzma.open(tmp_path / "a.jsonl.xz", "wt") as file:
        file.write('{"text": "fine"}\n' + row + "\n")
    with pytest.raises(CorpusUnreadable, match="after line"):
        list(documents(tmp_path))


def test_a_truncated_shard_is_named_in_the_error(tmp_path):
    shard(tmp_path, "a.jsonl.xz", [{"text": "x" * 1000 + str(i)} for i in range(50)])
    whole = (tmp_path / "a.jsonl.xz").read_bytes()
    (tmp_path / "a.jsonl.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusUnreadable, match=r"a\.jsonl\.xz"):
        list(documents(tmp_path))


def test_one_wikipedia_page_in_five_is_read_in_the_spelling_of_wikitext():
    text = "Mineral\nA non-metal, 3.5 kg of it.\nIt's hard."
    pages = [Document(f"wikipedia-{i}", "wikipedia", text, work=f"https://page/{i}") for i in range(2000)]
    read = [as_read(page) for page in pages]
    respelled = [after.text for before, after in zip(pages, read, strict=True) if after != before]
    assert 340 < len(respelled) < 460
    assert set(respelled) == {" \n = Mineral = \n \n A non @-@ metal , 3 @.@ 5 kg of it . \n It 's hard . \n"}
    assert looks_like_wikitext(respelled[0].split("\n")) and title(respelled[0].split("\n")[1]) == "Mineral"


def test_a_page_is_respelled_with_all_of_its_parts_and_other_sources_never():
    first = [as_read(Document(f"wikipedia-{i}", "wikipedia", "a, b", work=f"https://page/{i}")) for i in range(50)]
    rest = [as_read(Document(f"more-wikipedia-{i}", "wikipedia", "a, b", work=f"https://page/{i}")) for i in range(50)]
    assert [page.text for page in first] == [page.text for page in rest]
    books = [Document(f"books-{i}", "books", "a, b", work=f"https://page/{i}") for i in range(50)]
    assert [as_read(book) for book in books] == books
