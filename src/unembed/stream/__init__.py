"""Running the real model while watching or editing it.

The room answers "what were the tensors, and what if one had been different?" with hooks on the live modules. What the
tensors mean is left to the rooms above.
"""
