"""Architectures that `transformers` does not have: attention-only models, the papers' WikiLM, fairseq checkpoints."""
