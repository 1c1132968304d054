"""The explorer's search for memories (FFN neurons): parse a query, and find the memories that match it.

| query | finds memories |
|---|---|
| `breakfast` | whose description contains the word; then those that promote it, in any spelling that is one token |
| `-breakfast` | that suppress the word |
| `"·Paris"` | that promote exactly this token (`·` stands for a space) |
| `*fast*`, `/^·[A-Z]/` | that promote a token which matches the wildcard or the regular expression |
| `ctx:"capital of"` | that fire most on texts with these words |
| `name:city` | whose label contains the word; also attention heads |
| `L4M17`, `-L4M17` | this memory, at positive or negative coefficients |

A word also finds the attention heads whose role or relation in the atlas contains it. `layer:3-5` restricts the layers.
In gated layers, where coefficients have either sign, a memory is found with the sign at which it promotes (or
suppresses) the token. Memories are sorted by the token's score divided by the standard deviation of all tokens' scores
under the value vector. A memory that raises many words of a topic is therefore found by each of these words, even by
those that are not among its top tokens. With an index, all other memories follow that have the token among their stored
top tokens.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import regex
import torch

from unembed.errors import IndexFault, InvalidInput
from unembed.memories.token_ranking import score_spreads, token_scores_of_values, word_forms
from unembed.memories.values import Values, memories_at
from unembed.names import Pole
from unembed.results import format_setting

if TYPE_CHECKING:
    import numpy as np

    from unembed.gallery import MemoryDescriptions
    from unembed.index.index import Index
    from unembed.models.decoder import Decoder

SCHEMA = "unembed.search/2"
MAX_HITS = 100_000
"""Largest number of hits in an index for one term of a query: more than any page shows."""
MAX_SCORED = 1000
"""Number of value vectors listed for a token. Every value vector has a score for it, so the list needs a limit."""
_RANKED = 100
"""Number of top tokens of a value vector among which a token's rank is searched."""
MAX_MATCHED_TOKENS = 200
"""Largest number of tokens that a wildcard or a regular expression may match."""
PATIENCE = 0.5
"""Seconds after which the search for a regular expression ends; with nested repetitions it could take forever."""
_PART = re.compile(r'(?P<kind>ctx:|name:|layer:|-)?(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+))')
_MEMORY = re.compile(r"[Ll](\d{1,6})[Mm.](\d{1,7})")
_LAYERS = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True)
class Understood:
    """A parsed query."""

    promote: list[str] = field(default_factory=list)
    suppress: list[str] = field(default_factory=list)
    exact: list[str] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    """Regular expressions over the tokens of the vocabulary."""
    context: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    layers: tuple[int, int] | None = None
    memory: tuple[int, int] | None = None
    pole: Pole = "positive"
    """The sign of the memory's coefficient in the query."""


@dataclass(frozen=True)
class Hit:
    """A memory (FFN neuron) or attention head that was found, and why."""

    layer: int
    index: int
    why: str
    """Why it was found: "description", "promotes", "suppresses", "trigger", "name" or "memory"."""
    found: str
    """What matched the query: a description, a token, a context or a label; the first of several."""
    rank: int | None
    """Rank of the token among the top tokens of the value vector, from 1."""
    score: float | None
    """The raw score of the token, or the coefficient on the trigger."""
    top_tokens: list[str]
    of: str = "memory"
    """What was found: "memory" or "head"."""
    also: list[str] = field(default_factory=list)
    """The other tokens, contexts or labels by which it was found."""
    density: float | None = None
    """The share of the index's tokens on which the memory fires, in gated layers with the coefficient's sign `pole`.

    None without an index.
    """
    labelled: bool = False
    """Whether the memory or head has a label."""
    pole: Pole = "positive"
    """The sign of the coefficient at which the memory was found; "negative" in gated layers only."""


