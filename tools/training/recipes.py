"""How each shipped model is made, as rows: sizes, and the phases of its training.

The recipe of the shipped weights themselves is in their `recipe.json`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tools.training.networks import Shape

WINDOW = 512  # tokens read from one place of the text; a row of a batch is this or a fraction of it


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one setting, up to and without step `until`."""

    until: int
    context: int  # tokens in a row; divides WINDOW
    windows: int  # places in the text per batch; a batch holds windows * WINDOW tokens
    lr: tuple[float, float] = (1.0, 1.0)  # shares of the peak at its first step and at its end
    repeated_windows: int = 0  # windows of the batch that repeat their first tokens
    periods: tuple[int, int] = (32, 256)  # shortest and longest repetition in them
    rise: int = 0  # updates over which the rate rises from zero again, where the optimisers restart
    weight_decay: float = 0.05  # on hidden matrices, per unit of learning rate; none on embeddings, norms, biases
    value_decay: float = 0.3  # the same, on the memories' values
    sparsity: float = 0.0  # what each memory that fires costs, in nats; the mean over layers counts
    nearness: float = 0.0  # what values cost that are far from every group of tokens, in nats (`readable.distance_of`)
    agreement: float = 0.0  # what values cost that do not promote the token after their trigger (`add_agreement`)
    trigger_context: int = 0  # tokens that are read alone to find that trigger; divides `context`, 0: a whole row
    lens: float = 0.0  # what each nat costs that the logit lens of a layer needs for the next token (`add_lens`)
    revive: bool = False  # whether memories that never fire get new keys at its first step


@dataclass(frozen=True)
class Recipe:
    """Sizes, phases, peak learning rates."""

    shape: Shape
    phases: tuple[Phase, ...]
    muon_lr: float = 0.02
    adam_lr: float = 0.003
    warmup: int = 60
    seed: int = 0
    n_positions: int | None = None  # how many of the positions ship; all when None
    history: str = ""  # what phases do not show, for the model card
    limits: str = ""  # of this model, for the model card

    @property
    def steps(self) -> int:
        """Updates in total."""
        return self.phases[-1].until

    def phase(self, step: int) -> Phase:
        """The setting for the update after `step` updates."""
        return next(phase for phase in self.phases if step < phase.until)

    @property
    def agreement_begins(self) -> int:
        """The updates before the first phase with `agreement`; all, where there is none."""
        begins = (0, *(phase.until for phase in self.phases[:-1]))
        return next((begin for begin, phase in zip(begins, self.phases, strict=True) if phase.agreement), self.steps)

    def lr_factor(self, step: int, *, began: int = 0) -> float:
        """Share of the peak rate after `step` updates: a rise over `warmup` from `began`, else the phases' lines."""
        first = max((phase.until for phase in self.phases if phase.until <= step), default=0)
        phase = self.phase(step)
        begin, end = phase.lr
        risen = min([1.0, *((step - start + 1) / n for start, n in ((began, self.warmup), (first, phase.rise)) if n)])
        return risen * (begin + (end - begin) * (step - first) / (phase.until - first))


def save(recipe: Recipe, path: Path) -> None:
    """Write a recipe as JSON: the phases of a run, or of the model that it produced."""
    path.write_text(json.dumps(asdict(recipe), indent=1) + "\n")


def load(path: Path) -> Recipe:
    """What `save` wrote."""
    row = json.loads(path.read_text())
    phases = [Phase(**phase | {pair: tuple(phase[pair]) for pair in ("lr", "periods")}) for phase in row["phases"]]
    return Recipe(**row | {"shape": Shape(**row["shape"]), "phases": tuple(phases)})


