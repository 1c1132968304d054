"""The feed-forward layer as key-value memory: values, sub-updates, events, clusters.

This package answers "what does this memory (FFN neuron) do?". `unembed.index` answers which text triggers it.
"""
