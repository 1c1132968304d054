"""The structure of a decoder, derived from its module tree and checked by running it."""
