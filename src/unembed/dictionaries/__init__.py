"""Dictionaries of features: sparse autoencoders, transcoders and cross-layer transcoders as keys and values.

A feature has a key (its column of the encoder) and a value vector (its row of the decoder). This package reads
dictionary files, applies dictionaries to a model's activations, edits features, splits logits by feature (with the
reconstruction error as a separate row), and trains small dictionaries.
"""

from unembed.dictionaries.attachment import AttachedDictionary as AttachedDictionary
from unembed.dictionaries.attachment import attach as attach
from unembed.dictionaries.dictionary import Dictionary as Dictionary
from unembed.dictionaries.files import open_dictionary as open_dictionary
from unembed.dictionaries.files import save_dictionary as save_dictionary
from unembed.dictionaries.memory_dictionary import MemoryDictionary as MemoryDictionary
from unembed.dictionaries.train_dictionary import train_dictionary as train_dictionary
