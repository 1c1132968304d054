"""Split a prompt's logits into a sum over paths through heads.

The terms: the direct path (no head), each head alone, each pair of heads in which the later one reads the output of
the earlier one, and so on. The order of a path is its number of heads. For attention-only models the terms add up to
the logits exactly. In other models, patterns, norm scales and gates are fixed at their values in the run, and the
outputs of FFNs and other mixers are constants. Then the terms of all orders add up too, and the sum of the orders left
out is stated.

Source: Elhage et al. 2021, "Path expansion", "How do virtual attention heads matter".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.paths.linearized import FrozenRun, frozen_run, stream_by_order
from unembed.attention.weights.paper import NOT_IN_PAPER, of_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Answer, Section
from unembed.errors import InvalidInput, OutOfMemory, Unsupported
from unembed.lens import comparable_basis
from unembed.models.decoder import Decoder
from unembed.names import SUM_TOLERANCE, head_name
from unembed.options import Option, Position, Prompt, Token, Top
from unembed.results import Displayed, Provenance, Table, format_error, format_signed, visible
from unembed.stream.decomposition import prove, tolerance
from unembed.stream.run import Tokens, position_of
from unembed.validation import positive_int

Path = tuple[tuple[int, int], ...]
_MOST = 2 << 30
"""Largest number of bytes for the vectors of all paths below the highest order."""


@dataclass(frozen=True, eq=False, repr=False)
class Expansion(Displayed):
    """The logits at one position as a sum over paths through heads.

    Attributes:
        position: the position whose logits are split.
        order: the largest number of heads in a listed path.
        labels: a label for each path, such as "embedding", "L0H3", "L0H3 > L1H5".
        orders: the number of heads in each path.
        paths: the heads of each path, ((layer, head), ...), earliest first; () for paths without heads.
        vectors: what each path adds to the input of W_U (term, d_model).
        remainder: what all paths with more heads add to the input of W_U (d_model); zero up to rounding if there are
            none.
        constant: the part of the logits from biases of final norm and unembedding; None if there are no such biases.
        logits: the model's logits at the position.
        error: |terms + remainder - logits| / |logits|, before the soft cap where there is one.
        exact: True if only attention patterns were fixed and no path was left out. This is so for an attention-only
            model without norms that is expanded to its highest order.
    """

    lm: Decoder
    tokens: Int[Tensor, " pos"]
    position: int
    order: int
    labels: tuple[str, ...]
    orders: tuple[int, ...]
    paths: tuple[Path, ...]
    vectors: Float[Tensor, "term d_model"]
    remainder: Float[Tensor, " d_model"]
    constant: Float[Tensor, " d_vocab"] | None
    logits: Float[Tensor, " d_vocab"]
    error: float
    exact: bool

    def __len__(self) -> int:
        return len(self.labels)

    def to_table(self) -> Table:
        """Each path's contribution to the logit of the most probable token, largest first; then the remainder."""
        token = int(self.logits.argmax())
        contribution = self.contribution(token)
        order = contribution.abs().argsort(descending=True).tolist()
        rest = float(self.by_order(token)[-1])
        columns = {
            "term": [*(self.labels[i] for i in order), "higher orders"],
            "order": [*(self.orders[i] for i in order), None],
            "contribution": [*(float(contribution[i]) for i in order), rest],
        }
        name = self.lm.token_strings([token])[0]
        notes = {"position": self.position, "order": self.order, "error": self.error}
        return Table(f"Paths to the logit of {name!r}", columns, self.lm.provenance(notes=notes))

    def contribution(self, token: str | int) -> Float[Tensor, " term"]:
        """Return what each path adds to a token's logit."""
        return self.vectors @ self.lm.weights.W_U[:, self.lm.single_token(token)].to(self.vectors.dtype)

    def term(self, path: Path) -> Float[Tensor, " d_vocab"]:
        """Return the contribution of one path to every logit.

        Raises:
            InvalidInput: the expansion has no such path.
        """
        if path not in self.paths:
            raise InvalidInput(
                f"path {path}",
                why=f"the expansion has only {len(self)} terms, with at most {self.order} heads in a path",
            )
        chosen = torch.tensor([p == path for p in self.paths])
        return self.vectors[chosen].sum(dim=0) @ self.lm.weights.W_U.to(self.vectors.dtype)

    def by_order(self, token: str | int) -> Float[Tensor, " order"]:
        """Return the sum of a token's contributions for each order up to `order`, and for all higher orders."""
        contribution = self.contribution(token)
        index = torch.tensor(self.orders, device=contribution.device)
        sums = torch.zeros(self.order + 2, dtype=contribution.dtype, device=contribution.device).index_add_(
            0, index, contribution
        )
        rest = self.remainder @ self.lm.weights.W_U[:, self.lm.single_token(token)].to(contribution.dtype)
        return torch.cat([sums[:-1], rest[None]])

    def top(self, token: str | int, top: int = 10) -> list[tuple[str, float]]:
        """Return the paths with the largest contributions to a token's logit, positive or negative."""
        contribution = self.contribution(token)
        return [
            (self.labels[int(i)], float(contribution[i])) for i in contribution.abs().topk(min(top, len(self))).indices
        ]


