"""Apply a dictionary to a model: features of a prompt, tokens that they promote, edits, texts, and attribution.

The model's activation is never replaced by the dictionary's reconstruction. The difference between them, the
reconstruction error, stays in every run and is a separate row of every attribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.concepts.value_concepts import VectorConcepts, vector_concepts
from unembed.corpus import Corpus, open_corpus
from unembed.corpus.token_stream import TokenStream
from unembed.dictionaries.attribution import feature_attribution
from unembed.dictionaries.dictionary import Dictionary
from unembed.dictionaries.files import open_dictionary
from unembed.dictionaries.triggers import TopFeatures
from unembed.errors import InvalidInput, OutOfRange
from unembed.lens import read
from unembed.logit_attribution import Attribution
from unembed.memories.clustering.value_clusters import cluster
from unembed.models.decoder import Decoder, require_decoder
from unembed.names import Point
from unembed.results import Table, quoted
from unembed.stream.capture_points import require_point
from unembed.stream.hooks import Hook, attach_hooks
from unembed.stream.interventions import Edit, Edits, as_edits, edited
from unembed.stream.run import Run, Tokens, run
from unembed.sweeps import sweep
from unembed.validation import as_int, positive_int


def attach(
    lm: Decoder,
    dictionary: Dictionary | Sequence[Dictionary] | str | Path,
    layer: int | None = None,
    point: Point | None = None,
    *,
    folder: str | None = None,
) -> AttachedDictionary:
    """Attach a dictionary to a layer and capture point of a model.

    Args:
        dictionary: a dictionary, a list of them (one for each layer of a cross-layer transcoder), or a source for
            `open_dictionary`.
        layer: the layer whose activation is encoded; when None, the one that the dictionary's files name.
        point: the capture point of this activation, such as "resid_post"; when None, the one that the files name.
        folder: a folder inside a hub repository.

    Raises:
        InvalidInput: the dictionary is damaged, no layer is named, or its width is not that of the activation.
        PointMissing: the layer has no such point.
    """
    lm = require_decoder(lm)
    opened = open_dictionary(dictionary, folder) if isinstance(dictionary, (str, Path)) else dictionary
    parts = (opened,) if isinstance(opened, Dictionary) else tuple(opened)
    placed: list[tuple[int, Dictionary]] = []
    for part in parts:
        own = part.layer if layer is None else layer
        if own is None:
            raise InvalidInput(
                f"dictionary {part.name}",
                why="its files do not name the layer that it reads",
                instead="Pass the layer as `layer`",
            )
        if point is not None:
            part = replace(part, reads=point, writes=part.writes if part.is_transcoder else point)
        at = lm.layer(own)
        if at + len(part.W_dec) > lm.n_layers:
            raise InvalidInput(
                f"dictionary {part.name} at layer {at}",
                why=f"it writes to {len(part.W_dec)} layers, but the model has {lm.n_layers - at} from this layer on",
            )
        require_point(lm, part.reads, at)
        require_point(lm, part.writes, at)
        for what, n in (("reads", part.W_enc.shape[0]), ("writes", part.b_dec.shape[0])):
            if n != lm.d_model:
                raise InvalidInput(
                    f"dictionary {part.name}",
                    why=f"it {what} vectors of {n} channels, but the model's have {lm.d_model}",
                )
        placed.append((at, _on(lm, part.to(lm.device), at)))
    return AttachedDictionary(lm, tuple(placed))


def feature_edit(layer: int, index: int, value: float, action: Literal["set", "scale", "add"] = "set") -> Edit:
    """Return an edit of one feature: "set" it to `value`, "scale" it by `value`, or "add" `value` to it."""
    return Edit("feature", action, layer, index, value)


class AttachedDictionary:
    """A dictionary attached to a model. A feature is identified by (layer, index), and named L5F1234."""

    def __init__(self, lm: Decoder, parts: Sequence[tuple[int, Dictionary]]) -> None:
        self.lm, self.parts = lm, tuple(parts)
        self._by_layer = dict(self.parts)

    def __repr__(self) -> str:
        first = self.parts[0][1]
        n = sum(part.n_features for _, part in self.parts)
        where = f"{first.reads} -> {first.writes}" if first.is_transcoder else first.reads
        return f"AttachedDictionary({first.name}: {n:,} features at {where} of layers {[n for n, _ in self.parts]})"

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose activations are encoded."""
        return tuple(self._by_layer)

    def _layer(self, layer: int | None) -> int:
        """Return the number of a layer, counted from 0; None: the first layer that has a dictionary."""
        return self.layers[0] if layer is None else self.lm.layer(layer)

    def part(self, layer: int) -> Dictionary:
        """Return the dictionary that encodes the activation of a layer.

        Raises:
            OutOfRange: no dictionary encodes an activation of this layer.
        """
        layer = self.lm.layer(layer)
        if layer not in self._by_layer:
            raise OutOfRange(
                f"features of layer {layer}", why=f"the dictionary encodes only layers {list(self.layers)}"
            )
        return self._by_layer[layer]

    def feature(self, layer: int, index: int) -> tuple[int, int]:
        """Check a feature, and return its layer and index.

        Raises:
            OutOfRange: there is no such feature.
        """
        part, number = self.part(layer), as_int("feature", index)
        if not 0 <= number < part.n_features:
            raise OutOfRange(f"feature {number}", why=f"layer {layer} has {part.n_features} features, counted from 0")
        return self.lm.layer(layer), number

    def points(self) -> tuple[str, ...]:
        """Return the capture points whose activations the dictionary encodes and reconstructs."""
        return tuple(dict.fromkeys(p for _, part in self.parts for p in (part.reads, part.writes)))

    @torch.no_grad()
    def features(self, tokens: Tokens | Run, layer: int | None = None) -> Float[Tensor, "batch pos feature"]:
        """Return the activations of all features of a layer; by default, of the first layer that has a dictionary."""
        layer = self._layer(layer)
        part = self.part(layer)
        seen = tokens if isinstance(tokens, Run) else run(self.lm, tokens, part.reads, layers=[layer], logits=False)
        return part.encode(seen.at(part.reads, layer))

    @torch.no_grad()
    def error(self, tokens: Tokens | Run, layer: int | None = None) -> Float[Tensor, "batch pos d_model"]:
        """Return activation minus reconstruction at a layer; by default, at the first layer that has a dictionary."""
        layer = self._layer(layer)
        seen = tokens if isinstance(tokens, Run) else run(self.lm, tokens, self.points(), logits=False)
        own = seen.at(self.part(layer).writes, layer)
        return own - self._reconstruction(seen, layer).to(own)

    def _reconstruction(self, seen: Run, layer: int) -> Tensor:
        """Return a layer's reconstruction: the sum of what the features of this and earlier layers write to it."""
        total = None
        for at, part in self.parts:
            if 0 <= layer - at < len(part.W_dec):
                written = part.decode(part.encode(seen.at(part.reads, at)), layer - at)
                total = written if total is None else total + written
        assert total is not None
        return total

    @torch.no_grad()
    def readings(
        self, layer: int | None = None, top: int = 10, *, bottom: bool = False, show_unlearned: bool = False
    ) -> tuple[Int[Tensor, "feature k"], Float[Tensor, "feature k"]]:
        """Return ids and scores of the tokens that each feature promotes most (or, with `bottom`, suppresses most).

        A score is the product of the feature's decoder row with a column of W_U (the basis "raw").
        """
        part = self.part(self._layer(layer))
        vectors = part.W_dec[0].to(self.lm.dtype)
        hidden = None if show_unlearned else self.lm.unlisted
        found = read(self.lm, -vectors if bottom else vectors, top, basis="raw", hidden=hidden)
        return found.ids, -found.logits if bottom else found.logits

    @torch.no_grad()
    def promoting(self, token: str | int, top: int = 10) -> Table:
        """Find the features that promote a token most: largest product of decoder row and the token's column of W_U."""
        token = self.lm.single_token(token)
        direction = self.lm.weights.W_U[:, token]
        scores = [(part.W_dec[0].to(direction) @ direction).float().cpu() for _, part in self.parts]
        best = torch.cat(scores).topk(min(positive_int("top", top), sum(len(s) for s in scores)))
        names = [f"L{n}F{i}" for n, part in self.parts for i in range(part.n_features)]
        columns = {"feature": [names[i] for i in best.indices.tolist()], "score": best.values.tolist()}
        return Table(
            f"Features that promote {quoted(self.lm.token_strings([token])[0])}",
            columns,
            self.lm.provenance(basis="raw"),
        )

    def concepts(self, features: Sequence[tuple[int, int]]) -> VectorConcepts:
        """Find concepts that the top tokens of each feature's decoder row share; see `vector_concepts`."""
        chosen = [self.feature(*f) for f in features]
        vectors = torch.stack([self.part(n).W_dec[0][i] for n, i in chosen])
        return vector_concepts(self.lm, vectors, [f"L{n}F{i}" for n, i in chosen], [n for n, _ in chosen])

    def clusters(self, n_clusters: int, layer: int | None = None) -> Int[Tensor, " feature"]:
        """Cluster the features of a layer by the cosine of their decoder rows, with exact average linkage."""
        part = self.part(self._layer(layer))
        return cluster(part.W_dec[0].detach().float().cpu(), n_clusters)

    def triggers(
        self, corpus: Corpus | Sequence[str], layer: int | None = None, top: int = 10, *, tokens_per_batch: int = 2048
    ) -> FeatureTriggers:
        """Find the texts of a corpus on which each feature of a layer has its largest activations, exactly."""
        layer = self._layer(layer)
        part = self.part(layer)
        opened = corpus if isinstance(corpus, Corpus) else open_corpus(corpus)
        [(values, positions)] = sweep(
            self.lm, opened, [TopFeatures(part, layer, top)], tokens_per_batch=tokens_per_batch
        )
        return FeatureTriggers(self.lm, layer, values, positions, TokenStream.of(opened.segments(self.lm)))

    @contextmanager
    def edited(self, edits: Edits) -> Iterator[None]:
        """A context manager: within it, every forward pass of the model runs with these features changed.

        The change of a feature times its decoder row is added to the model's activation, so the reconstruction error
        stays as it is.

        Args:
            edits: edits of features, such as `Edit("feature", "set", layer, index, 0.0)`.
        """
        changes: dict[int, list[Edit]] = {}
        for edit in as_edits(edits):
            if edit.target != "feature":
                raise InvalidInput(
                    f"an edit of a {edit.target}",
                    why="a dictionary can edit only its features",
                    instead="Use lm.edited(edits)",
                )
            layer, index = self.feature(edit.layer, as_int("feature", edit.index))
            changes.setdefault(layer, []).append(replace(edit, layer=layer, index=index))
        waiting: dict[int, list[tuple[Tensor, Tensor]]] = {}
        """For each layer whose output will be changed, pairs: the changes of some features, and these features' value
        vectors. The product of the two is added when the output is computed.
        """

        def read_features(x: Tensor, layer: int) -> None:
            part = self.part(layer)
            columns = list(dict.fromkeys(as_int("feature", e.index) for e in changes[layer]))
            local = [replace(e, index=columns.index(as_int("feature", e.index))) for e in changes[layer]]
            features = part.encode(x)[..., columns]
            difference = edited(features, local, current.rows) - features
            for offset, W_dec in enumerate(part.W_dec):
                waiting.setdefault(layer + offset, []).append((difference, W_dec[columns]))

        def write(x: Tensor, layer: int) -> Tensor | None:
            added = waiting.pop(layer, [])
            return x + sum((difference @ values).to(x) for difference, values in added) if added else None

        def read_and_write(x: Tensor, layer: int) -> Tensor | None:
            read_features(x, layer)
            return write(x, layer)

        hooks: dict[tuple[str, int], Hook] = {}
        for layer in changes:
            part = self.part(layer)
            if part.is_transcoder:
                hooks[part.reads, layer] = read_features
                hooks |= {(part.writes, n): write for n in range(layer, layer + len(part.W_dec))}
            else:
                hooks[part.writes, layer] = read_and_write
        with attach_hooks(self.lm, {}, (), hooks) as current:
            yield

    def attribution(
        self, tokens: Tokens, token: str | int, position: int = -1, against: str | int | None = None
    ) -> Attribution:
        """Split the logit of a token by feature; see `unembed.dictionaries.attribution.feature_attribution`."""
        return feature_attribution(self.lm, self.parts, tokens, token, position, against)


