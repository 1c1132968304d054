"""Architectures that transformers lacks: attention-only models, the papers' WikiLM, and fairseq checkpoints."""
