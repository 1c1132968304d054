"""Agglomerative clustering of value vectors: the same clusters as scikit-learn's, in memory linear in their number."""
