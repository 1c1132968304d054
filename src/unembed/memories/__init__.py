"""The feed-forward layer as key-value memory: values, sub-updates, events, clusters.

This package analyses memories (FFN neurons). `unembed.index` stores which text triggers it.
"""
