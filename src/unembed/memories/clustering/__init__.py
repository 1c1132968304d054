"""Agglomerative clustering of values, with flat clusters equal to scikit-learn's in memory that grows with n."""
