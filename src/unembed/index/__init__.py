"""What a sweep leaves on disk for one model and corpus, and the questions it answers.

Owns the folder's layout and its safety: memory-mapped arrays for the hot path, the same as Parquet for SQL, SQLite for
text search and labels, a manifest with provenance and checksums. The numbers in it come from `sweeps` and `memories`.

Public names: `Index`, `IndexSettings`, `Label`.
"""

from unembed.index.index import Index as Index
from unembed.index.labels import Label as Label
from unembed.index.settings import IndexSettings as IndexSettings
