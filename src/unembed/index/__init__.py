"""Indexes on disk, which record where the memories (FFN neurons) of one model fire in one corpus, and queries on them.

An index is a folder with memory-mapped arrays for fast access, the same contents as Parquet for SQL, SQLite files for
text search and labels, and a manifest with provenance and checksums. `sweeps` and `memories` compute the contents. Only
queries that run the model import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.index.index import Index as Index
from unembed.index.labels import Label as Label
from unembed.index.settings import IndexSettings as IndexSettings
from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.index.atlas import AtlasMatches as AtlasMatches
    from unembed.index.atlas import AtlasView as AtlasView
    from unembed.index.atlas import atlas_matches as atlas_matches
    from unembed.index.atlas import atlas_view as atlas_view
    from unembed.index.clusters import ClusterView as ClusterView
    from unembed.index.clusters import cluster_view as cluster_view
    from unembed.index.clusters import made_clusters as made_clusters
    from unembed.index.clusters import stored_clusters as stored_clusters
    from unembed.index.coefficients import CoefficientsView as CoefficientsView
    from unembed.index.coefficients import StatisticsView as StatisticsView
    from unembed.index.coefficients import coefficients_view as coefficients_view
    from unembed.index.coefficients import statistics_view as statistics_view
    from unembed.index.contexts import ContextsView as ContextsView
    from unembed.index.contexts import contexts_view as contexts_view
    from unembed.index.default_index import build_ready_index as build_ready_index
    from unembed.index.default_index import cached_index as cached_index
    from unembed.index.default_index import cached_index_of_weights as cached_index_of_weights
    from unembed.index.default_index import cached_path as cached_path
    from unembed.index.estimate import Estimate as Estimate
    from unembed.index.memory_card import MemoryCard as MemoryCard
    from unembed.index.memory_search import Filters as Filters
    from unembed.index.memory_search import Search as Search
    from unembed.index.memory_search import search as search
    from unembed.index.memory_truth import TruthView as TruthView
    from unembed.index.memory_truth import measured_truth_view as measured_truth_view
    from unembed.index.memory_truth import truth_view as truth_view
    from unembed.index.plan import check_folder as check_folder
    from unembed.results.cache import cache_folder as cache_folder
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "atlas": "AtlasMatches AtlasView atlas_matches atlas_view",
            "clusters": "ClusterView cluster_view made_clusters stored_clusters",
            "coefficients": "CoefficientsView StatisticsView coefficients_view statistics_view",
            "memory_truth": "TruthView measured_truth_view truth_view",
            "contexts": "ContextsView contexts_view",
            "default_index": "build_ready_index cached_index cached_index_of_weights cached_path",
            "estimate": "Estimate",
            "memory_card": "MemoryCard",
            "memory_search": "Filters Search search",
            "plan": "check_folder",
            "unembed.results.cache": "cache_folder",
        },
    )
