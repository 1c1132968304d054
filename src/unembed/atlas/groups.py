"""`unembed atlas groups`: groups of memories (FFN neurons), tested as an atlas tests single ones.

A group has a weight for each memory of its layer. Its value is the weighted sum of the memories' value vectors, and its
activation at a position tells how far the group explains the coefficients there. Groups are made in four ways:

- factors: semi-non-negative factors of the coefficients on half of the text (`memories.semi_nmf`).
- clusters: clusters of the value vectors; the activation is the sum of the members' coefficients, or 0 if that is
  negative.
- shuffled factors: a control for factors; before the factorisation, each memory's coefficients are shuffled over the
  positions.
- random clusters: a control for clusters; memories are assigned at random to clusters of the same sizes.

All groups of a layer are described together, so that each has the same controls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.analyses import Analysis, Cost, Needs
from unembed.atlas.layer import AtlasSource, LayerDescriber, split_documents
from unembed.atlas.lines import Line
from unembed.atlas.text import RuleText
from unembed.concepts.value_concepts import model_classes
from unembed.corpus import CorpusSource
from unembed.corpus.windows import windows_of
from unembed.document.model import Answer
from unembed.errors import InvalidInput
from unembed.memories.clustering.value_clusters import cluster
from unembed.memories.semi_nmf import group_activations, semi_nmf
from unembed.memories.truth_of_values import unread_windows
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder, require_decoder
from unembed.options import Corpus, Layers, MaxTokens, Option, Out, Progress, Seed
from unembed.results import Table, check_writable
from unembed.stream.run import run

WINDOW, FIRINGS = 256, 100
"""Number of tokens in a window of text; number of positions that count as firings of a group, which are those with its
largest activations."""
MEMBERS = 8
"""Number of memories that are listed for a group: those with the largest absolute weights."""
WAYS = ("factors", "clusters", "shuffled factors", "random clusters")
_Weights = Float[Tensor, "group memory"]
_Coefficients = Float[Tensor, "pos memory"]


def grouped(
    lm: Decoder, layer: int, coefficients: _Coefficients, fitted: Bool[Tensor, " pos"], n_groups: int, seed: int
) -> Iterator[tuple[_Weights, Float[Tensor, "pos group"]]]:
    """Yield the weights and activations of a layer's groups, in the order of `WAYS`.

    Args:
        fitted: True for the positions whose coefficients are factored.
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
    """A text, the document of each position, and each layer's coefficients, set to 0 at the start of every window."""

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
                found[layer][-1][0] = 0  # ignored, because a window's first token has no text before it
    if not parts:
        raise InvalidInput(
            "groups of memories on this text", why=f"no document has {WINDOW} tokens", instead="Give longer documents"
        )
    token = torch.cat(parts).numpy()
    strings = tuple(lm.token_strings(list(range(lm.d_vocab))))
    text = RuleText.of(token, np.arange(0, len(token), WINDOW), strings, model_classes(lm, embedding=False))
    documents = np.repeat(np.array(document, dtype=np.int64), WINDOW)
    return _Read(text, documents, {layer: torch.cat(rows) for layer, rows in found.items()})


@dataclass(frozen=True, eq=False)
class GroupScores:
    """Groups of memories made in four ways, and how many of them pass the two tests of an atlas."""

    shares: Table
    """One row for each layer and each way of making groups."""
    groups: Table
    """One row for each group: the memories with the largest weights, the description, and whether the tests pass."""


