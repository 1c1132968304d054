"""Groups of memories (FFN neurons), tested as an atlas tests single ones.

A group has a weight for each memory of its layer. Its value is the sum of their value vectors by these weights, and its
activation at a position tells how far the group explains the coefficients there. Groups are made in four ways:

- factors: semi-non-negative factors of the coefficients on half of the text (`memories.semi_nmf`).
- clusters: clusters of the value vectors; the activation is the sum of the members' coefficients, and 0 where negative.
- shuffled factors, random clusters: the controls. The coefficients of each memory are shuffled over the positions
  before they are factored; the members of clusters are exchanged at random.

All groups of a layer are described together, so that each has the same controls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.atlas.layer import AtlasSource, LayerDescriber, split_documents
from unembed.atlas.text import RuleText
from unembed.concepts.value_concepts import model_classes
from unembed.corpus import CorpusSource
from unembed.corpus.windows import windows_of
from unembed.memories.clustering.value_clusters import cluster
from unembed.memories.semi_nmf import group_activations, semi_nmf
from unembed.memories.truth_of_values import unread_windows
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder, require_decoder
from unembed.results import Table
from unembed.stream.run import run

WINDOW, FIRINGS = 256, 100
"""Length of a window of text; number of positions, those with a group's largest activations, at which it fires."""
WAYS = ("factors", "clusters", "shuffled factors", "random clusters")
_Weights = Float[Tensor, "group memory"]
_Coefficients = Float[Tensor, "pos memory"]


def grouped(
    lm: Decoder, layer: int, coefficients: _Coefficients, fitted: Bool[Tensor, " pos"], n_groups: int, seed: int
) -> Iterator[tuple[_Weights, Float[Tensor, "pos group"]]]:
    """Yield the weights and activations of a layer's groups, in the order of `WAYS`.

    Args:
        fitted: the positions whose coefficients are factored.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = cluster(written_values(lm, layer), n_groups)
    seen = coefficients[fitted]
    mixed = torch.stack([column[torch.randperm(len(column), generator=generator)] for column in seen.T], dim=1)
    for way in WAYS:
        if "factors" in way:
            weights = semi_nmf(seen if way == "factors" else mixed, n_groups, seed=seed).weights
            yield weights, group_activations(coefficients, weights)
        else:
            own = labels if way == "clusters" else labels[torch.randperm(len(labels), generator=generator)]
            weights = torch.nn.functional.one_hot(own, n_groups).T.to(coefficients)
            yield weights, (coefficients @ weights.T).clamp_min(0)


@dataclass(frozen=True, eq=False)
class _Read:
    """A text, the document of each position, and each layer's coefficients, which are 0 where a window starts."""

    text: RuleText
    document: Int[np.ndarray, " pos"]
    coefficients: dict[int, _Coefficients]


@torch.no_grad()
def _read(lm: Decoder, corpus: CorpusSource, layers: Sequence[int], tokens: int) -> _Read:
    """Run the model on the first windows of a corpus."""
    parts, document, found = list[Tensor](), list[int](), {layer: list[Tensor]() for layer in layers}
    for one in windows_of(corpus, WINDOW, overlap=0).segments(lm):
        if len(parts) * WINDOW >= tokens:
            break
        if len(one) == WINDOW:
            seen = run(lm, one.tokens[None].to(lm.device), "coefficients", layers=layers, logits=False)
            parts.append(one.tokens)
            document.append(one.document)
            for layer in layers:
                found[layer].append(seen.at("coefficients", layer)[0].float().cpu())
                found[layer][-1][0] = 0  # the first position of a window does not depend on the text
    token = torch.cat([*parts, torch.zeros(0, dtype=torch.long)]).numpy()
    strings = tuple(lm.token_strings(list(range(lm.d_vocab))))
    text = RuleText.of(token, np.arange(0, len(token), WINDOW), strings, model_classes(lm, embedding=False))
    documents = np.repeat(np.array(document, dtype=np.int64), WINDOW)
    return _Read(text, documents, {layer: torch.cat(rows) for layer, rows in found.items()})


def group_scores(
    lm: Decoder,
    layers: Sequence[int],
    corpus: CorpusSource = None,
    *,
    n_groups: int | None = None,
    tokens: int = 50_000,
    passages: int = 48,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Table:
    """Test groups of memories that are made in four ways; return a table with a row for each layer and way.

    Args:
        n_groups: number of groups of a layer in each way; by default a tenth of its memories.
        tokens: number of tokens of the corpus to run the model on.
        passages: number of passages at which values are added, as in `build_atlas`.
        progress: called with the number of layers done, and of all.

    Raises:
        InvalidInput: the text has too few documents, or fewer positions than groups.

    Memory: the coefficients of all chosen layers, and twice those of one.
    """
    lm = require_decoder(lm)
    chosen = [lm.layer(n) for n in layers]
    read = _read(lm, corpus, chosen, tokens)
    fitted = torch.from_numpy(split_documents(read.document, seed).finding)
    rows: list[tuple[int | str | float | None, ...]] = []
    for done, layer in enumerate(chosen):
        progress(done, len(chosen))
        k = n_groups or max(1, lm.n_memories_of(layer) // 10)
        weights, at, size = list[Tensor](), list[np.ndarray](), list[np.ndarray]()
        for own, activations in grouped(lm, layer, read.coefficients.pop(layer), fitted, k, seed):
            weights.append(own)
            top = activations.T.topk(min(FIRINGS, len(activations)), dim=1)
            at.append(torch.where(top.values > 0, top.indices, -1).numpy())
            size.append(top.values.numpy())
        starts = np.zeros(lm.n_layers + 1, dtype=np.int64)
        starts[layer + 1 :] = len(WAYS) * k
        source = AtlasSource(
            read.text, read.document, {"positive": np.vstack(at)}, {"positive": np.vstack(size)}, starts
        )
        values = torch.cat(weights).to(lm.device) @ written_values(lm, layer).float()
        describer = LayerDescriber(
            lm,
            source,
            unread_windows(lm, None, passages),
            values=lambda _, rows, values=values: values[rows],
            seed=seed,
        )
        lines, words = describer.lines(layer), describer.words_alone(layer)
        for i, way in enumerate(WAYS):
            own_lines = lines[i * k : (i + 1) * k]
            accuracies = [one for line in own_lines if (one := line.test_accuracy) is not None]
            by_rule = np.array([bool(line.input_passes) for line in own_lines])
            by_words = np.array([words.get((line.index, line.pole), False) for line in own_lines])
            accuracy = float(np.mean(accuracies)) if accuracies else None
            shares = (float(by_rule.mean()), accuracy, float(by_words.mean()), float((by_rule & by_words).mean()))
            rows.append((layer, way, k, *shares))
    names = ("layer", "way", "groups", "input_passes", "rule_accuracy", "output_passes", "both_pass")
    notes = {"tokens": len(read.text), "firings": FIRINGS, "passages": passages}
    provenance = lm.provenance(seed=seed, notes=notes)
    return Table.of_rows("Groups of memories (FFN neurons), by the two tests of an atlas", names, rows, provenance)
