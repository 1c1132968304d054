"""Indexes on disk: what the memories (FFN neurons) of one model do over one corpus, and queries on it.

Owns the layout and integrity of the folder: memory-mapped arrays for fast access, the same contents as Parquet for SQL,
SQLite for text search and labels, and a manifest with provenance and checksums. The numbers come from `sweeps` and
`memories`. An index is read without torch; it is imported by the queries that run the model.

Public names: `Index`, `IndexSettings`, `Label`.
"""

from unembed.index.index import Index as Index
from unembed.index.labels import Label as Label
from unembed.index.settings import IndexSettings as IndexSettings
