"""What heads do on tokens: scores, induction, outputs and attention-score terms on a prompt, in-context learning."""
