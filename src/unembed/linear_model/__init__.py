"""The linear model of one run: the model's own pass, with the rules by which relevance is propagated backward."""