def _on(lm: Decoder, part: Dictionary, layer: int) -> Dictionary:
    """Adapt a dictionary to this model's norms.

    If it was trained on the norm's output before gain and bias, gain and bias are folded into its encoder. The mean
    over channels is subtracted only if the model's norms subtract it.
    """
    if part.centred and not (lm.structure.final_norm is not None and lm.structure.final_norm.centred):
        part = replace(part, centred=False)  # TransformerLens subtracts it only if the norms do
    site = lm.structure.blocks[layer].feed_forward
    norm = None if site is None else site.pre_norm
    if norm is None or not part.without_gain or part.reads != "mlp_in":
        return part
    return part.for_norm(norm.gain, norm.bias)


@dataclass(frozen=True, eq=False)
class FeatureTriggers:
    """The largest activations of every feature over a corpus, and where they occur."""

    lm: Decoder
    layer: int
    values: Float[Tensor, "feature t"]
    """The largest activations of each feature, largest first; -inf where a feature has fewer."""
    positions: Int[Tensor, "feature t"]
    """The corpus positions of these activations; -1 where a feature has fewer."""
    stream: TokenStream

    def of(self, index: int, context: int = 12) -> list[tuple[float, str]]:
        """Return a feature's largest activations, each with the text up to the token where it occurs."""
        found = []
        for value, at in zip(self.values[index].tolist(), self.positions[index].tolist(), strict=True):
            if at >= 0:
                ids = self.stream.prefix(at, special=False)[-context:]
                found.append((value, self.lm.decode(torch.from_numpy(ids.astype("int64")))))
        return found
