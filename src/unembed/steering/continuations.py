"""Continue one prompt with and without edits: both texts, the next-token distribution, and the perplexity cost.

Source: Geva et al. 2022, section 6.1, which sets the coefficients of value vectors that promote wanted words to 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import GenerationConfig

from unembed.errors import InvalidInput
from unembed.jacobian.basis import basis_or_default
from unembed.memories.token_ranking import RankedValue, word_forms
from unembed.memories.values import Values
from unembed.models.decoder import Decoder, require_decoder
from unembed.results import Displayed, Table
from unembed.steering.text_cost import perplexity, windows
from unembed.stream.generation import generate
from unembed.stream.interventions import Edit, scale_coefficient, set_coefficient
from unembed.stream.run import run
from unembed.validation import as_tuple, positive_int

_ROWS = 64
"""Number of positions whose log probabilities are computed at once."""
ON = 3.0
"""The coefficient to which the paper sets value vectors that it turns on."""


@dataclass(frozen=True, eq=False, repr=False)
class SteeringResult(Displayed):
    """The continuations and next-token probabilities of a prompt with and without edits."""

    prompt: str
    edits: tuple[Edit, ...]
    plain: tuple[str, ...]
    """Continuations without the edits, one for each sample."""
    edited: tuple[str, ...]
    """Continuations with the edits, from the same seed."""
    next_tokens: Table
    """The most probable next tokens with or without the edits, and both probabilities of each."""
    wanted: Table | None
    """The words to promote and to suppress, with their probabilities as the next token; None if there are none."""
    values: Table
    """The memories that are edited, and the tokens that they promote."""
    perplexity_plain: float | None
    perplexity_edited: float | None
    """Perplexities of `cost_text` without and with the edits; None without a `cost_text`."""

    def to_table(self) -> Table:
        """Return a table with one row for each pair of continuations."""
        columns = {"plain": list(self.plain), "edited": list(self.edited)}
        return Table(f"Continuations of {self.prompt!r}", columns, self.next_tokens.provenance)


def chosen_edits(
    promote: Sequence[RankedValue] = (), suppress: Sequence[RankedValue] = (), *, to: float = ON, by: float = 0.0
) -> list[Edit]:
    """Return edits that set the coefficients of some memories and scale those of others.

    Args:
        promote: memories whose coefficient is set to `to`, or to -`to` if the memory promotes its word at negative
            coefficients. For a memory that occurs twice, the first occurrence counts.
        suppress: memories whose coefficient is multiplied by `by`; those that are also in `promote` are set instead.
        to: the coefficient to set.
        by: the factor; 0 turns the memory off.
    """
    on: dict[tuple[int, int], float] = {}
    for p in promote:
        on.setdefault((p.layer, p.index), -to if p.pole == "negative" else to)
    off = dict.fromkeys(m for p in suppress if (m := (p.layer, p.index)) not in on)
    return [set_coefficient(*m, size) for m, size in on.items()] + [scale_coefficient(*m, by) for m in off]


def contrast_vector(lm: Decoder, positive: str, negative: str, layer: int) -> Float[Tensor, " d_model"]:
    """Return a steering vector: the residual stream of one prompt minus that of another, after a layer.

    Args:
        positive: the prompt towards which the vector steers.
        negative: the prompt away from which it steers.
        layer: the layer after which the residual streams are taken; give the same one to `unembed.add_vector`.

    Returns:
        The difference at the last positions of the prompts, in the units of the residual stream, as float32.

    Raises:
        OutOfRange: there is no such layer.

    Source: Turner et al. 2023, "Activation addition", but at one position instead of all.
    """
    lm = require_decoder(lm)
    layers = [lm.layer(layer)]
    ends = [
        run(lm, text, "resid_post", logits=False, layers=layers)["resid_post"][0, 0, -1].float()
        for text in (positive, negative)
    ]
    return ends[0] - ends[1]


def steer(
    lm: Decoder,
    prompt: str,
    edits: Sequence[Edit],
    *,
    max_new_tokens: int = 20,
    seed: int | None = None,
    samples: int = 1,
    top: int = 10,
    promote: Sequence[str] = (),
    suppress: Sequence[str] = (),
    cost_text: str | None = None,
    cost_tokens: int = 4096,
    generation_config: GenerationConfig | None = None,
    **options: Any,
) -> SteeringResult:
    """Continue a prompt with and without edits.

    Args:
        edits: the changes to activations; at least one.
        max_new_tokens: number of tokens to generate.
        seed: the seed of the sampling, with and without the edits; None for greedy generation.
        samples: number of continuations with the edits and of those without; more than one needs a seed.
        top: number of most probable tokens, with the edits and without, that the next-token table lists.
        promote: words whose probability as the next token the edits should raise, for the table `wanted`.
        suppress: words whose probability they should lower.
        cost_text: text whose perplexity is measured with and without the edits.
        cost_tokens: number of tokens of `cost_text` to use.
        generation_config: settings of the generation, such as penalties and beams, as in `lm.generate`.
        options: further arguments of the `generate` method of `transformers`.

    Raises:
        InvalidInput: there are no edits, several samples without a seed, or a word that is no single token.
        NotFinite: the edits make the logits overflow.
    """
    lm, edits = require_decoder(lm), as_tuple("edits", edits)
    if not edits:
        raise InvalidInput(
            "steering without edits",
            why="the two continuations would be equal",
            instead="Give at least one edit, or words to promote or suppress",
        )
    samples = positive_int("samples", samples, most=10_000)
    if samples > 1 and seed is None:
        raise InvalidInput(
            f"{samples} samples without a seed",
            why="without a seed, generation is greedy, and all samples would be equal",
            instead="Give a seed",
        )
    before_and_after = _next_token(lm, prompt, edits)
    table = _next_tokens(lm, *before_and_after, len(edits), positive_int("top", top))
    wanted = _wanted(lm, *before_and_after, len(edits), promote, suppress) if promote or suppress else None
    prompts = [prompt] * samples
    rules: dict[str, Any] = {"max_new_tokens": max_new_tokens, "seed": seed, "generation_config": generation_config}
    plain = generate(lm, prompts, **rules, **options)
    edited = generate(lm, prompts, edits, **rules, **options)
    before = after = None
    if cost_text is not None:
        rows = windows(lm, cost_text, max_tokens=cost_tokens)
        before, after = perplexity(lm, rows), perplexity(lm, rows, edits)
    return SteeringResult(
        prompt,
        edits,
        tuple(text[len(prompt) :] for text in plain),
        tuple(text[len(prompt) :] for text in edited),
        table,
        wanted,
        values_table(lm, edits),
        before,
        after,
    )


def next_token_table(lm: Decoder, prompt: str, edits: Sequence[Edit], top: int = 10) -> Table:
    """Tabulate the most probable next tokens with or without the edits, sorted by their probability with the edits.

    The provenance note `divergence` is KL(plain || edited) in nats: the increase of the expected surprisal at this
    token if the text continued as the unedited model predicts. Edits at positions after the end of the prompt have no
    effect on this table.
    """
    return _next_tokens(lm, *_next_token(lm, prompt, edits), len(edits), positive_int("top", top))


def _next_token(
    lm: Decoder, prompt: str, edits: Sequence[Edit]
) -> tuple[Float[Tensor, " d_vocab"], Float[Tensor, " d_vocab"]]:
    """Return the log probabilities of the next token, without the edits and with them."""
    plain, edited = (run(lm, prompt, (), given).logits[0, -1].float().log_softmax(-1) for given in ((), edits))
    return plain, edited


def _next_tokens(
    lm: Decoder, plain: Float[Tensor, " d_vocab"], edited: Float[Tensor, " d_vocab"], n_edits: int, top: int
) -> Table:
    divergence = float(torch.nn.functional.kl_div(edited, plain, reduction="sum", log_target=True))
    before, after = plain.exp(), edited.exp()
    ids = torch.cat([after.topk(min(top, len(after))).indices, before.topk(min(top, len(before))).indices]).unique()
    ids = ids[after[ids].argsort(descending=True, stable=True)]
    columns = {
        "id": ids.tolist(),
        "token": lm.token_strings(ids),
        "plain": before[ids].tolist(),
        "edited": after[ids].tolist(),
    }
    notes = {"edits": n_edits, "divergence": round(divergence, 6)}
    return Table("The next token", columns, lm.provenance(notes=notes))


def _wanted(
    lm: Decoder,
    plain: Float[Tensor, " d_vocab"],
    edited: Float[Tensor, " d_vocab"],
    n_edits: int,
    promote: Sequence[str],
    suppress: Sequence[str],
) -> Table:
    """Tabulate each word's probability as the next token, summed over its single-token spellings (`word_forms`)."""
    rows = []
    for wanted, words in (("promote", promote), ("suppress", suppress)):
        for word in words:
            ids = word_forms(lm, word)
            before, after = float(plain[ids].exp().sum()), float(edited[ids].exp().sum())
            rows.append((word, wanted, before, after, after / before if before else math.nan))
    names = ("word", "wanted", "plain", "edited", "ratio")
    title = "What the edits do to these words as the next token"
    return Table.of_rows(title, names, rows, lm.provenance(notes={"edits": n_edits}))


