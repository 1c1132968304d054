"""Results of computations: a frozen table with a provenance, and how it is printed and saved.

Owns the provenance (which model, corpus, basis, dtype, seed and version a number comes from), the table (rows, JSON,
CSV, Parquet, HTML, terminal), results as files, and the one function that makes token text visible. Computes nothing
and knows no model.

Public names: `Provenance`, `Table`, `Displayed`, `Records`, `visible`, `join_bytes`, `visible_rich`,
`visible_html`, `check_writable`, `make_folder`, `write_whole`, `whole_file`, `writing`.
"""

from unembed.results.display import Displayed
from unembed.results.files import check_writable, make_folder, whole_file, write_whole, writing
from unembed.results.provenance import Provenance
from unembed.results.records import Records
from unembed.results.table import Table
from unembed.results.token_text import join_bytes, visible, visible_html, visible_rich

__all__ = [
    "Displayed",
    "Provenance",
    "Records",
    "Table",
    "check_writable",
    "join_bytes",
    "make_folder",
    "visible",
    "visible_html",
    "visible_rich",
    "whole_file",
    "write_whole",
    "writing",
]
