"""The class `Circuits`: the attention heads of a model, with every analysis of them as a method."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from unembed.attention.behaviour.head_scores import head_scores
from unembed.attention.behaviour.in_context import in_context
from unembed.attention.behaviour.induction import induction
from unembed.attention.behaviour.score_terms import score_terms
from unembed.attention.behaviour.source_effects import source_effects
from unembed.attention.paths.erasure import memory_management
from unembed.attention.paths.expansion import expand
from unembed.attention.paths.term_importance import term_importance
from unembed.attention.paths.virtual_heads import head, virtual_head
from unembed.attention.paths.weights_between import readers_of, virtual_weight, writers_of
from unembed.attention.text.direct_path import direct_path
from unembed.attention.text.relations import relations
from unembed.attention.text.skip_trigrams import skip_trigram_bugs, skip_trigrams
from unembed.attention.weights.by_offset import position_scores, previous_token_by_weights, scores_by_offset
from unembed.attention.weights.composition import (
    composition,
    compositions,
    partners,
    random_composition,
)
from unembed.attention.weights.copying import copying, copying_scores, matching, own_token
from unembed.attention.weights.missing_circuits import missing_circuits
from unembed.attention.weights.qk_ov import HeadMatrices
from unembed.lazy import offers
from unembed.models.decoder import Decoder, require_decoder

P = ParamSpec("P")
R = TypeVar("R")


def _of_model(function: Callable[Concatenate[Decoder, P], R]) -> Callable[Concatenate[HeadMatrices, P], R]:
    """Turn a function whose first argument is the model into a method of `Circuits`."""

    @wraps(function)
    def method(circuits: HeadMatrices, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return function(circuits.lm, *args, **kwargs)

    return method


@offers(
    "ov qk head virtual_head copying_scores composition head_scores induction skip_trigrams expand term_importance "
    "direct_path in_context score_terms readers_of writers_of relations"
)
class Circuits(HeadMatrices):
    """The QK and OV circuits of every head of a model, and every analysis of them.

    The methods are the functions of the subpackages `weights`, `paths`, `behaviour` and `text`, without their first
    argument.
    """

    def __repr__(self) -> str:
        return f"Circuits({self.lm.name}: {self.lm.n_layers} layers, {self.lm.heads_a_layer})"

    copying = copying
    copying_scores = copying_scores
    matching = matching
    own_token = own_token
    composition = composition
    compositions = compositions
    random_composition = random_composition
    partners = partners
    missing = _of_model(missing_circuits)
    position_scores = position_scores
    previous_token_by_weights = previous_token_by_weights
    scores_by_offset = scores_by_offset

    head = head
    virtual_head = virtual_head
    virtual_weight = _of_model(virtual_weight)
    readers_of = _of_model(readers_of)
    writers_of = _of_model(writers_of)
    memory_management = _of_model(memory_management)
    expand = _of_model(expand)
    term_importance = _of_model(term_importance)

    head_scores = _of_model(head_scores)
    score_terms = _of_model(score_terms)
    source_effects = source_effects
    induction = induction
    in_context = _of_model(in_context)

    direct_path = _of_model(direct_path)
    relations = relations
    skip_trigrams = skip_trigrams
    skip_trigram_bugs = skip_trigram_bugs


def circuits(lm: Decoder) -> Circuits:
    """Return the attention circuits of a model."""
    return Circuits(require_decoder(lm))
