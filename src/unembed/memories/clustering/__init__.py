"""Agglomerative clustering of values: the clusters equal scikit-learn's, but memory grows only linearly with n."""
