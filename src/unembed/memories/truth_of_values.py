"""Check the token scores of a value vector against what adding the value vector does to the model's logits.

The scores of a value vector, computed with the unembedding or a fitted lens, are called its reading. For the check, the
value vector is added to the stream after its layer at the last position of several passages on which the lens was not
fitted, scaled to a tenth of the stream's length, and the following layers are run. The mean change of the logits is the
measured effect. A reading is true as far as its scores correlate with this effect over the vocabulary, and as far as
its top tokens are those that rise most. As a control, readings are compared with the effects of other value vectors of
the same layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.analyses import Analysis, Cost, Needs
from unembed.corpus import CorpusSource
from unembed.corpus.windows import windows_of
from unembed.errors import InvalidInput
from unembed.jacobian.basis import basis_or_default, in_basis, lens_of
from unembed.jacobian.passes import last_token_passes
from unembed.lens import logits_of
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import Basis, MemoryAddress, SignedMemory, read_signed_memory
from unembed.options import Corpus, Layers, Memories, PerLayer, Places, Seed, ValueBasis
from unembed.results import Displayed, Provenance, Table, format_cell
from unembed.stream.decomposition import require_one_stream
from unembed.validation import as_tuple, one_of, positive_int, valid_seed

SIZE = 0.1
"""The length of the added vector, as a share of the stream's length at the position where it is added."""
LISTED = 20
"""Number of top tokens compared to compute an overlap."""
CONTEXTS, LENGTH = 24, 32
OTHERS = 12
"""Smallest number of memories of each layer that are compared for the control."""
_APART = 8
"""Every eighth window of a text is used, so that the windows are from different passages."""
_UNREAD = 8192
"""Number of tokens left out at the start of a text if no lens records how many it was fitted on."""
_QUANTILE = 0.99

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False, repr=False)
class ReadingTruth(Displayed):
    """The agreement of value vectors' token scores (readings) with the measured effects of adding the value vectors."""

    memories: tuple[SignedMemory, ...]
    names: tuple[str, ...]
    correlation: Float[Tensor, " memory"]
    """The correlation, over the vocabulary, of a value vector's token scores with the measured change of the logits."""
    overlap: Float[Tensor, " memory"]
    """The share of the `LISTED` highest-scored tokens that are among the `LISTED` tokens whose logits rise most."""
    control: dict[int, Float[Tensor, " pair"]]
    """By layer: the correlations of token scores of one value vector with the effects of others of the layer."""
    basis: Basis
    contexts: int
    provenance: Provenance

    def bound(self, layer: int) -> float:
        """Return the 99 % quantile of the control's absolute correlations in a layer.

        A reading whose correlation is smaller is no better than that of another value vector.
        """
        return self._bounds[layer]

    @cached_property
    def _bounds(self) -> dict[int, float]:
        return {layer: float(pairs.abs().quantile(_QUANTILE)) for layer, pairs in self.control.items()}

    @property
    def borne_out(self) -> list[bool]:
        """Whether each memory's correlation is at least the control's 99 % quantile (`bound`)."""
        return [r >= self.bound(one.layer) for r, one in zip(self.correlation.tolist(), self.memories, strict=True)]

    def to_table(self) -> Table:
        """Return a table by memory: correlation, overlap, and whether the effect confirms the reading."""
        bounds = [self.bound(one.layer) for one in self.memories]
        columns: dict[str, list[Any]] = {
            "memory": list(self.names),
            "layer": [one.layer for one in self.memories],
            "index": [one.index for one in self.memories],
            "pole": [one.pole for one in self.memories],
            "correlation": self.correlation.tolist(),
            "overlap": self.overlap.tolist(),
            "control_99": bounds,
            "borne_out": self.borne_out,
        }
        title = f"Readings (basis {self.basis}) against what adding the value does in {self.contexts} contexts"
        return Table(title, columns, self.provenance)

    def in_words(self, row: int = 0) -> str:
        """Return one memory's correlation and overlap, with what they mean, as a sentence."""
        r, layer = float(self.correlation[row]), self.memories[row].layer
        share, bound = round(LISTED * float(self.overlap[row])), self.bound(layer)
        if r < bound:
            meaning = "its reading is not borne out"
        elif share:
            meaning = "adding it raises what it is said to promote"
        else:
            meaning = "adding it raises other tokens more than those listed"
        return (
            f"{meaning}: r {format_cell(r)} over the vocabulary, {share or 'none'} of the {LISTED} "
            f"highest-scored tokens among the {LISTED} that rise most (99 % of other values' effects stay below r "
            f"{format_cell(bound)}; {self.contexts} contexts)"
        )

    def by_layer(self) -> Table:
        """Return a table by layer: median correlation, mean overlap, and the control's median and 99 % quantile."""
        layers = sorted(self.control)
        at = torch.tensor([one.layer for one in self.memories])
        columns = {
            "layer": layers,
            "memories": [int((at == n).sum()) for n in layers],
            "correlation": [float(self.correlation[at == n].median()) for n in layers],
            "overlap": [float(self.overlap[at == n].mean()) for n in layers],
            "control": [float(self.control[n].abs().median()) for n in layers],
            "control_99": [self.bound(n) for n in layers],
        }
        return Table(f"How true readings of values are (basis {self.basis})", columns, self.provenance)


