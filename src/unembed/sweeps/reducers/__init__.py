"""Reducers: statistics that a sweep updates batch by batch, and that can be merged, saved and resumed."""
