"""Attention heads as circuits: what a head matches (QK), what it moves (OV), and how heads compose.

Owns matrices kept as factors (`LowRank`), the two circuits of a head, copying and matching scores, composition, virtual
heads, skip-trigrams, path expansion, head scores on text, induction and the geometry of the stream.

Public names: `circuits` (as `unembed.circuits`), `Circuits`, `LowRank`.
"""
