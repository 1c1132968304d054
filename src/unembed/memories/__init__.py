"""The feed-forward layer as key-value memory: values, sub-updates, events, clusters.

This package computes what a memory (FFN neuron) does. `unembed.index` stores which text triggers it.
"""
