"""How each shipped model was made, as rows: sizes, and the phases of its training.

The phases are those that the shipped weights went through, restarts included; `make models` walks them again.
"""

from __future__ import annotations

from dataclasses import dataclass

from unembed.training.networks import Shape

WINDOW = 512  # tokens read from one place of the text; a row of a batch is this or a fraction of it


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one setting, up to and without step `until`."""

    until: int
    context: int  # tokens a row sees; divides WINDOW
    windows: int  # places in the text per batch; a batch holds windows * WINDOW tokens
    lr: tuple[float, float] = (1.0, 1.0)  # shares of the peak at its first step and at its end
    repeated_windows: int = 0  # windows of the batch made to repeat themselves
    periods: tuple[int, int] = (32, 256)  # shortest and longest repetition in them
    rise: int = 0  # updates over which the rate rises from zero once more, where optimisers begin anew
    weight_decay: float = 0.05  # on hidden matrices, per unit of learning rate; none on embeddings, norms, biases
    sparsity: float = 0.0  # what a unit of the memories' spread costs, in nats


@dataclass(frozen=True)
class Recipe:
    """Sizes, phases, peak learning rates."""

    shape: Shape
    phases: tuple[Phase, ...]
    muon_lr: float = 0.02
    adam_lr: float = 0.003
    warmup: int = 60
    seed: int = 0
    n_positions: int | None = None  # how many of the positions ship, all if not said
    history: str = ""  # what phases cannot say, for the model card
    limits: str = ""  # of this model, for the model card

    @property
    def steps(self) -> int:
        """Updates in all."""
        return self.phases[-1].until

    def phase(self, step: int) -> Phase:
        """The setting for the update after `step` updates."""
        return next(phase for phase in self.phases if step < phase.until)

    def lr_factor(self, step: int) -> float:
        """Share of the peak rate after `step` updates: risen over `warmup`, else the phases' straight lines."""
        first = max((phase.until for phase in self.phases if phase.until <= step), default=0)
        phase = self.phase(step)
        begin, end = phase.lr
        risen = min([1.0, *((step - start + 1) / n for start, n in ((0, self.warmup), (first, phase.rise)) if n)])
        return risen * (begin + (end - begin) * (step - first) / (phase.until - first))


RECIPES: dict[str, Recipe] = {
    "wren": Recipe(
        shape=Shape(n_layers=6, d_model=256, n_heads=8, d_head=32, d_mlp=1024, d_vocab=8192, context=512),
        n_positions=256,
        phases=(
            Phase(600, context=128, windows=16),
            Phase(2000, context=256, windows=8, lr=(0.85, 0.85), rise=30),
            Phase(3150, context=256, windows=8, lr=(0.85, 0.495)),
            Phase(3700, context=256, windows=8, lr=(0.495, 0.324), weight_decay=0.2, sparsity=0.02),
            Phase(4100, context=256, windows=8, lr=(0.324, 0.2), weight_decay=0.2, sparsity=0.04),
            Phase(4600, context=512, windows=8, lr=(0.2, 0.0), weight_decay=0.2, sparsity=0.04),
        ),
        history="""\
How long the first phase was is an estimate (between 4 and 7 million tokens): its checkpoint was lost, and training went
on from its weights in half precision, with optimisers begun anew. From step 3150 a price on how many memories write at
once was added to the loss (`sparsity` in the recipe) and the hidden matrices' weight decay raised from 0.05 to 0.2.
Positions from 256 on, seen in the last 500 steps alone, came out worse by 0.3 nats a token; they did not ship.""",
        limits="""It has read less than one pass of its text. The aim of its making was a theme in at least 20 of the 60
values listed; 16 have one, four of them no more than word endings. Many values still answer to pieces of words.""",
    ),
    "attn-1l": Recipe(
        Shape(n_layers=1, d_model=144, n_heads=8, d_head=24, d_mlp=0, d_vocab=8192, context=512),
        (Phase(300, context=512, windows=8), Phase(600, context=512, windows=8, lr=(1.0, 0.0))),
        limits="Trained briefly: its heads complete pairs of tokens, and hardly any looks at a fixed distance.",
    ),
    "attn-2l": Recipe(
        Shape(n_layers=2, d_model=144, n_heads=8, d_head=24, d_mlp=0, d_vocab=8192, context=512),
        (
            Phase(1700, context=256, windows=16),
            Phase(2600, context=512, windows=8, repeated_windows=1, periods=(16, 256), rise=30),
            Phase(2700, context=512, windows=8, repeated_windows=2, periods=(16, 256)),
            Phase(3200, context=512, windows=8, lr=(1.0, 0.0), repeated_windows=2, periods=(16, 256)),
        ),
        history="""\
How the first phase went is an estimate (between 12 and 17 million tokens, part of them with repeating windows): its
checkpoint was lost, and training went on from its weights in half precision, with optimisers begun anew. The windows
that repeat themselves (their first 16 to 256 tokens, over and over) are there so that induction heads form; without
them little of the text returns within 512 tokens.""",
        limits="Its induction head owes itself to text made to repeat: it does not show when such heads form unhelped.",
    ),
}
"""The shipped models; phases as they were walked."""