@dataclass(frozen=True)
class Filters:
    """Conditions on the hits to list. A density is a fraction of the corpus's tokens."""

    layer: int | None = None
    why: str | None = None
    density_above: float | None = None
    density_below: float | None = None
    labelled: bool | None = None

    def keep(self, hit: Hit) -> bool:
        """Return whether a hit satisfies all conditions; a hit without a density fails conditions on the density."""
        if self.layer is not None and hit.layer != self.layer:
            return False
        if self.why is not None and hit.why != self.why:
            return False
        if self.labelled is not None and hit.labelled != self.labelled:
            return False
        if self.density_above is None and self.density_below is None:
            return True
        above = 0.0 if self.density_above is None else self.density_above
        below = 1.0 if self.density_below is None else self.density_below
        return hit.density is not None and above <= hit.density <= below


@dataclass(frozen=True)
class Search:
    """One page of the results of a query."""

    schema: str
    query: str
    understood: Understood
    tokens: dict[str, list[str]]
    """How each word is split by the tokenizer."""
    forms: dict[str, list[str]]
    """The single tokens that were searched for each word, such as " January"; empty where no form is one token."""
    hits: list[Hit]
    """One row for each memory or head."""
    offset: int
    total: int
    """Number of hits on all pages, after the filters."""
    layers: dict[int, int]
    """Number of hits in each layer, before the filters."""
    reasons: dict[str, int]
    """Number of hits by the reason why they were found (`Hit.why`), before the filters."""
    suggestions: list[str]
    """Tokens that look like a word that was not found."""
    near: list[str]
    """Words near in meaning: the tokens whose embeddings have the largest cosine with the first word's."""
    notes: list[str]
    """Parts of the query that could not be answered, and why."""


def understand(query: str) -> Understood:
    """Parse a query. Every text is a valid query."""
    found = Understood()
    for part in _PART.finditer(query):
        kind, quoted, text = part["kind"], part["quoted"] is not None, part["quoted"] or part["plain"] or ""
        if not text:
            continue
        if kind == "layer:" and (layers := _LAYERS.fullmatch(text)):
            found = dataclasses.replace(found, layers=(int(layers[1]), int(layers[2] or layers[1])))
        elif kind == "ctx:":
            found.context.append(text)
        elif kind == "name:":
            found.names.append(text)
        elif kind == "-" and (memory := _MEMORY.fullmatch(text)):
            found = dataclasses.replace(found, memory=(int(memory[1]), int(memory[2])), pole="negative")
        elif kind == "-":
            found.suppress.append(text.replace("·", " "))
        elif quoted:
            found.exact.append(text.replace("·", " "))
        elif memory := _MEMORY.fullmatch(text):
            found = dataclasses.replace(found, memory=(int(memory[1]), int(memory[2])))
        elif len(text) > 2 and text[0] == text[-1] == "/":
            found.patterns.append(text[1:-1].replace("·", " "))
        elif text.strip("*") and "*" in text:
            found.patterns.append("^" + ".*".join(re.escape(one) for one in text.replace("·", " ").split("*")) + "$")
        else:
            found.promote.append(text.replace("·", " "))
    return found


