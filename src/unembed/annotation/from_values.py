"""Write annotation files for value vectors, and convert the concepts that unembed found to annotations."""

from __future__ import annotations

import json
import os
from pathlib import Path

from unembed.annotation.files import INSTRUCTIONS, KINDS, SCHEMA, Annotation, Pattern
from unembed.concepts.value_concepts import VectorConcepts, model_classes
from unembed.concepts.wordnet import wordnet
from unembed.results import write_whole


def export(found: VectorConcepts, path: str | os.PathLike[str]) -> Path:
    """Write a file to annotate: instructions, and each vector's top tokens with their WordNet definitions, if any.

    The concepts that unembed found are left out, so that they cannot influence the annotator.

    Raises:
        InvalidInput: the file cannot be written.
    """
    classes, net = model_classes(found.lm, embedding=False), wordnet()
    vectors = []
    for label, ids in zip(found.labels, found.ids.tolist(), strict=True):
        texts = found.lm.token_strings(ids)
        tokens = []
        for number, (token, text) in enumerate(zip(ids, texts, strict=True)):
            word = classes.tokens[token].word
            about = net.definition(word) if word else None
            tokens.append({"number": number, "id": token, "text": text, "about": about or ""})
        vectors.append({"vector": label, "tokens": tokens, "patterns": []})
    sheet = {
        "schema": SCHEMA,
        "annotator": "",
        "instructions": list(INSTRUCTIONS),
        "kinds": list(KINDS),
        "provenance": found.provenance.to_dict(),
        "vectors": vectors,
    }
    return write_whole(path, json.dumps(sheet, ensure_ascii=False, indent=1) + "\n")


def automatic(found: VectorConcepts) -> Annotation:
    """Return the concepts that unembed found as an annotation by the annotator "unembed"."""
    patterns = []
    for ids, concepts in zip(found.ids.tolist(), found.concepts, strict=True):
        patterns.append(
            tuple(
                Pattern(c.name, c.kind, tuple(i for i, t in enumerate(ids) if t in c.members))
                for c in concepts
                if c.kind in KINDS
            )
        )
    ids = tuple(tuple(row) for row in found.ids.tolist())
    return Annotation("unembed", found.labels, ids, tuple(patterns))
