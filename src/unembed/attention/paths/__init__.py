"""How information gets from one part to another through the stream: virtual weights, virtual heads, sums over paths."""
