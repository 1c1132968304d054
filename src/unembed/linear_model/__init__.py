"""A linear model of one run: the model's own forward pass, with gradients from rules that pass relevance back."""
