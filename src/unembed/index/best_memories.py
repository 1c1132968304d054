"""The command `unembed memories`: memories (FFN neurons) ranked by evidence that they do something nameable."""

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
"""Number of memories that are ranked if the user chooses layers."""


def memories(
    model: UnopenedModel,
    *,
    top: Top = 20,
    layers: Layers = None,
    index: GivenIndex,
    by_score: Annotated[
        bool, Option("Sort by score alone, even if similar memories (FFN neurons) are then listed next to each other.")
    ] = False,
    recompute: Annotated[bool, Option("Compute the ranking, even if a saved one exists.")] = False,
    show_unlearned: ShowUnlearned = False,
    seed: Seed = 0,
    progress: Progress = None,
) -> Answer:
    """Rank memories (FFN neurons) by the evidence that they do something a person can name, and describe them.

    Five measures count: the coherence of the promoted tokens; a concept that they share; a pattern in the texts on
    which the memory fires most; how often a promoted token follows in these texts; and the effect of removing the
    memory there. The score is the mean of the five, where a measure with a p-value above 0.01 counts as 0. Without an
    index, only the concept can be computed.

    A ranking saved with the index or shipped with the model is shown if there is one. --layers, --seed,
    --show-unlearned and --recompute compute a new one. Memories that differ from each other are listed first, then
    those that share the concept, the pattern or three top tokens with a memory above them; --by-score sorts by score
    alone. The output is the same in all formats, but a terminal of fewer than 110 columns leaves out the five measures.

    Caution: The score ranks evidence, not importance. A description covers the texts on which the memory fires most; it
    also fires on many others.
    """
    gallery, remarks = None, ()
    if not (recompute or layers or show_unlearned or seed) and model.is_as_saved:
        gallery, remarks = _saved(model, index, top)
    if gallery is None:
        chosen = {"layers": layers or None, "show_unlearned": show_unlearned, "seed": seed, "progress": progress}
        # If there are remarks here, the file of the saved ranking is damaged: it is replaced by a new ranking.
        gallery, more = _ranked(model, index, top, recompute=recompute or bool(remarks), **chosen)
        remarks += more
    listed = (gallery if by_score else gallery.varied()).first(top)
    return Answer.of_table(
        listed.to_table(), data=listed.to_dict(), screen=Screen("atlas"), view=listed, remarks=remarks
    )


def _saved(model: UnopenedModel, index: GivenIndex, top: int) -> tuple[Gallery | None, tuple[str, ...]]:
    """Return the ranking saved with the index or shipped with the model, and remarks to print with it.

    The ranking is None if none is saved, if it has fewer than `top` memories, if the user chose an index without one,
    or if the file is damaged. Only in this last case is there a remark, which gives the reason.
    """
    from unembed.jacobian import lens_identity

    opened, known = index(opened=False), model.known
    try:
        if opened is not None and known is not None:
            found, lens = saved_gallery(opened.provenance, lambda: known.sampled, opened.path), model.lens_identity
        else:
            opened = index(build=False)
            lm = model.open()
            found, lens = memory_gallery(lm, None if opened is None else opened.path), lens_identity(lm)
    except InvalidInput as fault:
        return None, (f"{fault.what} cannot be used: {fault.why}. It was ranked anew",)
    is_of_index = not index.is_chosen or (opened is not None and (opened.path / FILE).exists())
    if found is None or len(found) < top or not is_of_index:
        return None, ()
    about = found.provenance
    over = f"saved ranking of {about.model} over {about.notes.get('corpus_name', about.corpus)}"
    differs = () if (other := found.other_lens(lens)) is None else (other,)
    return found, (f"{over}, made by unembed {about.version}; --recompute ranks anew", *differs)


def _ranked(
    model: UnopenedModel, index: GivenIndex, top: int, *, recompute: bool, **chosen: Any
) -> tuple[Gallery, tuple[str, ...]]:
    """Rank the memories of an index; without one, rank by the weights alone, and return a sentence that says so."""
    from unembed.gallery.ranking import rank_memories

    lm = model.open()
    # Building an index takes long. So these calls raise an error first if a layer is invalid or the model has no
    # memories.
    for layer in chosen["layers"] or ():
        lm.layer(layer)
    if not lm.memory_layers:
        lm.feed_forward(0)
    if (known := index()) is not None:
        # More memories are ranked than listed, so that enough of them differ from each other.
        pool = max(top, SAVED if chosen["layers"] is None else LAYER_POOL)
        return known.memories(pool, recompute=recompute, **chosen), ()
    build = f"unembed index build --model {shlex.quote(model.name)}"
    remark = f"no index of {lm.name}: only concepts are judged, from the weights alone. For triggers, agreement and "
    return rank_memories(lm, None, max(top, SAVED), **chosen), (f"{remark}effects build one: {build}",)


ANALYSIS = Analysis("memories", memories, Needs.UNOPENED, Cost.MINUTES, "unembed memories --top 20 --html gallery.html")
