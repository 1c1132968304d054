"""A linear model of one forward pass: the model's own values, and gradients that pass relevance back linearly."""
