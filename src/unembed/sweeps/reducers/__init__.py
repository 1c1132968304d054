"""Define running statistics, which a sweep feeds batch by batch; each can be merged, saved and resumed."""
