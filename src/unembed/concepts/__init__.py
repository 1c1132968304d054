"""What people and programs call a memory: classes of tokens, WordNet, embeddings, a judge, annotations, agreement."""
