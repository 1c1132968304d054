"""What the weights of heads are: QK and OV as factors, norms folded in, what they copy and match, how they compose."""
