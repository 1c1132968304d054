"""What heads do on tokens: their scores, induction, their outputs and score terms on a prompt, learning in context."""
