"""A linear model of one run: the model's forward pass, with gradients by rules that pass relevance backward."""
