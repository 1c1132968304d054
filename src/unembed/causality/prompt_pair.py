"""The two runs of activation patching: which tokens correspond, and activations of one run for use in the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.causality.metrics import Metric, MetricFunction, bound
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import Rerun
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.results import format_number
from unembed.stream.interventions import Edits
from unembed.stream.run import Run, Tokens
from unembed.validation import valid_seed

Direction = Literal["denoising", "noising"]
Alignment = Literal["auto"] | Sequence[tuple[int, int]]


@dataclass(frozen=True)
class GaussianNoise:
    """Noise to add to the embeddings of chosen tokens of the clean prompt, as in causal tracing.

    The run with this noise is the corrupted run.

    Attributes:
        positions: the positions of the tokens whose embeddings get noise.
        scale: standard deviation of the noise, as a multiple of the standard deviation of the prompt's embeddings.

    Source: Meng et al. 2022, section 2.1 (three standard deviations).
    """

    positions: tuple[int, ...]
    scale: float = 3.0
    seed: int = 0


def align(
    lm: Decoder, clean: Int[Tensor, " clean"], corrupted: Int[Tensor, " corrupted"], alignment: Alignment | None
) -> tuple[list[tuple[int, int]], str]:
    """Return pairs (position in clean, position in corrupted) of corresponding tokens, and how they were found.

    Raises:
        InvalidInput: prompts of unequal length have no alignment, or a pair is out of range.
    """
    if alignment is None:
        if len(clean) != len(corrupted):
            raise InvalidInput(
                f"prompts of {len(clean)} and {len(corrupted)} tokens",
                why="activations are patched between corresponding tokens",
                instead="Give prompts of equal length, or align them: --align, in Python alignment='auto' or pairs of "
                "positions",
            )
        return [(i, i) for i in range(len(clean))], f"token by token ({len(clean)} tokens)"
    if alignment == "auto":
        matcher = SequenceMatcher(None, clean.tolist(), corrupted.tolist(), autojunk=False)
        pairs: list[tuple[int, int]] = []
        for tag, a, b, c, d in matcher.get_opcodes():
            if tag in ("equal", "replace"):
                # If a name has more tokens than its counterpart, align the last tokens of both: at the last token, the
                # model has read the whole name.
                n = min(b - a, d - c)
                pairs += zip(range(b - n, b), range(d - n, d), strict=True)
        if not pairs:
            raise InvalidInput("the two prompts", why="no token of one prompt corresponds to a token of the other")
        equal = sum(int(clean[a]) == int(corrupted[c]) for a, c in pairs)
        left = max(len(clean), len(corrupted)) - len(pairs)
        pairs_found, left_out = _counted(len(pairs), "pair"), _counted(left, "token")
        return pairs, f"found: {pairs_found} of tokens, {equal} of them equal, {left_out} left out"
    pairs = [(int(a), int(c)) for a, c in alignment]  # type: ignore[union-attr]
    for a, c in pairs:
        if not (0 <= a < len(clean) and 0 <= c < len(corrupted)):
            raise InvalidInput(f"alignment {(a, c)}", why=f"the prompts have {len(clean)} and {len(corrupted)} tokens")
    if not pairs:
        raise InvalidInput("an empty alignment", why="nothing would be patched")
    return pairs, f"given: {_counted(len(pairs), 'pair')} of tokens"


def _counted(n: int, name: str) -> str:
    return f"{n} {name}" if n == 1 else f"{n} {name}s"


@dataclass(frozen=True, eq=False)
class PromptPair:
    """The two runs of activation patching: activations of the run `source` replace those of the run `target`."""

    clean: Rerun
    corrupted: Rerun
    direction: Direction
    positions: list[tuple[int, int]]
    """Positions (in the source, in the target) of corresponding tokens that are patched."""
    alignment: str
    """How the tokens were aligned, in words."""
    function: MetricFunction
    label: str
    """The metric in words."""
    ends: tuple[float, float]
    """The metric of the clean and of the corrupted run."""
    seed: int | None

    @property
    def source(self) -> Rerun:
        """The run that gives the activations."""
        return self.clean if self.direction == "denoising" else self.corrupted

    @property
    def target(self) -> Rerun:
        """The run in which activations are replaced."""
        return self.corrupted if self.direction == "denoising" else self.clean

    def columns(self) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
        """Return the corresponding positions in the source, and those in the target."""
        from_, into = zip(*self.positions, strict=True)
        return torch.tensor(from_), torch.tensor(into)


def prompt_pair(
    lm: Decoder,
    clean: Tokens | Run,
    corrupted: Tokens | Run | GaussianNoise,
    points: Sequence[str],
    metric: Metric | MetricFunction | None,
    alignment: Alignment | None,
    direction: Direction = "denoising",
    positions: Sequence[int] | None = None,
    edits: Edits = (),
) -> PromptPair:
    """Run both prompts; return their activations at `points`, the positions to patch, and the metric of both.

    The arguments are those of `patch`.

    Raises:
        InvalidInput: a position has no corresponding token, or the metric is the same in both runs.
    """
    if direction not in ("denoising", "noising"):
        raise InvalidInput(f"direction {direction!r}", why='it must be "denoising" or "noising"')
    first = Rerun(lm, clean, points, edits)
    second = _corrupted(lm, first, corrupted, points, edits)
    pairs, how = align(lm, first.ids[0], second.ids[0], alignment)
    pairs = pairs if direction == "denoising" else [(c, a) for a, c in pairs]
    if positions is not None:
        n_pos = (second if direction == "denoising" else first).n_pos
        wanted = {int(p) if int(p) >= 0 else int(p) + n_pos for p in positions}
        if unknown := wanted - {c for _, c in pairs}:
            raise InvalidInput(
                f"position {min(unknown)}",
                why="no token of the other prompt is aligned with it",
                instead=f"Use {sorted(c for _, c in pairs)}",
            )
        pairs = [(a, c) for a, c in pairs if c in wanted]
    function, label = bound(lm, metric, first.reference, second.reference)
    start, end = function(torch.stack([first.reference, second.reference])).double().tolist()
    if start == end:
        raise InvalidInput(
            f"metric {label}",
            why=f"it is {format_number(start)} in both runs",
            instead="Give prompts between which it differs",
        )
    seed = corrupted.seed if isinstance(corrupted, GaussianNoise) else None
    return PromptPair(first, second, direction, pairs, how, function, label, (start, end), seed)


def recovered(
    values: Float[Tensor, "..."], clean: float, corrupted: float, direction: Direction
) -> Float[Tensor, "..."]:
    """Return how far each value is from the metric of the run before patching (0) to that of the other run (1)."""
    start, end = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
    return (values - start) / (end - start) + 0.0  # adding 0 turns -0 into 0


def taken_from(
    run: Rerun, point: str, layer: int, pairs: Sequence[tuple[int, int]], index: int | None = None
) -> Replacement:
    """Return a replacement that writes an activation of `run` into another run.

    Args:
        pairs: positions of corresponding tokens: (in `run`, in the other run).
        index: the head or memory; the whole vector if None.
    """
    given = run.activation(point, layer)[torch.tensor([a for a, _ in pairs])]
    chosen: int | Tensor | None = index
    if index is not None and point == "z":
        given = given[:, index]
    elif index is not None:
        given, chosen = given[:, [index]], torch.tensor([index])
    return Replacement(point, layer, torch.tensor([c for _, c in pairs]), chosen, given)


def _corrupted(
    lm: Decoder, clean: Rerun, corrupted: Tokens | Run | GaussianNoise, points: Sequence[str], edits: Edits
) -> Rerun:
    if not isinstance(corrupted, GaussianNoise):
        return Rerun(lm, corrupted, points, edits)
    entering = clean.activation("resid_pre", 0)
    chosen = [p if p >= 0 else p + clean.n_pos for p in corrupted.positions]
    if not chosen or not all(0 <= p < clean.n_pos for p in chosen):
        raise InvalidInput(
            f"noise at {list(corrupted.positions)}", why=f"the prompt has {clean.n_pos} tokens, counted from 0"
        )
    generator = torch.Generator().manual_seed(valid_seed(corrupted.seed))
    noise = torch.randn(len(chosen), entering.shape[-1], generator=generator).to(entering)
    noisy = entering.clone()
    noisy[chosen] += corrupted.scale * entering.float().std().to(entering) * noise
    return Rerun(lm, clean.ids, points, edits, stream=noisy)
