"""What the weights of heads do: low-rank QK and OV circuits, folded norms, copying, matching, composition."""