def reading_truth(
    lm: Decoder,
    memories: Sequence[MemoryAddress | SignedMemory | str] | None = None,
    *,
    per_layer: int = CONTEXTS,
    layers: Sequence[int] | None = None,
    basis: Basis | None = None,
    corpus: CorpusSource = None,
    contexts: int = CONTEXTS,
    seed: int = 0,
    progress: Progress = lambda _what, _done, _total: None,
) -> ReadingTruth:
    """Measure how well the token scores of value vectors agree with what adding the value vectors does to the logits.

    Args:
        memories: the memories (FFN neurons): layer and index, or name, or name with a sign (-L5M278), which multiplies
            the value vector. When None, a random sample.
        per_layer: number of memories to draw from each layer when `memories` is None.
        layers: the layers to draw from; all when None.
        basis: the basis of the token scores; when None, "jacobian" where a lens is fitted, else "raw".
        corpus: anything `unembed.open_corpus` takes; the shipped text when None. Its first tokens, on which the lens
            may have been fitted, are left out.
        contexts: number of passages at whose last position each value vector is added.
        seed: the seed of the random choice of memories.
        progress: called with the name of a step, the amount done, and the total.

    Raises:
        OutOfRange: a memory or layer that the model does not have.
        InvalidInput: the text is too short, or the basis is "frozen".
        Unsupported: the model has several streams.

    Memory: twice the scores over the vocabulary of a layer's memories, those of the control included.
    """
    lm, contexts = require_decoder(lm), positive_int("contexts", contexts)
    basis = basis_or_default(lm, basis, "raw")
    one_of("basis", basis, ("raw", "final", "jacobian"))
    require_one_stream(lm, "the truth of readings")
    asked = _asked(lm, memories, per_layer, layers, valid_seed(seed))
    windows = unread_windows(lm, corpus, contexts)
    correlation, overlap = torch.empty(len(asked)), torch.empty(len(asked))
    control: dict[int, Tensor] = {}
    by_layer = {n: [i for i, one in enumerate(asked) if one.layer == n] for n in sorted({one.layer for one in asked})}
    for done, (layer, rows) in enumerate(by_layer.items()):
        progress("adding values", done, len(by_layer))
        own = [asked[i] for i in rows]
        compared = [*own, *_others(lm, layer, own, seed)]
        numbers = torch.tensor([one.index for one in compared])
        added = written_values(lm, layer, numbers.to(lm.device))
        added = added * torch.tensor([one.sign for one in compared], device=lm.device)[:, None]
        read, measured = _scores(lm, added, layer, basis), value_effects(lm, added, layer, windows)
        table = _correlations(read, measured)
        control[layer] = table[numbers[:, None] != numbers]
        correlation[rows] = table.diagonal()[: len(own)]
        overlap[rows] = _overlap(read, measured)[: len(own)]
    progress("adding values", len(by_layer), len(by_layer))
    notes = {"contexts": contexts, "length": LENGTH, "size": SIZE}
    return ReadingTruth(
        tuple(asked),
        tuple(lm.memory_name(*one) for one in asked),  # pyright: ignore[reportArgumentType]
        correlation,
        overlap,
        control,
        basis,
        contexts,
        lm.provenance(basis=basis, seed=seed, notes=notes),
    )


