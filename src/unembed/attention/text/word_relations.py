"""Relations between words, such as "country to capital": open them, and find their pairs of single tokens.

A file is JSON: a list of `[source, [target, ...]]`, where any of the targets is right. The built-in relations are those
of Elhelo and Geva (2025) whose licence is known; docs/licences.md names their authors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder

SHIPPED = Path(__file__).parent / "shipped" / "relations"
_FORM = 'It is a JSON list of [source, [target, ...]], such as [["France", ["Paris"]]]'


@dataclass(frozen=True)
class Relation:
    """A relation: source words, each with its right targets.

    Attributes:
        name: the name in plain words, such as "country to capital".
        pairs: (source, targets); any of the targets is right.
    """

    name: str
    pairs: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def of(cls, pairs: Sequence[Any], name: str = "relation") -> Relation:
        """Make a relation from pairs (source, targets); a single target need not be in a list.

        Raises:
            InvalidInput: there are no pairs, or one is not a source with its targets.
        """
        made: list[tuple[str, tuple[str, ...]]] = []
        for pair in pairs:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise InvalidInput(
                    f"{name}: {str(pair)[:80]}", why="it is not a source word with its targets", instead=_FORM
                )
            source, targets = pair
            targets = targets if isinstance(targets, list | tuple) else [targets]
            if not (isinstance(source, str) and targets and all(isinstance(one, str) for one in targets)):
                raise InvalidInput(
                    f"{name}: {str(pair)[:80]}", why="a source and its targets must be strings", instead=_FORM
                )
            made.append((source, tuple(targets)))
        if not made:
            raise InvalidInput(name, why="it has no pairs", instead=_FORM)
        return cls(name, tuple(made))


@dataclass(frozen=True)
class TokenPairs:
    """The pairs of a relation whose source and at least one target are single tokens of a model.

    Attributes:
        sources: the token of each pair's source.
        targets: the tokens of each pair's targets.
        left_out: number of pairs that are left out: a word is not a single token, or a token is mapped to itself.
    """

    sources: tuple[int, ...]
    targets: tuple[frozenset[int], ...]
    left_out: int


def shipped_relations() -> tuple[str, ...]:
    """Return the names of the built-in relations in alphabetical order."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.json")))


def open_relation(name: str | Path) -> Relation:
    """Open a built-in relation by its name, such as "country_to_capital", or the relation in a file.

    Raises:
        InvalidInput: there is no such file, or its content is not a relation.
    """
    path = SHIPPED / f"{name}.json" if str(name) in shipped_relations() else Path(name)
    try:
        stored = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        known = ", ".join(shipped_relations())
        raise InvalidInput(
            f"the relation {str(name)!r}",
            why=f"there is no such file ({error.strerror or error})",
            instead=f"Name a file, or one of {known}",
        ) from None
    except ValueError as error:
        raise InvalidInput(f"the relation in {path}", why=f"it is not JSON in UTF-8 ({error})", instead=_FORM) from None
    if not isinstance(stored, list):
        raise InvalidInput(f"the relation in {path}", why="it is not a list of pairs", instead=_FORM)
    return Relation.of(stored, path.stem.replace("_", " "))


def token_pairs(lm: Decoder, relation: Relation) -> TokenPairs:
    """Return the pairs whose words, with a leading space as within a sentence, are single tokens.

    Raises:
        InvalidInput: there are no two pairs with different targets, so shuffling the targets would not be a control.
    """
    words = sorted({word for source, ends in relation.pairs for word in (source, *ends)})
    known = dict(zip(words, lm.vocabulary.singles([f" {word.strip()}" for word in words]), strict=True))
    sources: list[int] = []
    targets: list[frozenset[int]] = []
    for source, several in relation.pairs:
        start = known[source]
        ends = frozenset(one for word in several if (one := known[word]) is not None)
        if start is None or not ends or start in ends:
            continue
        sources.append(start)
        targets.append(ends)
    if not any(one.isdisjoint(targets[0]) for one in targets[1:]):
        raise InvalidInput(
            f"{relation.name} in the vocabulary of {lm.name}",
            why=f"only {len(sources)} of its {len(relation.pairs)} pairs are single tokens, or all of these have the "
            "same target",
            instead="Give at least two pairs of single tokens with different targets",
        )
    return TokenPairs(tuple(sources), tuple(targets), len(relation.pairs) - len(sources))
