"""Circuits next to the text of a corpus: skip-trigrams, bigrams, the direct path, and examples of what heads read."""
