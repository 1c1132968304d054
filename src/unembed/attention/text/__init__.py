"""Circuits compared with the text of a corpus: skip-trigrams, bigrams, the direct path, examples of what heads read."""