def unread_windows(lm: Decoder, corpus: CorpusSource, contexts: int) -> list[Int[Tensor, " pos"]]:
    """Return `contexts` windows of a text, all after the tokens on which the model's lens was fitted and checked.

    Raises:
        InvalidInput: the text has fewer such windows.
    """
    lens = lens_of(lm)
    unread = _UNREAD if lens is None else max(_UNREAD, lens.tokens_read)
    segments = windows_of(corpus, LENGTH, overlap=0).segments(lm)
    whole = (one.tokens for one in segments if len(one) == LENGTH)
    found = [one.to(lm.device) for one in islice(whole, unread // LENGTH, unread // LENGTH + _APART * contexts, _APART)]
    if len(found) < contexts:
        raise InvalidInput(
            f"{len(found)} passages of the text",
            why=f"{contexts} are needed, all after the first {unread:,} tokens, on which a lens may have been fitted",
            instead="Give a longer text, or fewer contexts",
        )
    return found


def _asked(
    lm: Decoder,
    memories: Sequence[MemoryAddress | SignedMemory | str] | None,
    per_layer: int,
    layers: Sequence[int] | None,
    seed: int,
) -> list[SignedMemory]:
    if memories is not None:
        named = [
            read_signed_memory(one) if isinstance(one, str) else SignedMemory(*one)
            for one in as_tuple("memories", memories)
        ]
        return [SignedMemory(*lm.memory(*one.address), one.pole) for one in named]
    generator, found = torch.Generator().manual_seed(seed), list[SignedMemory]()
    for layer in lm.memory_layers if layers is None else [lm.layer(n) for n in layers]:
        drawn = torch.randperm(lm.n_memories_of(layer), generator=generator)[: positive_int("per_layer", per_layer)]
        found += [SignedMemory(layer, index) for index in sorted(drawn.tolist())]
    return found


def _others(lm: Decoder, layer: int, own: Sequence[SignedMemory], seed: int) -> list[SignedMemory]:
    """Draw random memories of a layer, so that with those in `own` the control has at least `OTHERS` memories."""
    missing = max(0, OTHERS - len(own))
    generator = torch.Generator().manual_seed(seed * 10_007 + layer)
    drawn = torch.randperm(lm.n_memories_of(layer), generator=generator)[: missing + len(own)].tolist()
    known = {one.index for one in own}
    return [SignedMemory(layer, index) for index in drawn if index not in known][:missing]


def _scores(
    lm: Decoder, vectors: Float[Tensor, "memory d_model"], layer: int, basis: Basis
) -> Float[Tensor, "memory d_vocab"]:
    readable, plain = in_basis(lm, vectors, layer, basis)
    return logits_of(lm, readable, plain).float()


@torch.no_grad()
def value_effects(
    lm: Decoder,
    vectors: Float[Tensor, "memory d_model"],
    layer: int,
    windows: Sequence[Int[Tensor, " pos"]],
    caches: Sequence[Any] | None = None,
) -> Float[Tensor, "memory d_vocab"]:
    """Return the mean change of the last position's logits when each vector is added to the stream after a layer.

    The vector is added at the last position of each window, scaled to `SIZE` times the stream's length.

    Args:
        caches: for each window, `cache_of` its tokens without the last; computed when None.
    """
    units = vectors / vectors.norm(dim=-1, keepdim=True).clamp_min(1e-30)

    def add(stream: Float[Tensor, "copy d_model"]) -> Float[Tensor, "copy d_model"]:
        sizes = SIZE * stream[:1].norm(dim=-1, keepdim=True)
        here = units.to(stream.device)  # a model may be placed on several devices
        moved = torch.cat([torch.zeros_like(here[:1]), sizes * here])  # row 0 is the unchanged baseline
        return stream + moved.to(stream.dtype)

    total = torch.zeros(len(vectors), lm.d_vocab, device=lm.device)
    for window, cache in zip(windows, caches or [None] * len(windows), strict=True):
        logits = last_token_passes(lm, window, 1 + len(vectors), layer, add, cache).float()
        total += logits[1:] - logits[:1]
    return total / len(windows)


def _correlations(
    read: Float[Tensor, "memory d_vocab"], measured: Float[Tensor, "memory d_vocab"]
) -> Float[Tensor, "memory memory"]:
    """Correlate, over the vocabulary, every memory's token scores (rows) with every measured effect (columns)."""
    rows, columns = (part - part.mean(dim=1, keepdim=True) for part in (read, measured))
    rows, columns = (part / part.norm(dim=1, keepdim=True).clamp_min(1e-30) for part in (rows, columns))
    return (rows @ columns.T).cpu()


def _overlap(
    read: Float[Tensor, "memory d_vocab"], measured: Float[Tensor, "memory d_vocab"]
) -> Float[Tensor, " memory"]:
    k = min(LISTED, read.shape[1])
    listed, risen = (part.topk(k, dim=1).indices for part in (read, measured))
    return (listed[:, :, None] == risen[:, None, :]).any(dim=2).float().mean(dim=1).cpu()


def truth_answer(
    lm: Decoder,
    *,
    memories: Memories = None,
    per_layer: PerLayer = 10,
    layers: Layers = None,
    basis: ValueBasis = None,
    corpus: Corpus = None,
    places: Places = CONTEXTS,
    seed: Seed = 0,
) -> Table:
    """Compare the tokens that value vectors promote with what adding the value vectors does to the predictions.

    Prints medians by layer over a random sample of memories (FFN neurons); with --memory, one row for each memory.
    correlation is between a value vector's token scores and the measured changes of the logits, over the vocabulary;
    overlap compares the first 20 tokens of both. control is the correlation with the effects of other value vectors of
    the same layer.

    Caution: A median hides memories that agree well or badly; --memory measures one memory. With few contexts, the
    correlations are uncertain.
    """
    found = reading_truth(
        lm,
        memories,
        per_layer=per_layer,
        layers=layers,
        basis=basis,
        corpus=corpus,
        contexts=places,
        seed=seed,
    )
    return found.to_table() if memories else found.by_layer()


ANALYSIS = Analysis(
    "truth",
    truth_answer,
    Needs.MODEL,
    Cost.MINUTES,
    example="unembed truth --memory L7M985",
)