def change_by_position(lm: Decoder, prompt: str, edits: Sequence[Edit]) -> Table:
    """Tabulate how edits change the prediction at every position of a prompt, with one row for each token.

    `first` and `first_edited` are the most likely next tokens without and with the edits; `plain` and `edited` are the
    probabilities of `first` without and with them; `divergence` is KL(plain || edited) in nats.

    Memory: 2 * pos * d_vocab numbers.
    """
    ids = lm.encode(prompt)
    plain, edited = (run(lm, ids, (), given).logits[0] for given in ((), edits))
    top, after = plain.argmax(-1), edited.argmax(-1)
    shares, divergence = [], []
    for before, now, one in zip(plain.split(_ROWS), edited.split(_ROWS), top.split(_ROWS), strict=True):
        logs = [logits.float().log_softmax(-1) for logits in (before, now)]
        shares.append(torch.stack([each.gather(-1, one[:, None])[:, 0].exp() for each in logs]))
        divergence += torch.nn.functional.kl_div(logs[1], logs[0], reduction="none", log_target=True).sum(-1).tolist()
    of_plain, of_edited = torch.cat(shares, dim=1).tolist()
    columns = {
        "position": list(range(len(top))),
        "token": lm.token_strings(ids[0]),
        "first": lm.token_strings(top),
        "plain": of_plain,
        "edited": of_edited,
        "first_edited": lm.token_strings(after),
        "divergence": divergence,
    }
    return Table("The next token at every position", columns, lm.provenance(notes={"edits": len(edits)}))