def search(
    lm: Decoder,
    index: Index | None,
    query: str,
    top: int = 50,
    offset: int = 0,
    filters: Filters | None = None,
    described: MemoryDescriptions | None = None,
) -> Search:
    """Return the memories (FFN neurons) that a query finds, best first for each term of the query.

    Args:
        index: an index of the model; when None, texts and labels cannot be searched.
        query: the text of the query.
        top: number of hits on a page.
        offset: number of hits before the page.
        filters: conditions on the hits to list; all are listed when None.
        described: descriptions of memories, in which words are searched as well.
    """
    query_parts = understand(query)
    found: list[Hit] = []
    notes: list[str] = []
    parts: list[Callable[[], Iterable[Hit]]] = []
    if query_parts.memory is not None:
        layer, i = query_parts.memory
        parts.append(lambda: [dataclasses.replace(_hit(lm, layer, i, "memory", ""), pole=query_parts.pole)])
    for word in query_parts.promote:
        parts.append(lambda word=word: _described_with(described, word))
    for word in query_parts.promote:
        parts.append(lambda word=word: _promoting(lm, index, word_forms(lm, word)))
    for text in query_parts.exact:
        parts.append(lambda text=text: _promoting(lm, index, [lm.single_token(text)]))
    for pattern in query_parts.patterns:
        parts.append(lambda pattern=pattern: _promoting(lm, index, _matching(lm, pattern)))
    for word in query_parts.suppress:
        parts.append(lambda word=word: _scoring(lm, word_forms(lm, word), "suppresses"))
    for text in query_parts.context:
        parts.append(lambda text=text: _triggered(_need(index, "ctx:"), text))
    for text in query_parts.names:
        parts.append(lambda text=text: _named(lm, _need(index, "name:"), text))
    for part in parts:
        try:
            found += part()
        except (InvalidInput, IndexFault) as error:
            notes.append(str(error))
    if query_parts.layers is not None:
        low, high = query_parts.layers
        found = [hit for hit in found if low <= hit.layer <= high]
    words = [*query_parts.promote, *query_parts.exact, *query_parts.suppress]
    hits = _with_density(index, _merged(found))
    filtered = [hit for hit in hits if filters is None or filters.keep(hit)]
    return Search(
        SCHEMA,
        query,
        query_parts,
        {word: lm.token_strings(lm.encode(word)[0]) for word in words},
        {word: _forms(lm, word, exact=word in query_parts.exact) for word in words},
        _with_tokens(lm, filtered[offset : offset + top]),
        offset,
        len(filtered),
        dict(sorted(Counter(hit.layer for hit in hits).items())),
        dict(Counter(hit.why for hit in hits)),
        [] if hits else _nearest(lm, words),
        _near_in_meaning(lm, words[0]) if words else [],
        notes,
    )


def _forms(lm: Decoder, word: str, *, exact: bool) -> list[str]:
    """Return the single tokens that spell a word of a query; with `exact`, only the token equal to the word."""
    with suppress(InvalidInput):  # the word is not one token, as the notes of the search say
        return lm.token_strings([lm.single_token(word)] if exact else word_forms(lm, word))
    return []


def _merged(found: Iterable[Hit]) -> list[Hit]:
    """Merge hits of the same memory (at the same sign) or head into the first of them, without changing the order."""
    merged: dict[tuple[str, int, int, str], Hit] = {}
    for hit in found:
        key = (hit.of, hit.layer, hit.index, hit.pole)
        first = merged.get(key)
        if first is None:
            merged[key] = hit
        elif hit.found != first.found and hit.found not in first.also:
            merged[key] = dataclasses.replace(first, also=[*first.also, hit.found])
    return list(merged.values())


def _firing_shares(index: Index) -> dict[Pole, np.ndarray]:
    """Return, by sign, the share of tokens on which each memory fires; an older index has one share for both."""
    both = index.statistics["active_fraction"]
    signed = index.firing_shares if index.has_signs else None
    return signed or {"positive": both, "negative": both}


def _with_density(index: Index | None, hits: list[Hit]) -> list[Hit]:
    """Add to each hit the share of tokens on which its memory fires at its sign, and whether it has a label."""
    if index is None or not hits:
        return hits
    rows = index.labels(of="all").rows()
    labelled = {(row["kind"] == "head", row["layer"], row["index"]) for row in rows if row["kind"] != "random value"}
    density = _firing_shares(index) if index.manifest.has("triggers") else None

    def density_of(hit: Hit) -> float | None:
        if density is None or hit.of == "head" or not index.manifest.layers[hit.layer]:
            return None
        return float(density[hit.pole][index.row(hit.layer, hit.index)])

    return [
        dataclasses.replace(hit, density=density_of(hit), labelled=(hit.of == "head", hit.layer, hit.index) in labelled)
        for hit in hits
    ]


