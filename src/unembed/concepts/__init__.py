"""Find concepts of memories (FFN neurons) automatically: classes of tokens from WordNet and embeddings."""