def values_table(lm: Decoder, edits: Sequence[Edit]) -> Table:
    """Tabulate the edited memories, the edits, and the tokens that each memory promotes.

    For an edit to a negative coefficient, these are the tokens that the memory promotes at negative coefficients.
    """
    memories = [e for e in edits if e.target == "coefficient"]
    signs = ["negative" if e.action != "scale" and e.value < 0 else "positive" for e in memories]
    columns = {
        "layer": [e.layer for e in memories],
        "index": [e.index for e in memories],
        "action": [e.action for e in memories],
        "value": [e.value for e in memories],
        "top_tokens": [
            Values(lm).top_tokens(*lm.memory(e.layer, e.index), 8, bottom=sign == "negative")
            for e, sign in zip(memories, signs, strict=True)
        ],
    }
    return Table("Edited memories", columns, lm.provenance(basis=basis_or_default(lm, None, "raw")))


def ranked_values_table(lm: Decoder, found: Sequence[RankedValue]) -> Table:
    """Tabulate the value vectors that `promoting` returned, with one row for each vector and word."""
    columns: dict[str, list[Any]] = {
        name: [getattr(p, name) for p in found] for name in ("word", "layer", "index", "token", "rank", "score")
    }
    if any(lm.is_signed(n) for n in lm.memory_layers):
        columns["pole"] = [p.pole for p in found]
    columns["top_tokens"] = [list(p.top_tokens) for p in found]
    if any(p.triggers for p in found):
        columns["fires_on"] = [list(p.triggers) for p in found]
    return Table("Values by the words they promote", columns, lm.provenance(basis=basis_or_default(lm, None, "raw")))