@torch.no_grad()
def expand(lm: Decoder, tokens: Tokens, order: int = 2, position: int = -1) -> Expansion:
    """Split the logits of one prompt at one position into a sum over paths through heads.

    Args:
        tokens: one prompt.
        order: largest number of heads in a path; 3 is feasible only if the model has few heads.

    Raises:
        InvalidInput: there are several prompts, or the order is below 0.
        Unsupported: the logits are no linear function of the stream (adaptive softmax).
        SumNotProved: the terms miss the logits by more than the tolerance of the model's dtype.
        OutOfMemory: the vectors of all paths below the highest order do not fit in memory.

    Memory: (pos, d_model) for every path below the highest order, and (d_model) for every path.
    """
    order = positive_int("order", order, 0, 10_000)
    if comparable_basis(lm) == "final":
        raise Unsupported(
            f"path expansion of {lm.name}", why="the logits of its adaptive softmax are not linear in the stream"
        )
    frozen = frozen_run(lm, tokens)
    n_batch, pos = frozen.run.tokens.shape
    if n_batch != 1:
        raise InvalidInput(f"{n_batch} prompts", why="a path expansion is computed for one prompt")
    position = position_of(frozen.run, position)
    _check_room(lm, order, pos)
    labels, of_order, paths, vectors = [], [], [], []
    for label, _, written in frozen.constants:
        labels.append(label)
        of_order.append(0)
        paths.append(())
        vectors.append(written[0, position])
    # For each path found so far: what it has added to the residual stream that enters the current layer.
    streams: list[tuple[Path, Tensor]] = []
    for n, layer in frozen.layers.items() if order > 0 else ():
        entering: list[tuple[Path, Tensor]] = [((), frozen.constants_before(n)), *streams]
        for path, x in entering:
            at = layer.heads_at(x, position)[0]
            for head in range(len(at)):
                longer = (*path, (n, head))
                labels.append(" > ".join(head_name(a, b) for a, b in longer))
                of_order.append(len(longer))
                paths.append(longer)
                vectors.append(at[head])
            if len(path) + 1 < order and n < lm.attention_layers[-1]:
                outs = layer.heads(x)
                streams += [((*path, (n, head)), outs[:, head]) for head in range(outs.shape[1])]
    stacked = torch.stack(vectors)
    read = frozen.read_at(stacked[:, None], position)[:, 0]
    # The sum of all paths with more than `order` heads, computed without listing them.
    above = stream_by_order(frozen, max(order, lm.n_layers))[order + 1 :].sum(dim=0)
    rest = frozen.read(above)[0, position]
    return _closed(frozen, position, order, (labels, of_order, paths), read, rest)


def _check_room(lm: Decoder, order: int, pos: int) -> None:
    lower = sum(comb(len(lm.attention_layers) - 1, k) * lm.n_heads**k for k in range(1, order))
    needed = lower * pos * lm.d_model * 4
    if needed > _MOST:
        raise OutOfMemory(
            f"a path expansion of order {order} over {pos} tokens",
            why=f"the vectors of the {lower:,} paths of lower order take {needed >> 20:,} MiB",
            instead="Use a lower order or a shorter prompt",
        )


