"""Running statistics that a sweep feeds batch by batch; each can be merged, saved and resumed."""
