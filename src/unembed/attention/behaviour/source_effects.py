"""Show where one head attends from one position of a prompt, and what each source adds to a token's logit.

Source: Elhage et al. 2021, "Two-layer models: induction heads": its two pictures of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.analyses import Cost
from unembed.attention.paths.linearized import FrozenRun, frozen_run
from unembed.attention.weights.copying import Carried
from unembed.attention.weights.paper import NO_NUMBERS, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Answer, Screen, Section
from unembed.models.decoder import Decoder
from unembed.names import head_name
from unembed.options import Against, Head, Position, Prompt, Token
from unembed.results import Displayed, Provenance, Table, visible
from unembed.stream.run import Tokens, position_of, run


@dataclass(frozen=True, eq=False, repr=False)
class SourceEffects(Displayed):
    """One head at one position of a prompt: its attention to each source, and what each source adds to a logit.

    Attributes:
        attention: the attention weight of each earlier position and of the position itself.
        effect: what each source adds, through the head, to the logit of `token` minus that of `against`.
        token: the token whose logit is measured.
        against: the token whose logit is subtracted; None for the mean over all tokens.
    """

    attention: Float[Tensor, " src"]
    effect: Float[Tensor, " src"]
    token: int
    provenance: Provenance
    against: int | None = None

    def to_table(self) -> Table:
        """One row for each source."""
        columns = {
            "source": list(range(len(self.attention))),
            "attention": self.attention.tolist(),
            "effect": self.effect.tolist(),
        }
        return Table("Attention by source, and its effect on a logit", columns, self.provenance)


@torch.no_grad()
def source_effects(
    circuits: HeadMatrices,
    tokens: Tokens,
    layer: int,
    head: int,
    position: int,
    token: str | int,
    against: str | int | None = None,
    *,
    carried: Carried | None = None,
) -> SourceEffects:
    """Return the attention of one head at one position, and what each source adds to a token's logit.

    Patterns and norm scales are those of the run; biases are left out.

    Args:
        against: the token whose logit is subtracted; None for the mean over all tokens.
        carried: a function from a layer to the matrix (such as a lens's Jacobian) that gives, for a vector added at the
            layer, its effect on the residual stream after the last layer; None if later layers are to be ignored.

    Raises:
        OutOfRange: there is no such head or position.
    """
    lm = circuits.lm
    (layer, head), target = lm.layer_and_head(layer, head), lm.single_token(token)
    other = None if against is None else lm.single_token(against)
    frozen = frozen_run(lm, tokens)
    return effects_in_run(frozen, (layer, head), position_of(frozen.run, position), target, other, carried)


@torch.no_grad()
def effects_in_run(
    frozen: FrozenRun,
    place: tuple[int, int],
    position: int,
    token: int,
    against: int | None = None,
    carried: Carried | None = None,
) -> SourceEffects:
    """Return the same as `source_effects` from a run of one prompt; `place` is (layer, head)."""
    lm, (layer, head) = frozen.lm, place
    one = frozen.layers[layer]
    weights = one.pattern[0, head, position]
    entered = frozen.run.at("resid_pre", layer)
    entered = entered if one.entry_to_end is None else entered * one.entry_to_end.to(entered.dtype)
    written = one.sources_at(entered, position)[:, 0, head]  # (src, d_model)
    written = written if carried is None else written @ carried(layer).to(written)
    norm = lm.structure.final_norm
    read = written if norm is None else norm.frozen(written, frozen.final[0, position][None]).to(written.dtype)
    W_U = lm.weights.W_U.to(written.dtype)
    base = W_U.mean(dim=1) if against is None else W_U[:, against]
    effect = read @ (W_U[:, token] - base) * lm.structure.logit_scale
    notes = {"layer": layer, "head": head, "position": position, "token": token}
    provenance = lm.provenance(notes=notes if against is None else {**notes, "against": against})
    return SourceEffects(weights[: position + 1], effect[: position + 1], token, provenance, against)


def effects_section(
    lm: Decoder,
    tokens: Int[Tensor, " pos"],
    effects: SourceEffects,
    name: str,
    provenance: Provenance,
    table: str = "look",
    text: tuple[str, ...] = (),
) -> Section:
    """Show one head at one position as two copies of the prompt, one shaded by attention and one by effect.

    Args:
        tokens: the prompt; the last source in `effects` is the position that is shown.
        name: the name of the head, such as "L1H5".
        table: name of the table; the names of the two figures are this name with `_attention` or `_effect` appended.
        text: paragraphs before the explanation.
    """
    n = len(effects.attention)
    token = visible(lm.token_strings([effects.token])[0])
    base = (
        "the mean of all tokens"
        if effects.against is None
        else f"that of `{visible(lm.token_strings([effects.against])[0])}`"
    )
    names = lm.token_strings(tokens[:n])
    columns = {
        "position": list(range(n)),
        "token": names,
        "attention": effects.attention.tolist(),
        "effect": effects.effect.tolist(),
    }
    text = (
        *text,
        f"At position {n - 1}, `{visible(names[-1])}`. Attention: how much the head reads each source. Effect: what "
        f"reading it adds to the logit of `{token}`, above {base}; patterns and norms as in the run.",
    )
    figures = tuple(
        drawing("text", f"{table}_{y}", drawn, "token", y, table, percent=y == "attention", published=NO_NUMBERS)
        for y, drawn in (("attention", "Where it attends"), ("effect", f"What that adds to the logit of {token}"))
    )
    shown = exhibit(table, f"Head {name} at position {n - 1}", columns, provenance, percent=("attention",), folded=True)
    return Section("One position", text, (shown,), figures)


def look_answer(
    circuits: HeadMatrices,
    head: Head,
    prompt: Prompt,
    *,
    token: Token = None,
    against: Against = None,
    position: Position = -1,
) -> Answer:
    """Show where a head attends from one position, and what each source adds to a token's logit.

    Caution: Attention is not effect: a token that gets much attention may add nothing. What a source adds is its
    direct effect, which later layers can change.
    """
    lm = circuits.lm
    seen, provenance = run(lm, prompt), lm.provenance()
    column = position_of(seen, position)
    target = int(seen.logits[0, column].argmax()) if token is None else token
    other = None if against == "none" else against
    layer, index = lm.layer_and_head(*head)
    effects = source_effects(circuits, seen.tokens, layer, index, column, target, other)
    made = effects_section(lm, seen.tokens[0], effects, head_name(layer, index), provenance)
    at = None if position == -1 else str(column)
    screen = Screen("heads", {"prompt": prompt, "position": at, "head": str(head), "token": token})
    return Answer(f"Head {head} of {lm.name} at one position", (made,), provenance, screen=screen)


ANALYSIS = of_circuits("look", look_answer, 'look L1H0 "The first month of the first" --html look.html', Cost.INSTANT)
