"""Dictionaries of features: sparse autoencoders, transcoders and cross-layer transcoders as keys and values.

A feature has a key (its column of the encoder) and a value (its row of the decoder). This package owns the reading of
dictionary files, their application to a model at a capture point, edits and attributions by feature with the
reconstruction's error in a separate row, and the training of a small dictionary.
"""

from unembed.dictionaries.attachment import AttachedDictionary as AttachedDictionary
from unembed.dictionaries.attachment import attach as attach
from unembed.dictionaries.dictionary import Dictionary as Dictionary
from unembed.dictionaries.files import open_dictionary as open_dictionary
from unembed.dictionaries.files import save_dictionary as save_dictionary
from unembed.dictionaries.train_dictionary import train_dictionary as train_dictionary
