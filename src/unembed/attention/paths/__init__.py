"""How heads and memories act on each other through the stream: virtual weights, virtual heads, sums over paths."""
