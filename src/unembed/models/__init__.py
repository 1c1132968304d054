"""Opening a decoder and describing it: loading, family table and resolver, weights as views, norms as frozen maps.

The room answers "what is this model made of?" on the live modules. It leaves running and watching the model to
`unembed.stream`.
"""
