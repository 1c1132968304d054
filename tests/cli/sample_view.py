"""A view with everything a drawing has to cope with: negative coefficients, hostile token text, events, a remainder."""

from __future__ import annotations

from unembed.logit_attribution import Row
from unembed.models import Candidate, Token
from unembed.trace import (
    SCHEMA_TRACE,
    AttributionView,
    EventView,
    Finding,
    GridView,
    HeadEffectsView,
    HeadEffectView,
    HeadSource,
    LayerView,
    MemoriesView,
    SubUpdateView,
    TraceView,
)

WORDS = ["The", " first", " month", " of", " the", " year", " is"]
JANUARY = Candidate(9, " January", 0.34, 12.2)
HOSTILE = Candidate(8, "\x1b[31m<b>[red]\u202e", 0.08, 10.9)
THE = Candidate(7, " the", 0.05, 9.1)
PART = "Head L4H2, reading ·first, decides: without it ·January falls from 34% to 3.8%."
SETTLED = "By the logit lens, ·January is first from the FFN of layer 4 on."
DISPLACED = "Until then the logit lens has ·the first (20%), since layer 2."
RISE = "Layer 4 FFN: ·January rises from rank 12 to 1 and stays there (saturation)."
FALL = "Layer 1 FFN: ␛[31m<b>[red]⟨U+202E⟩ falls from rank 1 to 14 (elimination)."


def sample_view(n_layers: int = 6) -> TraceView:
    """A trace of `n_layers` layers in which the target rises to the first place in the layer before the last."""
    layers = [_layer(layer, n_layers) for layer in range(n_layers)]
    rows = [
        row
        for layer in range(n_layers)
        for row in (
            Row(f"layer {layer} attention", layer, None, None, 0.4 * layer - 0.9),
            Row(f"layer {layer} FFN", layer, None, None, 0.9 * layer - 0.2),
        )
    ]
    total = sum(row.contribution for row in rows) - 0.25
    return TraceView(
        schema=SCHEMA_TRACE,
        provenance={"model": "wren", "revision": None, "dtype": "float32"},
        model="wren",
        sizes=f"{n_layers} layers · 1,024 memories each · float32",
        prompt="".join(WORDS),
        edits=[],
        tokens=[Token(position, position + 100, word) for position, word in enumerate(WORDS)],
        position=6,
        basis="final",
        show_unlearned=False,
        prediction=[JANUARY, HOSTILE, THE],
        without_edits=None,
        target=Token(6, JANUARY.id, JANUARY.token),
        against=Token(6, THE.id, THE.token),
        layers=layers,
        grid=GridView(
            "resid_post",
            list(range(n_layers)),
            [[[THE, JANUARY]] * len(WORDS) for _ in range(n_layers)],
            {0: [1]},
        ),
        attributions=[
            AttributionView("component", JANUARY.id, JANUARY.token, THE.token, total, total, 2e-7, rows, 12, -0.25),
        ],
        memories=MemoriesView(
            [update for layer in layers for update in layer.sub_updates],
            [SubUpdateView(0, 29, 7.1, 1.0, 7.1, 0.4, 0.52, [" a"], [" b"], 0.9)],
            402,
            -0.5,
            total,
        ),
        findings=[
            _finding("head", PART, 2.1),
            _finding("settled", SETTLED, 1.6),
            _finding("displaced", DISPLACED, 0.6),
        ],
        heads=HeadEffectsView(
            [
                HeadEffectView(
                    4, 2, 1.21, [HeadSource(1, 101, WORDS[1], 0.9, 1.2), HeadSource(0, 100, "The", 0.1, 0.1)], 0.038
                ),
                HeadEffectView(5, 0, -0.4, [HeadSource(2, 102, HOSTILE.token, 0.7, -0.4)], 0.5),
            ],
            70,
            0.31,
        ),
        hidden=12,
        removed=22,
    )


def _finding(kind: str, sentence: str, nats: float) -> Finding:
    return Finding(kind, sentence, "what was looked for", nats, 5, "resid_post", None)


def _layer(layer: int, n_layers: int) -> LayerView:
    is_late = layer >= n_layers - 2
    after = [JANUARY, THE, HOSTILE] if is_late else [THE, HOSTILE, JANUARY]
    rank = 9413 // 8**layer if not is_late else 1
    events = []
    if layer == n_layers - 2:
        events.append(EventView("saturation", layer, 6, JANUARY.id, JANUARY.token, 12, 1, "ffn", RISE))
    if layer == 1:
        events.append(EventView("elimination", layer, 6, HOSTILE.id, HOSTILE.token, 1, 14, "ffn", FALL))
    months = [" January", " February", " March", " April", " May", " June", " July", "\n"]
    return LayerView(
        layer=layer,
        before=[THE, HOSTILE],
        middle=[HOSTILE, THE],
        after=after,
        rank_before=9413 // 8 ** max(0, layer - 1),
        rank_middle=rank + 1,
        rank_after=rank,
        events=events,
        sub_updates=[
            SubUpdateView(layer, 733, 2.31, 1.2, 2.77, 0.081, 0.31, months, [" a", "<i>"], 2.4),
            SubUpdateView(layer, 20, -0.17, 3.0, 0.51, 0.031, -0.15, months, [" a", "<i>", "\x00"]),
        ],
    )
