"""Concepts of memories (FFN neurons) that a program finds: classes of tokens, WordNet, embeddings."""
