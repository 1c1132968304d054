"""The last section of every report: each published value, where the paper prints it, and how it is known here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unembed.document.model import Exhibit, Section
from unembed.results import Provenance, Table

PRINTED = "printed in the paper's text or tables"
SUMMARY = "a third party's summary of the paper, not checked against it"
READ_OFF = "read off a figure by a third party, one digit of trust"
RECALLED = "recalled from the paper, in no text at hand"


class Origin(NamedTuple):
    """One published value.

    Attributes:
        quantity: what the value measures.
        value: the value as published, in words.
        origin: how the value is known here, such as read from a figure; one of the constants of this module.
        where: section, table or figure of the paper; when empty, that of the `Quantity` that lists this value.
    """

    quantity: str
    value: str
    origin: str
    where: str = ""


def published_section(origins: Sequence[Origin], provenance: Provenance, *notes: str) -> Section:
    """Return a section that lists where each published value comes from.

    Args:
        notes: paragraphs on published values that contradict one another.
    """
    what, value, origin, where = zip(*origins, strict=True)
    columns = {
        "quantity": list(what),
        "published_text": list(value),
        "source": list(where),
        "origin_text": list(origin),
    }
    table = Table("Published values and how they are known", columns, provenance)
    text = (
        "Not every published number could be checked against the paper: of the first paper summaries were at hand, of "
        "the second a text without symbols and figures, of the third a summary.",
        *notes,
    )
    return Section("Published values", text, (Exhibit("published_values", table, folded=True),))
