"""The commands `unembed atlas build`, which describes all memories from an index, and `unembed atlas card`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import numpy as np

from unembed.analyses import Analysis, Cost, Needs
from unembed.atlas import AtlasSource, RuleText, build_atlas, open_card
from unembed.concepts.value_concepts import model_classes
from unembed.document.model import Answer
from unembed.errors import InvalidInput
from unembed.gallery.descriptions import ATLAS
from unembed.memories.truth_of_values import unread_windows
from unembed.models.decoder import Decoder
from unembed.options import Index as GivenIndex
from unembed.options import Layers, Option, Out, Progress, Seed, ThisAtlas

if TYPE_CHECKING:
    from unembed.index.index import Index
    from unembed.models.model_source import UnopenedModel

PASSAGES = 48


def atlas_source(index: Index, lm: Decoder) -> AtlasSource:
    """Return the corpus of an index, and the positions where each memory (FFN neuron) fires most in it."""
    passages = index.passages
    token, starts = np.asarray(passages.token), np.asarray(passages.start[:-1])
    text = RuleText.of(token, starts, tuple(index.strings), model_classes(lm, embedding=False))
    document = np.asarray(passages.document)[passages.segment(np.arange(len(token)))]
    return AtlasSource(
        text,
        document,
        {pole: np.asarray(index.pole(pole)[1]) for pole in index.poles},
        {pole: np.asarray(index.pole(pole)[0]) for pole in index.poles},
        np.asarray(index.bounds),
    )


def atlas_build(
    model: UnopenedModel,
    *,
    out: Out = None,
    layers: Layers = None,
    drawn: Annotated[
        int | None, Option("Number of memories to draw at random from each layer; default: all.", low=1)
    ] = None,
    passages: Annotated[
        int,
        Option(
            "Number of text passages at whose last token each value vector is added: three quarters of them to choose "
            "the words that it raises, a quarter to test these words.",
            low=4,
        ),
    ] = PASSAGES,
    index: GivenIndex,
    seed: Seed = 0,
    progress: Progress = None,
) -> Answer:
    """Describe every memory (FFN neuron) of a model by a rule for where it fires and tokens that it raises; test both.

    Rules are found on half of the index's documents; those that do better than a control are selected on a quarter, and
    tested on the last quarter. The test of a rule is whether the memory fires where the rule is true; the test of the
    tokens is whether adding the memory's value vector raises them. The output folder (by default `atlas` in the index's
    folder) has memories.parquet, heads.parquet and a card with the results of the tests. The same command continues an
    interrupted build. If the atlas is in the index's folder, `unembed trace`, `unembed value` and the explorer show its
    descriptions.

    Caution: A description covers a memory's largest coefficients, which the index stores, not smaller ones.
    """
    lm = model.open()
    if not lm.memory_layers:
        lm.feed_forward(0)  # raises the error that says why there are no memories
    if (known := index()) is None:
        raise InvalidInput(
            f"no index of {lm.name}",
            why="an atlas describes where memories fire, which an index stores",
            instead=f"Build one: unembed index build --model {shlex.quote(model.name)} --triggers-per-key 200",
        )
    report = progress or (lambda _what, _done, _total: None)
    card = build_atlas(
        lm,
        atlas_source(known, lm),
        out or known.path / ATLAS,
        unread_windows(lm, None, passages),
        known.provenance,
        layers=layers,
        per_layer=drawn,
        seed=seed,
        progress=report,
    )
    return card.answer()


def atlas_card(
    atlas: ThisAtlas,
) -> Answer:
    """Show the card of an atlas: how many memories (FFN neurons) are described, and how the descriptions are tested.

    Caution: A description covers a memory's largest coefficients, which the index stores, not smaller ones.
    """
    return open_card(atlas).answer()


ANALYSES = (
    Analysis("atlas build", atlas_build, Needs.UNOPENED, Cost.MINUTES, "unembed atlas build --out wren.atlas"),
    Analysis("atlas card", atlas_card, Needs.NOTHING, Cost.INSTANT, "unembed atlas card wren.atlas"),
)