LAST_OF_WREN = Phase(0, context=256, windows=32, weight_decay=0.1, value_decay=2.0, nearness=0.5)
LAST_AGREEING = replace(LAST_OF_WREN, windows=16, lr=(0.14, 0.0), rise=200, sparsity=0.0005, agreement=0.06, lens=0.05)
RECIPES: dict[str, Recipe] = {
    "wren": Recipe(
        Shape(n_layers=8, d_model=256, n_heads=8, d_head=32, d_mlp=1024, d_vocab=16_384, context=256),
        # The first 51 million tokens went through two decays. At the peak rate the held-back loss did not improve
        # between 35 and 58 million tokens, so the rest is lines from 0.3 of the peak to 0.
        (
            Phase(264, context=256, windows=16),
            Phase(1_564, context=256, windows=16, lr=(1.0, 0.0), weight_decay=0.1),
            Phase(2_500, context=256, windows=16, rise=200, weight_decay=0.1),
            Phase(3_374, context=256, windows=32, weight_decay=0.1),
            Phase(4_374, context=256, windows=32, lr=(1.0, 0.0), rise=200, weight_decay=0.1),
            Phase(10_450, context=256, windows=32, lr=(0.3, 0.0), rise=200, weight_decay=0.1),
            # For values that can be read: see `readable`. New keys need steps in which being active costs nothing.
            replace(LAST_OF_WREN, until=10_600, lr=(0.3, 0.2775), rise=200, sparsity=0.001, revive=True),
            replace(LAST_OF_WREN, until=10_820, lr=(0.2775, 0.2305), sparsity=0.001),
            replace(LAST_OF_WREN, until=10_930, lr=(0.2305, 0.207), revive=True),
            replace(LAST_OF_WREN, until=11_400, lr=(0.1, 0.05)),
            replace(LAST_OF_WREN, until=11_900, lr=(0.05, 0.0), sparsity=0.0005),
            # For values that promote what follows their triggers: those with few concepts alone change.
            replace(LAST_AGREEING, until=12_350),
            replace(LAST_AGREEING, until=12_750),
            replace(LAST_AGREEING, until=12_850, lr=(0.2, 0.0)),
            replace(LAST_AGREEING, until=12_970, lr=(0.3, 0.0), agreement=0.1),
            replace(LAST_AGREEING, until=13_090, lr=(0.3, 0.0), agreement=0.1),
        ),
        warmup=200,
        history="Training began from an earlier wren of six layers that had read 21.3 million tokens of the first\n"
        "third of this text in a vocabulary of 8,192 pieces: its layers became the first six, each token's embedding\n"
        "was initialised to the mean over the earlier pieces that spell it, and the last two layers began with random\n"
        "keys and zero output weights. The tokens counted above are those read since.\n\n"
        "Up to step 10,450 Muon trained the memories' values too, and the loss had a penalty on |c|_1 / |c|_2 of\n"
        "the lengths of sub-updates at a position (0.02, then 0.01). After that, one memory in each of six layers\n"
        "was always active, 402 of 8,192 were never active, and 19 of 60 values had a theme.\n\n"
        "The rows from step 10,450 on make values easier to read, easier than those of a model that is trained on the\n"
        "loss alone. Adam trains them. An active memory costs 0.001 nats (the mean over layers counts), then nothing,\n"
        "then 0.0005. A value of the upper half of the layers costs 0.5 nats times the difference between 0.3 and\n"
        "its mean cosine with the 20 nearest embeddings, where that is below 0.3 (random vectors: 0.2). At steps\n"
        "10,450 and 10,820, memories that were never active got new keys; 185 that were not active at the end either\n"
        "have the keys and values of step 10,450. From there on, one Wikipedia page in five was spelled as WikiText\n"
        "is; before, none.\n\n"
        "The rows from step 11,900 on make values of the upper half promote what follows their triggers (Geva et\n"
        "al. 2021, Fig. 4). Each nat that such a value needs, alone, for the token after its key's strongest\n"
        "position in the batch costs 0.06 nats, in the last two rows 0.1. Only values in whose top tokens automatic\n"
        "concepts find little change (`tools.changing_values`): 46 % of those of the upper half, and from step\n"
        "12,350 on 61 %. At step 12,750, some 350 of them whose concept was lost, and whose first token followed\n"
        "none of their key's ten strongest positions in a million tokens, got back what they were at step 11,900\n"
        "(`tools.restore_values`), and do not change after it. So that the layers' own predictions do not get\n"
        "worse, each nat that the logit lens after layers 4 to 6 needs for the next token costs 0.05 nats.\n\n"
        "Means of weights end the last three rows (`tools.mean_weights`). The weights of step 12,850 are the mean\n"
        "of those before and after the row. Those of step 12,970 are 0.6 of the result of the row and 0.4 of step\n"
        "12,850. A second run from step 12,850 read the text of that row with a price of 0.25 nats and a warm-up of\n"
        "100 steps. The weights in this folder are 0.4 of that run's, 0.4 of those at step 13,090, and 0.2 of step\n"
        "12,850.",
        limits="It has read its text two and a half times, about seventeen tokens for each of its weights. Two blind\n"
        "judges found the five samples grammatical and on topic; cut and penalty were chosen among some twenty\n"
        "settings so that they are. Of forty more, both judges found 33 grammatical, and 35 and 36 on topic.\n"
        "Judges of themes differ where eight tokens are enough: two others found themes in 49 and 56 values, and\n"
        "in 8 and 12 random vectors. Three more judges, for whom a theme needed ten tokens, copied out, found 42,\n"
        "40 and 42 values, and 2 random vectors each.",
    ),
    # Repeated windows let induction heads form early; the last half of what either model reads is natural text alone,
    # to which its heads then adapt.
    # From bigram counts (`bigram_model`): `windows` are the tokens of a batch whose followers are predicted.
    "attn-0l": Recipe(
        Shape(n_layers=0, d_model=96, n_heads=8, d_head=12, d_mlp=0, d_vocab=16_384, context=512),
        (Phase(500, context=1, windows=512, lr=(1.0, 0.0)),),
        adam_lr=0.02,
        warmup=20,
    ),
    "attn-1l": Recipe(
        Shape(n_layers=1, d_model=144, n_heads=8, d_head=24, d_mlp=0, d_vocab=16_384, context=512),
        (Phase(1_600, context=512, windows=16), Phase(2_000, context=512, windows=16, lr=(1.0, 0.0))),
    ),
    "attn-2l": Recipe(
        Shape(n_layers=2, d_model=144, n_heads=8, d_head=24, d_mlp=0, d_vocab=16_384, context=512),
        (
            Phase(6_200, context=512, windows=16, repeated_windows=2, periods=(16, 256)),
            Phase(9_400, context=512, windows=16),
            Phase(12_400, context=512, windows=16, lr=(1.0, 0.0)),
        ),
        warmup=200,
    ),
}
"""The shipped models as `make models` trains them."""
