"""A table of facts about model families that cannot be found by looking at the modules or by running the model.

The structure (where modules lie, which norm does what, fused weights, gates, multipliers, rotary styles, soft caps) is
found by `unembed.models.structure.resolver` on the loaded model, so most families need no row here.

To add a family, try to open it first. If it is refused, the message names the part that was not recognised. If the
missing fact is one of the fields below, add a row with the config's `model_type` as its key, a tiny config in
`tests/families.py`, and a line in the changelog.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FamilyFacts:
    """What must be known in advance about the models of one `model_type`."""

    rotary_in_buffer: bool = False
    """The attention takes its rotary angles (base 10,000) from a buffer of its own, not from a `position_embeddings`
    argument. They rotate interleaved pairs of the first `rotary_dim` channels (GPT-J, CodeGen)."""

    eager_alibi_is_doubled: bool = False
    """A bug of transformers: the eager attention adds ALiBi twice, so the attention pattern that it returns is not the
    one with which the model normally computes (Falcon-RW)."""

    no_values: str = ""
    """Reason why no values are found: they are not the output of a module, or not a linear map of one position, or no
    single projection reads the outputs of all heads. Empty for other families."""

    no_scores: str = ""
    """Reason why attention scores cannot be computed from one query and one key of each head; empty for other
    families."""

    reads_left_padding: str = ""
    """Reason why padding on the left changes the activations of the real tokens, although the mask hides the padding;
    empty for other families."""

    float32_state_without_cache: bool = False
    """Without a cache, the recurrent state is float32 whatever the model's dtype is, so the kernel that processes a
    chunk of positions at once fails in half precision. With a cache, the state has the model's dtype, but is
    overwritten in place."""

    refused: str = ""
    """Why the family cannot be opened at all; empty when it can."""


_ENCODER_DECODER = "it is an encoder-decoder, and the sums here are those of a decoder"
_DRAFTER = (
    "it is a draft model: it reads the hidden states and keys of another model, so it predicts nothing on its own"
)
_DIVIDED_BY_SIZE = "its rotated queries and keys are divided by their size"
_STATE = "its recurrent state also takes in the positions that the mask hides"
_POST_NORM = "its blocks normalise the stream itself (post-norm), so the stream is not a sum of writers"

FAMILIES: dict[str, FamilyFacts] = {
    "gptj": FamilyFacts(rotary_in_buffer=True),
    "codegen": FamilyFacts(
        rotary_in_buffer=True,
        no_scores="its queries, values and keys lie in four blocks of one matrix, a layout that circuits do not read",
    ),
    "doge": FamilyFacts(no_scores="a term computed from the values is added to its attention scores"),
    "inkling_text": FamilyFacts(
        no_scores="its keys pass through a convolution over positions, and scores of relative positions are added"
    ),
    "llama4": FamilyFacts(no_scores=_DIVIDED_BY_SIZE),
    "llama4_text": FamilyFacts(no_scores=_DIVIDED_BY_SIZE),
    "falcon": FamilyFacts(eager_alibi_is_doubled=True),
    "deepseek_v4": FamilyFacts(
        no_values="its keys, rotated, are its values as well; later layers append entries that summarise several "
        "positions, and the heads' output is rotated back",
        no_scores="its keys, rotated, are its values as well, and later layers append entries that summarise several "
        "positions",
        reads_left_padding="the entries that summarise several positions also take in those that the mask hides",
    ),
    "recurrent_gemma": FamilyFacts(reads_left_padding=_STATE),
    "rwkv": FamilyFacts(reads_left_padding=_STATE),
    "xlstm": FamilyFacts(reads_left_padding=_STATE, float32_state_without_cache=True),
    "zaya": FamilyFacts(
        no_values="half of each value comes from the position before",
        no_scores="a convolution over positions forms its queries and keys",
    ),
    "jetmoe": FamilyFacts(
        no_values="each position chooses the query and output projections of its heads among experts, so that a layer "
        "has no projection over heads",
        no_scores="each position chooses the query projection of its heads among experts",
    ),
    "axk2": FamilyFacts(
        no_scores="its queries are read from a latent with and without its norm, so that they have no one scale"
    ),
    "openai-gpt": FamilyFacts(refused=_POST_NORM),
    "cpmant": FamilyFacts(
        refused="it puts a learned prompt before the tokens, so its stream has more positions than the prompt"
    ),
    "hrm_text": FamilyFacts(
        refused="it is recurrent in depth: two stacks of layers run again and again, so a layer has several streams"
    ),
    "modernbert-decoder": FamilyFacts(
        refused="a prediction head with an activation comes before the unembedding, so that no logit is a sum over "
        "writers"
    ),
    "blt": FamilyFacts(
        refused="it reads bytes in patches through an encoder, so that its stream has no token at each position"
    ),
    "longcat_flash": FamilyFacts(
        refused="each of its blocks contains two attentions, two FFNs and experts on a shortcut around them, so that a "
        "block is not one layer"
    ),
    "inkling2_text": FamilyFacts(
        refused="each branch reads an attention-weighted mixture of the outputs of earlier groups of layers, not "
        "the stream"
    ),
    "gemma4_assistant": FamilyFacts(refused=_DRAFTER),
    "gemma4_unified_assistant": FamilyFacts(refused=_DRAFTER),
    "t5": FamilyFacts(refused=_ENCODER_DECODER),
    "bart": FamilyFacts(refused=_ENCODER_DECODER),
}

_NO_FACTS = FamilyFacts()


def facts_of(model_type: str) -> FamilyFacts:
    """Return the facts about a model type; for a type that is not in the table, the defaults."""
    return FAMILIES.get(model_type, _NO_FACTS)
