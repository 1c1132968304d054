"""Induction on natural text: what the strongest induction head attends to, and which token it raises.

The head is measured wherever a chosen token occurs again in the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from unembed.attention.behaviour.head_scores import ROLE
from unembed.attention.behaviour.source_effects import SourceEffects, effects_in_run, effects_section
from unembed.attention.paths.linearized import frozen_run
from unembed.corpus.windows import windows_of
from unembed.document.exhibits import exhibit
from unembed.document.intervals import mean_of
from unembed.document.model import Section
from unembed.document.numbers import percent, signed
from unembed.errors import InvalidInput
from unembed.names import head_name
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, above, judged, judged_if, once
from unembed.results import format_percent, visible

WINDOW = 96
"""Number of tokens in a window of text."""
SEARCHED = 192
"""Largest number of windows that are searched for a token that recurs."""
WINDOWS = 12
"""Largest number of windows that the model is run on."""
FEW = 3
"""Smallest number of recurrences for which means are judged."""
SHOWN = 20
"""Number of recurrences listed."""
FREQUENT = 50
"""Number of most frequent tokens that are excluded when the recurring token is chosen."""


@dataclass(frozen=True, eq=False)
class Recurrence:
    """One place where the token occurs again in a window of text.

    Attributes:
        tokens: the window.
        position: the position of the recurrence.
        followed: the positions of the tokens that followed earlier occurrences.
        attention: the head's attention to these positions.
        others: attention to these positions, averaged over the other heads of the layer; NaN if there are none.
        raised: the token at the position in `followed` that the head attends to most.
        effect: what the head adds to the logit of `raised` by reading these positions, minus the mean over all tokens.
        effects: for each source, the head's attention to it and its effect on the logit of `raised`.
    """

    tokens: Int[Tensor, " pos"]
    position: int
    followed: tuple[int, ...]
    attention: float
    others: float
    raised: int
    effect: float
    effects: SourceEffects


def _windows(m: Measurements) -> Iterator[Int[Tensor, " pos"]]:
    """Yield windows of the text, without overlap, with the tokenizer's special tokens in front."""
    length = min(WINDOW, m.lm.n_ctx or WINDOW)
    for _, segment in zip(range(SEARCHED), windows_of(m.corpus, length, 0).segments(m.lm), strict=False):
        yield segment.tokens.long()


