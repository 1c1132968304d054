"""Concepts of memories (FFN neurons): classes of tokens, WordNet, embeddings, annotations, a judge, agreement."""

from unembed.concepts import annotation as annotation