def _closed(
    frozen: FrozenRun, position: int, order: int, names: tuple[Any, Any, Any], read: Tensor, rest: Tensor
) -> Expansion:
    """Build the expansion with its constant term and its error against the model's logits."""
    lm, structure = frozen.lm, frozen.lm.structure
    logits = frozen.run.logits[0, position]
    total = frozen.logits_of_read(read.sum(dim=0) + rest)
    # The tolerance is at least that of float32, because many families compute norms and softmax in float32 whatever the
    # dtype of the weights.
    error = prove(f"the logits of {lm.name}", total, logits, max(tolerance(lm), SUM_TOLERANCE["float32"]))
    plain = (
        structure.final_norm is None
        and len(frozen.layers) == lm.n_layers
        and all(
            b.feed_forward is None and b.attention.pre_norm is None and b.attention.branch_norm is None
            for b in structure.blocks
        )
    )
    labels, of_order, paths = (tuple(part) for part in names)
    return Expansion(
        lm, frozen.run.tokens[0], position, order, labels, of_order, paths, read, rest, frozen.constant, logits, error,
        plain and order >= lm.n_layers,
    )  # fmt: skip


def expansion_section(
    circuits: HeadMatrices, found: Expansion, token: int, top: int, provenance: Provenance
) -> Section:
    """Show a token's logit by path: the largest terms, and the sum of each order."""
    name_of_token = visible(circuits.lm.token_strings([token])[0])
    contribution = found.contribution(token).double()
    order = contribution.abs().argsort(descending=True)[:top].tolist()
    terms = {
        "path": [found.labels[i] for i in order],
        "order": [found.orders[i] for i in order],
        "contribution": [float(contribution[i]) for i in order],
    }
    sums = {
        "order": [*(str(k) for k in range(found.order + 1)), f"above {found.order}"],
        "terms": [*(found.orders.count(k) for k in range(found.order + 1)), None],
        "contribution": found.by_order(token).double().tolist(),
    }
    kind = "exact" if found.exact else f"{_fixed_parts(found)} fixed at their values in the run"
    text = (
        f"The logit of `{name_of_token}` at position {found.position} is {format_signed(float(found.logits[token]))}; "
        f"as a sum over paths ({kind}) all logits are reproduced with a relative error of {format_error(found.error)}.",
    )
    exhibits = (
        exhibit("expansion_orders", "By order", sums, provenance),
        exhibit("expansion_terms", f"The largest of {len(found):,} terms", terms, provenance),
    )
    title, axes = "Contribution to the logit by order of path", {"x_label": "order of path", "y_label": "logits"}
    shown = {"table": "expansion_orders", "published": NOT_IN_PAPER, **axes}
    figure = drawing("bar", "expansion", title, "order", "contribution", **shown)
    return Section("Path expansion", text, exhibits, (figure,))


def _fixed_parts(found: Expansion) -> str:
    """Say what the expansion takes from the run: patterns, norm scales, and outputs other than attention's."""
    without_heads = [
        label.rpartition(" ")[0] for label, order in zip(found.labels, found.orders, strict=True) if not order
    ]
    kinds = [kind for kind in dict.fromkeys(without_heads) if kind not in ("", "attention biases")]
    *first, last = ["patterns", "norm scales", *(f"{'FFN' if kind == 'ffn' else kind} outputs" for kind in kinds)]
    return f"{', '.join(first)} and {last}"


def expansion_answer(
    circuits: HeadMatrices,
    prompt: Prompt,
    *,
    token: Token = None,
    order: Annotated[int, Option("Largest number of heads in a path.", low=0, high=3)] = 2,
    position: Position = -1,
    top: Top = 20,
) -> Answer:
    """Write a token's logit as a sum over paths through heads, with the error of the sum.

    Caution: Patterns and norm scales are those of the run, and large paths of opposite signs cancel. What a path adds
    is not what removing it would change.
    """
    lm = circuits.lm
    found = expand(lm, prompt, order, position)
    target = int(found.logits.argmax()) if token is None else lm.single_token(token)
    provenance = lm.provenance(basis="raw")
    made = expansion_section(circuits, found, target, top, provenance)
    return Answer(f"Path expansion in {lm.name}", (made,), provenance, "expansion_terms")


ANALYSIS = of_circuits("expand", expansion_answer, 'expand "The first month of the" --order 2')
