"""Agglomerative clustering of value vectors, with the same clusters as scikit-learn.

The memory needed grows linearly with the number of vectors.
"""
