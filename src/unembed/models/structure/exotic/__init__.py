"""Blocks of a few families that differ from the common shape. A reader of the common case needs none of these files.

- `attention`: queries, keys and values in no known layout: behind a latent or beside a gate (`head_readings`), captured
  at an unusual place or in an earlier layer (`values`), under two softmaxes (`differential`)
- `stream_blocks`: the blocks of a model with several residual streams, mixed as in `several_streams`
- `expert_storage`: experts whose weights or passes are arranged as in one family only
- `convolution`: branches that are convolved over positions on their way to the stream
- `handovers`: blocks whose output is multiplied by a number on its way to the next
"""
