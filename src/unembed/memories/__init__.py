"""The feed-forward layer as key-value memory: values, sub-updates, events, clusters and what follows from them.

The room answers "what does this memory do?". Which text triggers a memory is asked of `unembed.index`.
"""
