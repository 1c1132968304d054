"""Sections about heads on one prompt: where they look, what that does to a logit, and what their scores are made of."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from unembed.attention.behaviour.induction import SourceEffects
from unembed.attention.circuits import Circuits
from unembed.attention.paths.virtual_heads import Head
from unembed.attention.weights.low_rank import LowRank
from unembed.attention.weights.low_rank_topk import Entries
from unembed.document.model import Exhibit, Figure, Section
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis
from unembed.reports.elhage2021.published import NO_NUMBERS
from unembed.results import Provenance, Table, visible
from unembed.stream.run import Tokens, position_of, run


def look_section(
    circuits: Circuits,
    prompt: Tokens,
    layer: int,
    head: int,
    position: int,
    token: str | int | None,
    provenance: Provenance,
) -> Section:
    """Where a head attends from one position, and what each source adds to one token's logit there.

    Args:
        position: of the prompt; negative from its end.
        token: whose logit; the predicted one when None.

    Raises:
        OutOfRange: there is no such head or position.
    """
    lm = circuits.lm
    seen = run(lm, prompt)
    at = position_of(seen, position)
    target = int(seen.logits[0, at].argmax()) if token is None else token
    effects = circuits.source_effects(seen.tokens, layer, head, at, target)
    return effects_section(lm, seen.tokens[0], effects, _name(lm, layer, head), provenance)


def effects_section(
    lm: Decoder,
    tokens: Int[Tensor, " pos"],
    effects: SourceEffects,
    name: str,
    provenance: Provenance,
    table: str = "look",
    title: str = "One position",
    text: tuple[str, ...] = (),
) -> Section:
    """One position as one head sees it: two pictures of the prompt, shaded by attention and by effect.

    Args:
        tokens: the prompt; the position is the last of the sources.
        effects: of the head at that position.
        name: of the head, such as "L1H5".
        table: name of the table, and of the figures with `_attention` and `_effect` added.
        text: paragraphs before the explanation.
    """
    n = len(effects.attention)
    token = visible(lm.token_strings([effects.token])[0])
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
        f"reading it adds to the logit of `{token}`, above the mean of all tokens; patterns and norms as in the run.",
    )
    figures = (
        Figure(
            f"{table}_attention",
            "Where it attends",
            "text",
            table,
            "token",
            ("attention",),
            percent=True,
            published=NO_NUMBERS,
        ),
        Figure(
            f"{table}_effect",
            f"What that adds to the logit of {token}",
            "text",
            table,
            "token",
            ("effect",),
            published=NO_NUMBERS,
        ),
    )
    exhibit = Exhibit(
        table, Table(f"Head {name} at position {n - 1}", columns, provenance), percent=("attention",), folded=True
    )
    return Section(title, text, (exhibit,), figures)


def score_terms_section(
    circuits: Circuits, prompt: Tokens, layer: int, head: int, position: int, provenance: Provenance
) -> Section:
    """The scores with which one position reads each source, term by term.

    Arguments as for `look_section`.

    Raises:
        OutOfRange: there is no such head or position.
        Unsupported: the model's scores are not understood.
    """
    lm = circuits.lm
    seen = run(lm, prompt, logits=False)
    position = position_of(seen, position)
    found = circuits.score_terms(seen.tokens, layer, head)
    name, n = _name(lm, layer, head), position + 1
    columns = {
        "position": list(range(n)),
        "token": lm.token_strings(seen.tokens[0, :n]),
        "attention": found.pattern[position, :n].tolist(),
        "score": found.scores[position, :n].tolist(),
    }
    for term, part in found.terms.items():
        columns[term.replace(" ", "_")] = part[position, :n].tolist()
    text = (
        f"Scores before the softmax, at position {position}, as sums: DESTINATION x SOURCE is what one part of the "
        "destination (its content, its position, biases) reads of a part of the source. A term that is the same for "
        "all sources changes no attention weight. The softmax of the sums misses the model's own pattern by at most "
        f"{found.error:.0e}.",
    )
    table = Table(f"Scores of head {name} at position {position}", columns, provenance)
    figures = (Figure("scores", "Attention", "text", "scores", "token", ("attention",), percent=True),)
    return Section("Attention scores", text, (Exhibit("scores", table, percent=("attention",)),), figures)


def shown_entries(lm: Decoder, full: LowRank, top: int) -> Entries:
    """The largest entries of a matrix over the vocabulary, among the tokens that lists show."""
    shown = (~lm.unlisted).nonzero()[:, 0].to(full.left.device)
    if len(shown) in (0, lm.d_vocab):
        return full.top(top)
    found = LowRank(full.left[shown], full.right[:, shown]).top(top)
    return Entries(shown[found.rows], shown[found.columns], found.values)


def virtual_head_section(
    circuits: Circuits, head: Head, top: int, basis: HeadBasis, seed: int, provenance: Provenance
) -> Section:
    """The circuit of two heads that act as one: what it copies, and the largest entries of its OV circuit."""
    spectrum, own = head.copying(basis), head.own_token(basis, seed=seed)
    entries = shown_entries(circuits.lm, head.ov_full(basis), top)
    table = Table(
        f"Largest entries of the OV circuit of {head.label}",
        {
            "source_token": circuits.lm.token_strings(entries.rows),
            "output_token": circuits.lm.token_strings(entries.columns),
            "score": entries.values.tolist(),
        },
        provenance,
    )
    values = Table(
        f"Eigenvalues of {head.label}",
        {"real": spectrum.eigenvalues.real.tolist(), "imaginary": spectrum.eigenvalues.imag.tolist()},
        provenance,
    )
    text = (
        f"The later head reads what the earlier one wrote, so the two move information as one head would. Copying "
        f"score {float(spectrum.score):+.2f}, {float(spectrum.positive_fraction):.0%} of eigenvalues positive. A "
        f"token's own logit lies {own.mean_z:+.2f} standard deviations from its row's mean, and in the row's top "
        f"{own.k} for {own.top_share:.1%} of {own.n_tokens:,} tokens.",
    )
    return Section(
        "Virtual head", text, (Exhibit("virtual_head", table), Exhibit("virtual_eigenvalues", values, folded=True))
    )


def moved_section(lm: Decoder, head: Head, prompt: Tokens, position: int, top: int, provenance: Provenance) -> Section:
    """Where a virtual head moves information from on a prompt, and which logits it changes most there.

    Args:
        head: the virtual head.
        position: of the destination; negative from the prompt's end.
        top: logits listed.

    Raises:
        OutOfRange: there is no such position.
    """
    seen = run(lm, prompt, logits=False)
    position = position_of(seen, position)
    tokens, pattern = seen.tokens[0], head.pattern(seen.tokens)[0]
    effect, n = head.effect(seen.tokens, position), position + 1
    sources = Table(
        f"From where it moves information to position {position}",
        {
            "position": list(range(n)),
            "token": lm.token_strings(tokens[:n]),
            "attention": pattern[position, :n].tolist(),
        },
        provenance,
    )
    centred = effect.double() - effect.double().mean()
    best = centred.abs().masked_fill(lm.unlisted.to(centred.device), -torch.inf).topk(min(top, len(centred))).indices
    logits = Table(
        "The logits it changes most, above the mean of all tokens",
        {"token": lm.token_strings(best), "effect": centred[best].tolist()},
        provenance,
    )
    figures = (
        Figure("virtual_pattern", "Attention", "text", "virtual_pattern", "token", ("attention",), percent=True),
    )
    exhibits = (Exhibit("virtual_pattern", sources, percent=("attention",)), Exhibit("virtual_effect", logits))
    return Section("On a prompt", (), exhibits, figures)


def _name(lm: Decoder, layer: int, head: int) -> str:
    layer, head = lm.layer_and_head(layer, head)
    return f"L{layer}H{head}"
