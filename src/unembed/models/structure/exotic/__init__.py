"""Blocks of a few families that differ from the common shape. A reader of the common case needs none of these files.

Two modules are called from outside this folder. `exotic.attention` describes an attention whose queries, keys and
values lie in no known layout: behind a latent, beside a gate, in an earlier layer, or under two softmaxes
(`head_readings`, `values`, `differential`). `exotic.stream_blocks` describes the blocks of a model with several
residual streams (`several_streams`).
"""
