"""The gallery as a question: memories (FFN neurons) ranked by the evidence that they do something a person can name."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer, Screen
from unembed.errors import InvalidInput
from unembed.gallery import FILE, SAVED, Gallery, memory_gallery, saved_gallery
from unembed.options import Index as GivenIndex
from unembed.options import Layers, Option, Progress, Seed, ShowUnlearned, Top

if TYPE_CHECKING:
    from unembed.models.model_source import UnopenedModel

LAYER_POOL = 50
"""Memories that are ranked where layers are given."""


def memories(
    model: UnopenedModel,
    *,
    top: Top = 20,
    layers: Layers = None,
    index: GivenIndex,
    by_score: Annotated[bool, Option("List by score alone, however many are alike.")] = False,
    recompute: Annotated[bool, Option("Rank anew, even where a ranking is saved.")] = False,
    show_unlearned: ShowUnlearned = False,
    seed: Seed = 0,
    progress: Progress = None,
) -> Answer:
    """Rank memories (FFN neurons) by the evidence that they do something a person can name, and describe them.

    Five ingredients: coherence and concept of the promoted tokens, pattern of the triggers, agreement of promoted
    tokens with what follows the triggers, and the effect of removing the memory there. The score is the mean size of
    those with a p-value of at most 0.01. Without an index only the concept can be judged.

    A saved ranking is shown where there is one: with the index, or with the embedded model. --layers, --seed,
    --show-unlearned and --recompute rank anew. Different ones are listed first: best first, none with the concept, the
    trigger pattern or three of the top tokens of one above it; then the others. --by-score lists by score alone. All
    forms of output have the same list; a terminal of fewer than 110 columns leaves out the five ingredients.

    Caution: The score ranks evidence, not importance, and a description is of the strongest contexts: most of where a
    memory fires lies outside them.
    """
    gallery, remarks = None, ()
    if not (recompute or layers or show_unlearned or seed) and model.is_as_saved:
        gallery, remarks = _saved(model, index, top)
    if gallery is None:
        chosen = {"layers": layers or None, "show_unlearned": show_unlearned, "seed": seed, "progress": progress}
        # Where a remark says that the saved ranking is damaged, it is replaced.
        gallery, more = _ranked(model, index, top, recompute=recompute or bool(remarks), **chosen)
        remarks += more
    listed = (gallery if by_score else gallery.varied()).first(top)
    return Answer.of_table(
        listed.to_table(), data=listed.to_dict(), screen=Screen("atlas"), view=listed, remarks=remarks
    )


def _saved(model: UnopenedModel, index: GivenIndex, top: int) -> tuple[Gallery | None, tuple[str, ...]]:
    """Return the ranking saved with the index, or with the embedded model, and remarks on it.

    None where there is none, or it is shorter than `top`, or (with an index chosen) over another corpus; with a remark
    where it is damaged.
    """
    opened, known = index(opened=False), model.known
    try:
        if opened is not None and known is not None:
            found = saved_gallery(opened.provenance, lambda: known.sampled, opened.path)
        else:
            opened = index(build=False)
            found = memory_gallery(model.open(), None if opened is None else opened.path)
    except InvalidInput as fault:
        return None, (f"{fault.what} cannot be used: {fault.why}. It was ranked anew",)
    is_of_index = not index.is_chosen or (opened is not None and (opened.path / FILE).exists())
    if found is None or len(found) < top or not is_of_index:
        return None, ()
    about = found.provenance
    over = f"saved ranking of {about.model} over {about.notes.get('corpus_name', about.corpus)}"
    return found, (f"{over}, made by unembed {about.version}; --recompute ranks anew",)


def _ranked(
    model: UnopenedModel, index: GivenIndex, top: int, *, recompute: bool, **chosen: Any
) -> tuple[Gallery, tuple[str, ...]]:
    """Rank over an index; without one, by the weights alone, which a remark says."""
    from unembed.gallery.ranking import rank_memories

    lm = model.open()
    # What is refused is refused before anything is built.
    for layer in chosen["layers"] or ():
        lm.layer(layer)
    if not lm.memory_layers:
        lm.feed_forward(0)
    if (known := index()) is not None:
        # To list memories that differ, more are ranked than are listed; the effect is measured for each of them.
        pool = max(top, SAVED if chosen["layers"] is None else LAYER_POOL)
        return known.memories(pool, recompute=recompute, **chosen), ()
    build = f"unembed index build --model {shlex.quote(model.name)}"
    remark = f"no index of {lm.name}: only concepts are judged, from the weights alone. For triggers, agreement and "
    return rank_memories(lm, None, max(top, SAVED), **chosen), (f"{remark}effects build one: {build}",)


ANALYSIS = Analysis("memories", memories, Needs.UNOPENED, Cost.MINUTES, "unembed memories --top 20 --html gallery.html")