def group_scores(
    lm: Decoder,
    layers: Sequence[int],
    corpus: CorpusSource = None,
    *,
    n_groups: int | None = None,
    tokens: int = 50_000,
    passages: int = 48,
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> GroupScores:
    """Test groups of memories that are made in four ways.

    Args:
        n_groups: number of groups of a layer that are made in each of the ways; by default a tenth of its memories.
        tokens: number of tokens of the corpus to run the model on.
        passages: number of passages at whose last token the groups' values are added, as in `build_atlas`.
        progress: called with the name of a step, the number of layers done, and the number of all layers.

    Raises:
        InvalidInput: the text has too few documents, none that is long enough, or fewer positions than groups.

    Memory: the coefficients of all chosen layers, and twice those of one.
    """
    lm = require_decoder(lm)
    chosen = [lm.layer(n) for n in layers]
    read = _read(lm, corpus, chosen, tokens)
    fitted = torch.from_numpy(split_documents(read.document, seed).finding)
    added_at = unread_windows(lm, None, passages)
    shares, listed = list[tuple[int | str | float | None, ...]](), list[tuple[object, ...]]()
    for done, layer in enumerate(chosen):
        progress("layers", done, len(chosen))
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
        describer = LayerDescriber(lm, source, added_at, values=lambda _, rows, values=values: values[rows], seed=seed)
        lines, words = describer.lines(layer), describer.words_alone(layer)
        for i, way in enumerate(WAYS):
            rows = [
                _row(lm, layer, way, n, weights[i][n], lines[i * k + n], words.get((i * k + n, "positive"), False))
                for n in range(k)
            ]
            by_rule, by_words = (np.array([row[at] for row in rows]) for at in (-2, -1))
            accuracies = [one for line in lines[i * k : (i + 1) * k] if (one := line.test_accuracy) is not None]
            accuracy = float(np.mean(accuracies)) if accuracies else None
            means = (float(by_rule.mean()), accuracy, float(by_words.mean()), float((by_rule & by_words).mean()))
            shares.append((layer, way, k, *means))
            listed += rows
    progress("layers", len(chosen), len(chosen))
    notes = {"tokens": len(read.text), "firings": FIRINGS, "passages": passages}
    provenance = lm.provenance(seed=seed, notes=notes)
    names = ("layer", "way", "groups", "input_passes", "rule_accuracy", "output_passes", "both_pass")
    return GroupScores(
        Table.of_rows("Groups of memories (FFN neurons), by the two tests of an atlas", names, shares, provenance),
        Table.of_rows("Groups of memories (FFN neurons), and their descriptions", _COLUMNS, listed, provenance),
    )


_COLUMNS = ("layer", "way", "group", "memories", "weights", "fires", "raises", "input_passes", "output_passes")


def _row(
    lm: Decoder, layer: int, way: str, number: int, weights: Float[Tensor, " memory"], line: Line, words_pass: bool
) -> tuple[object, ...]:
    order = [n for n in weights.abs().argsort(descending=True)[:MEMBERS].tolist() if weights[n]]
    memories, own = [lm.memory_name(layer, n) for n in order], [float(weights[n]) for n in order]
    return (layer, way, number, memories, own, line.input, line.output, bool(line.input_passes), words_pass)


def atlas_groups(
    lm: Decoder,
    *,
    layers: Layers = None,
    groups: Annotated[
        int | None,
        Option("Number of factors, and of clusters, for each layer; default: a tenth of the layer's memories.", low=1),
    ] = None,
    corpus: Corpus = None,
    max_tokens: MaxTokens = 50_000,
    out: Out = None,
    seed: Seed = 0,
    progress: Progress = None,
) -> Answer:
    """Compare two kinds of groups of memories (FFN neurons): factors of coefficients and clusters of values.

    A factor is a group of memories that are active together; semi-non-negative matrix factorisation of the coefficients
    gives each memory a weight of either sign. A group's value is the weighted sum of its memories' value vectors. A
    group is tested like a memory of an atlas: by a rule for where it is active, and by the words that its value raises.
    The table gives the share of groups that pass. --out writes every group, with its memories and description, to a
    Parquet file. By default only the last layer is examined.

    Caution: Compare factors with factors of shuffled coefficients, and clusters with clusters of random members. Where
    nearly every vector raises the same words at all passages, as in last layers, the output test alone tells little.

    Source: Ding, Li and Jordan 2010, section 3; Shafran et al. 2025.
    """
    if out is not None:
        check_writable(out)
    if not lm.memory_layers:
        lm.feed_forward(0)  # raises the error that says why there are no memories
    found = group_scores(
        lm,
        layers or lm.memory_layers[-1:],
        corpus,
        n_groups=groups,
        tokens=max_tokens,
        seed=seed,
        progress=progress or (lambda _what, _done, _total: None),
    )
    if out is not None:
        found.groups.to_parquet(out)
    return Answer.of_table(found.shares, percent=("input_passes", "output_passes", "both_pass"))


ANALYSIS = Analysis(
    "atlas groups",
    atlas_groups,
    Needs.MODEL,
    Cost.MINUTES,
    "unembed atlas groups --layers 7",
    source="Shafran et al. 2025",
)