def _with_tokens(lm: Decoder, hits: list[Hit]) -> list[Hit]:
    """Add top tokens to each hit of a memory.

    If the memory was found by a token among its 100 top tokens, the token's rank is added too.
    """
    wanted: dict[int, list[int]] = {}
    for hit in hits:
        if hit.of == "memory" and not hit.top_tokens:
            wanted.setdefault(hit.layer, []).append(hit.index)
    read: dict[tuple[int, int, Pole], list[str]] = {}
    both = Values(lm).top_and_bottom(list(wanted.items()), _RANKED) if wanted else []
    for (layer, indices), (top, bottom) in zip(wanted.items(), both, strict=True):
        for i, high, low in zip(indices, top, bottom, strict=True):
            read[layer, i, "positive"], read[layer, i, "negative"] = lm.token_strings(high), lm.token_strings(low)

    def with_tokens(hit: Hit) -> Hit:
        listed = read.get((hit.layer, hit.index, hit.pole)) if hit.of == "memory" and not hit.top_tokens else None
        if listed is None:
            return hit
        is_ranked = hit.why == "promotes" and hit.rank is None and hit.found in listed
        rank = listed.index(hit.found) + 1 if is_ranked else hit.rank
        return dataclasses.replace(hit, top_tokens=listed[:12], rank=rank)

    return [with_tokens(hit) for hit in hits]


@torch.no_grad()
def _near_in_meaning(lm: Decoder, word: str) -> list[str]:
    """Return the tokens whose centred embeddings have the largest cosine with the mean of the word's spellings.

    Only whole words of three letters or more are listed, and each word in one spelling.
    """
    try:
        ids = word_forms(lm, word)
    except InvalidInput:
        return []
    mean, norms = lm.once((__name__, "embeddings"), lambda: _centred(lm))
    rows = (lm.weights.W_E[ids].float() - mean) / norms[ids][:, None]
    direction = rows.mean(dim=0)
    cosines = torch.cat([(part.float() - mean) @ direction for part in lm.weights.W_E.split(8192)]) / norms
    near: dict[str, str] = {}
    own = word.strip().lower()
    for text in lm.token_strings(cosines.topk(min(200, len(cosines))).indices.tolist()):
        plain = text.strip().lower()
        if text != text.lstrip() and len(plain) > 2 and plain.isalpha() and plain != own:
            near.setdefault(plain, text)
    return list(near.values())[:8]


