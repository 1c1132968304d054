"""Model families whose blocks differ from the usual transformer block. Other families need no file in this folder.

- `attention`: attention whose queries, keys and values have no standard layout: latent attention and output gates
  (`head_readings`), values from an unusual module or an earlier layer (`values`), two softmaxes (`differential`)
- `stream_blocks`: blocks of models with several residual streams; `several_streams` describes how these are mixed
- `expert_storage`: experts whose weights are stored, or used in the forward pass, in a way that only one family has
- `convolution`: attention or FFN outputs that are convolved over positions before they are added to the stream
- `handovers`: blocks whose output is multiplied by a number before the next block reads it
"""
