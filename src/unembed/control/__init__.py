"""Controlling generation with memories (FFN neurons): steering, suppressing toxic text, and early exit.

The effect of turning memories on or off, and the layers that a token does not need. Edits are applied by
`unembed.stream`; `unembed.memories` reads what a memory promotes. Source: Geva et al. 2022, section 6.
"""