def _centred(lm: Decoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean of all embeddings, and the length of each embedding's difference from this mean."""
    mean = lm.weights.W_E.mean(dim=0, dtype=torch.float32)
    norms = [(part.float() - mean).norm(dim=-1) for part in lm.weights.W_E.split(8192)]
    return mean, torch.cat(norms).clamp_min(1e-9)


def _nearest(lm: Decoder, words: Sequence[str], n: int = 8) -> list[str]:
    """Return the tokens of the vocabulary whose spelling is most similar to the words."""
    vocabulary = {
        text.strip().lower(): text for text in lm.token_strings(list(range(lm.d_vocab))) if len(text.strip()) > 1
    }
    close = [c for word in words for c in difflib.get_close_matches(word.strip().lower(), vocabulary, n, 0.6)]
    return [vocabulary[one] for one in dict.fromkeys(close)][:n]


def _matching(lm: Decoder, pattern: str) -> list[int]:
    """Return the tokens that a regular expression matches; raise InvalidInput after `PATIENCE` seconds."""
    ids: list[int] = []
    try:
        expression = regex.compile(pattern)
        end = time.monotonic() + PATIENCE
        for i, text in enumerate(lm.token_strings(list(range(lm.d_vocab)))):
            if expression.search(text, timeout=max(1e-3, end - time.monotonic())):
                ids.append(i)
    except regex.error as error:
        raise InvalidInput(f"/{pattern}/", why=f"it is not a regular expression: {error}") from error
    except TimeoutError as error:
        raise InvalidInput(
            f"/{pattern}/",
            why=f"it takes more than {format_setting(PATIENCE)} s on the vocabulary",
            instead="Write it without a repetition inside another one",
        ) from error
    if not ids or len(ids) > MAX_MATCHED_TOKENS:
        why = f"it matches {len(ids):,} tokens of the vocabulary"
        raise InvalidInput(f"/{pattern}/", why=why, instead=f"Use one that matches 1 to {MAX_MATCHED_TOKENS}")
    return ids


def _promoting(lm: Decoder, index: Index | None, ids: Sequence[int]) -> Iterator[Hit]:
    """Yield the memories that promote the tokens `ids` most, then all that have one among their stored top tokens."""
    yield from _scoring(lm, ids, "promotes")
    if index is not None:
        for token, text in zip(ids, lm.token_strings(list(ids)), strict=True):
            for row in index.promoting(token, MAX_HITS, by="rank").rows():
                pole = row.get("pole", "positive")
                yield Hit(row["layer"], row["index"], "promotes", text, row["rank"], row["score"], [], pole=pole)


def _scoring(lm: Decoder, ids: Sequence[int], kind: Literal["promotes", "suppresses"]) -> Iterator[Hit]:
    """Yield the memories whose value vectors give the tokens `ids` the largest scores, computed from the weights.

    For "suppresses", these are the lowest scores. Each score is divided by the standard deviation of all tokens' scores
    under the same value vector. A memory whose coefficient has only one sign is left out unless one of the tokens has a
    score above 0 (for "suppresses", below 0).
    """
    sign = -1.0 if kind == "suppresses" else 1.0
    texts = lm.token_strings(list(ids))
    scores = token_scores_of_values(lm, torch.tensor(ids, device=lm.device))
    signed = torch.cat([torch.full((lm.n_memories_of(n),), lm.is_signed(n)) for n in lm.memory_layers])
    deviations = sign * scores.cpu() / score_spreads(lm).cpu().clamp_min(1e-9)[:, None]
    best, form = torch.where(signed[:, None], deviations.abs(), deviations).max(dim=1)
    top = best.topk(min(MAX_SCORED, int((best > 0).sum()))).indices
    for at, (layer, index) in zip(top.tolist(), memories_at(lm, top).tolist(), strict=True):
        chosen = int(form[at])
        pole: Pole = "negative" if float(deviations[at, chosen]) < 0 else "positive"
        score = float(scores[at, chosen]) * (-1.0 if pole == "negative" else 1.0)
        yield Hit(layer, index, kind, texts[chosen], None, score, [], pole=pole)


def _described_with(described: MemoryDescriptions | None, word: str) -> Iterator[Hit]:
    if described is not None:
        for layer, head, text in described.heads_containing(word):
            yield Hit(layer, head, "description", text, None, None, [], "head")
        for layer, index, pole, text in described.containing(word):
            yield Hit(
                layer, index, "description", text, None, None, [], pole="negative" if pole == "negative" else "positive"
            )


def _triggered(index: Index, text: str) -> Iterator[Hit]:
    for row in index.search(f'"{text}"', MAX_HITS, context=12).rows():
        shown = f"{row['prefix']}[{row['token']}]"
        pole = row.get("pole", "positive")
        yield Hit(row["layer"], row["index"], "trigger", shown, row["rank"], row["coefficient"], [], pole=pole)


def _named(lm: Decoder, index: Index, text: str) -> Iterator[Hit]:
    for row in index.labels(of="all").rows():
        if text.lower() in row["label"].lower() and row["kind"] != "random value":
            if row["kind"] == "head":
                yield Hit(row["layer"], row["index"], "name", row["label"], None, None, [], "head")
            else:
                yield _hit(lm, row["layer"], row["index"], "name", row["label"])


def _hit(lm: Decoder, layer: int, index: int, why: str, found: str) -> Hit:
    lm.memory(layer, index)
    return Hit(layer, index, why, found, None, None, [])


def _need(index: Index | None, what: str) -> Index:
    if index is None:
        raise IndexFault(f"{what} needs an index", why="none is open", instead="Start with `unembed serve --index DIR`")
    return index