def recurrences(tokens: Sequence[int], token: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return each position where the token occurs again, with the positions that followed its earlier occurrences.

    If the token occurs twice in a row, the second occurrence does not count as a token that followed the first.
    """
    places = [at for at, one in enumerate(tokens) if one == token]
    found = ((at, tuple(q + 1 for q in places[:i] if q + 1 < at)) for i, at in enumerate(places))
    return [(at, followed) for at, followed in found if followed]


def token_that_recurs(windows: Sequence[Sequence[int]], words: set[int]) -> int | None:
    """Return the token whose recurrences are most often followed by a token that followed it earlier in the window.

    The result is None if this never happens.

    Args:
        words: the tokens to choose from; the `FREQUENT` most frequent tokens are left out.
    """
    counts = Counter(token for window in windows for token in window)
    common = {token for token, _ in counts.most_common(FREQUENT)}
    again = Counter[int]()
    for window in windows:
        for token in sorted({*window} & words - common):
            for at, followed in recurrences(window, token):
                again[token] += at + 1 < len(window) and window[at + 1] in {window[q] for q in followed}
    best = max(again, key=lambda token: (again[token], -token), default=None)
    return None if best is None or not again[best] else best


def _chosen_token(m: Measurements, windows: Sequence[Tensor]) -> int | None:
    if m.options.token is not None:
        return m.lm.single_token(m.options.token)
    ids = sorted({int(t) for window in windows for t in window})
    named = dict(zip(ids, m.lm.token_strings(ids), strict=True))
    # If the vocabulary marks the beginning of a word by a space, only tokens that begin a word are candidates: in the
    # report, these are easier to read than other pieces of words.
    start = " " if any(name.startswith(" ") for name in named.values()) else ""
    words = {i for i, name in named.items() if name.startswith(start) and len(name) > 3 and name.strip().isalpha()}
    return token_that_recurs([window.tolist() for window in windows], words)


@once
@torch.no_grad()
def on_natural_text(m: Measurements) -> Numbers | None:
    """Measure what the strongest induction head attends to and raises wherever a named token recurs in the text.

    The result is None for a model of one layer. If no token recurs, `found` is empty, and there are no other numbers.

    Raises:
        InvalidInput: the token of the options does not recur in the text.
    """
    if not m.evidence:
        return None
    windows = list(_windows(m))
    token = _chosen_token(m, windows)
    if token is None:
        return Numbers(found=[], n_windows=len(windows))
    places = [(window, found) for window in windows if (found := recurrences(window.tolist(), token))]
    if not places:
        raise InvalidInput(
            f"option token={m.options.token!r}",
            why=f"it does not occur twice in any of the first {len(windows)} windows of {WINDOW} tokens of the text",
            instead="Choose a token that recurs, such as a name",
        )
    best = max(m.evidence, key=lambda e: e.induction)
    found = [r for window, at in places[:WINDOWS] for r in _recurrences_in(m, window, at, (best.layer, best.head))]
    attention, others = [r.attention for r in found], [r.others for r in found]
    return Numbers(
        token=visible(m.lm.token_strings([token])[0]),
        head=head_name(best.layer, best.head),
        induction=best.induction,
        found=found,
        n_windows=min(WINDOWS, len(places)),
        attention=mean_of(attention, seed=m.seed),
        others=mean_of(others, seed=m.seed),
        lead=mean_of([a - b for a, b in zip(attention, others, strict=True)], seed=m.seed),
        effect=mean_of([r.effect for r in found], seed=m.seed),
    )


def _recurrences_in(
    m: Measurements, window: Int[Tensor, " pos"], at: Sequence[tuple[int, tuple[int, ...]]], place: tuple[int, int]
) -> list[Recurrence]:
    """Measure the head `place` (layer, head) at every recurrence in one window."""
    frozen = frozen_run(m.lm, window[None].to(m.lm.device))
    pattern, (layer, head) = frozen.layers[place[0]].pattern[0], place
    found = []
    for position, followed in at:
        weights = pattern[:, position, list(followed)].double()  # (head, source)
        raised = int(window[followed[int(weights[head].argmax())]])
        effects = effects_in_run(frozen, (layer, head), position, raised, carried=m.carried)
        total = weights.sum(dim=1)
        others = (total.sum() - total[head]) / (len(total) - 1) if len(total) > 1 else torch.nan
        effect = float(effects.effect[list(followed)].sum())
        found.append(Recurrence(window, position, followed, float(total[head]), float(others), raised, effect, effects))
    return found


def judge_natural_text(n: Numbers) -> Judgement:
    """Judge whether the induction head attends more than other heads to tokens that followed earlier occurrences.

    It must also raise the logit of the one of these tokens that it attends to most.
    """
    if not n.found:
        return judged(f"No word is followed by the same token as before in {n.n_windows} windows of the text.", None)
    here = (
        f"`{n.token}` recurs {len(n.found)} times in {n.n_windows} windows of the text. There head {n.head} puts "
        f"{percent(n.attention)} of its attention on what followed earlier occurrences, the other heads of its layer "
        f"{percent(n.others)}; it adds {signed(n.effect)} to the logit of that token."
    )
    conditions = (above(n.lead, 0.0), above(n.effect, 0.0)) if len(n.found) >= FEW else (None,)
    return judged_if(n.induction >= ROLE, here, *conditions)


def section(m: Measurements) -> Section | None:
    """Show one recurrence as two pictures, and every recurrence in a table; None for a model of one layer."""
    n = on_natural_text(m)
    if n is None:
        return None
    if not n.found:
        return Section("Induction on natural text", ("The text has no word that recurs with the same token after it.",))
    shown = max(n.found, key=lambda r: (len(r.followed), r.attention))
    text = (
        f"The token is `{n.token}`. In {n.n_windows} windows of the text it occurs again {len(n.found)} times. For "
        f"each recurrence, the table has the attention of head {n.head} to the tokens that followed earlier "
        "occurrences, and what this adds to the logit of the one that the head attends to most.",
    )
    made = effects_section(m.lm, shown.tokens, shown.effects, n.head, m.provenance, "natural_text_effects", text=text)
    listed = n.found[:SHOWN]
    texts = [m.lm.token_strings(r.tokens) for r in listed]
    ends = [(of, r.position + 1) for r, of in zip(listed, texts, strict=True)]
    cells = {
        "before_text": ["".join(of[max(0, end - 6) : end]) for of, end in ends],
        "next_token": [of[end] if end < len(of) else "" for of, end in ends],
        "raised_token": m.lm.token_strings(torch.tensor([r.raised for r in listed])),
        "attention": [r.attention for r in listed],
        "attention_of_others": [r.others for r in listed],
        "effect": [r.effect for r in listed],
    }
    every = exhibit(
        "natural_text", f"Where {n.token} recurs", cells, m.provenance,
        percent=("attention", "attention_of_others"),
    )  # fmt: skip
    return Section("Induction on natural text", made.text, (every, *made.exhibits), made.figures)


PARTS: tuple[Part[Measurements], ...] = (
    Part(
        section,
        (
            Quantity(
                "natural text",
                "On natural text an induction head attends to the tokens that followed earlier occurrences of the "
                "current token, and raises them.",
                where="Two-layer models: induction heads",
                what="Attention of the strongest induction head to what followed, wherever a named token recurs, and "
                "what that adds to the logit of the token there.",
                published="in words",
                test=f"Over at least {FEW} recurrences the attention is above that of the layer's other heads, and the "
                "effect on the logit above 0, both with intervals over recurrences. A head below "
                f"{format_percent(ROLE, 0)} on repeated random tokens is no induction head and is not judged.",
                measure=on_natural_text,
                judge=judge_natural_text,
                extends=lambda m: m.lm.n_layers > 2,
            ),
        ),
        name="natural text",
        absent="Induction on natural text",
        when=lambda m: m.lm.n_layers > 1,
    ),
)
