"""What people and programs call a memory: classes of tokens, WordNet, embeddings, a judge, annotations, agreement."""

from unembed.concepts import annotation as annotation
