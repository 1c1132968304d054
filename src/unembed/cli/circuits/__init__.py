"""`unembed circuits ...`: heads, composition, skip-trigrams, expansion, induction."""
