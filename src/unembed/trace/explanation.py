"""The analysis `explain`: why one token is, or is not, predicted next."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer, Exhibit, Screen, Section
from unembed.models.decoder import Decoder
from unembed.names import By
from unembed.options import (
    Against,
    Edits,
    Index,
    Option,
    Position,
    Prompt,
    ReadingBasis,
    ShowAll,
    ShowUnlearned,
    Token,
)
from unembed.results import Provenance, Table
from unembed.trace.build_view import TraceSettings, explain_view
from unembed.trace.trace import Trace
from unembed.trace.view import TraceView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unembed.stream.interventions import Edit


@dataclass(frozen=True)
class Explanation:
    """What `unembed explain` shows: the data of a trace, in full if `everything` is True, otherwise shortened."""

    view: TraceView
    provenance: Provenance
    everything: bool


def explain(
    lm: Decoder,
    prompt: Prompt,
    *,
    token: Token = None,
    against: Against = None,
    by: Annotated[
        By | None, Option("Split the logit in this way only; default: by component, by head and by memory.")
    ] = None,
    effects: Annotated[
        bool,
        Option(
            "Instead of the layers and the splits, list the components with the largest contributions (by memory, if "
            "--by names no other split), each with its direct effect and the total effect of ablating it alone."
        ),
    ] = False,
    position: Position = -1,
    n_writers: Annotated[
        int,
        Option(
            "Number of components (heads, memories ...) listed in each split of the logit.",
            low=1,
            aliases=("--top", "-k"),
            name="writers",
        ),
    ] = 12,
    everything: ShowAll = False,
    edits: Edits = (),
    basis: ReadingBasis = None,
    show_unlearned: ShowUnlearned = False,
    index: Index,
) -> Answer:
    """Explain why a token is predicted rather than another: the difference of their logits as a sum.

    Lists the token's rank after each layer. Then it splits the difference between the token's logit and the runner-up's
    by component, head, source token or memory (FFN neuron), and states the error of each sum. --against names another
    token than the runner-up; --against none explains the token's logit alone. With --csv: the listed components and
    their contributions.

    Caution: The sum has direct effects only. A component that acts through later components counts little, and one
    whose effect is undone by later components counts much. `ablate` measures the whole effect.
    """
    other, alone = compared_with(against)
    state = {"token": token, "against": other, "single": "1" if alone else None}
    if effects:
        trace = Trace(lm, prompt, edits)
        question = trace.question(token, other, position, alone=alone)
        attribution = trace.attribution(question.token, position, question.against, by or "memory")
        at = None if position == -1 else str(position % len(trace))
        shown = {"prompt": prompt, "effects": "total", "by": by, **state, "position": at}
        return Answer.of_table(attribution.with_effects(n_writers).to_table(), screen=Screen("trace", shown, edits))

    def tracing(text: str, /, *, edits: Sequence[Edit]) -> Trace:
        return Trace(lm, text, edits)

    settings = TraceSettings(prompt, position, 5, basis, show_unlearned, edits, None, other, alone)
    view, provenance = explain_view(lm, settings, token=token, by=by, writers=n_writers, tracing=tracing, index=index())
    shown = {"prompt": prompt, "by": by, **state, "position": None if position == -1 else str(view.position)}
    return Answer(
        f"Why {view.target.token}",
        (Section("Writers", exhibits=(Exhibit("writers", _writers(view, provenance)),)),),
        provenance,
        data=view.to_dict(),
        screen=Screen("trace", shown, edits),
        view=Explanation(view, provenance, everything),
    )


def compared_with(against: str | None) -> tuple[str | None, bool]:
    """Read `--against`: return the token to compare with (None: runner-up), and whether to explain the logit alone."""
    return (None, True) if against == "none" else (against, False)


def _writers(view: TraceView, provenance: Provenance) -> Table:
    """Return a table with one row for every listed component of every attribution."""
    rows = [{"by": attribution.by, **asdict(row)} for attribution in view.attributions for row in attribution.rows]
    return Table("Writers", {name: [row[name] for row in rows] for name in rows[0]}, provenance)


ANALYSIS = Analysis(
    "explain",
    explain,
    Needs.MODEL,
    Cost.SECONDS,
    'unembed explain "He was born in the United" --token " States" --against " Kingdom"',
)
