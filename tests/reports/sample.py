"""A small report with every kind of figure, for the tests of what is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from unembed.document.html import page
from unembed.document.intervals import columns, share_of
from unembed.document.model import ROW_NAMES
from unembed.models.decoder import Decoder
from unembed.models.loading import Opened
from unembed.reports import Exhibit, Figure, Finding, Report, Section
from unembed.reports.quantities import Quantity
from unembed.results import Provenance, Table

PROVENANCE = Provenance("wren", "abc", "float32", corpus="wikitext", seed=0)


def sample() -> Report:
    """Three sections: numbers by layer, tokens with hostile text, and a matrix."""
    layers = list(range(6))
    agree = [
        replace(share_of(h, 200), published=p)
        for h, p in zip((0, 1, 4, 9, 30, 70), (None, 0.0, 0.0, 0.01, 0.03, 0.4), strict=True)
    ]
    shares = Table(
        "Agreement by layer",
        {
            "layer": layers,
            **columns("agreement", agree),
            "ffn": [0.1, 0.2, 0.2, 0.2, 0.3, 0.4],
            "residual": [0.9, 0.8, 0.8, 0.8, 0.7, 0.6],
            **{
                f"rank_{q}": [v * (i + 1) for i in layers]
                for q, v in zip(("q05", "q25", "q50", "q75", "q95"), (1.0, 10, 90, 400, 3000), strict=True)
            },
        },
        PROVENANCE,
    )
    examples = Table(
        "Examples",
        {
            "memory": ["0.1", "3.1021"],
            "top_tokens": [[" the", "<script>alert(1)</script>"], [" a", "\x1b[31m"]],
            "prefix_text": ["The first month of the year is called", "<img src=x onerror=alert(2)>"],
            "next_token": [" January", "\n"],
        },
        PROVENANCE,
    )
    heat = Table(
        "Heads",
        {
            "layer": [i for i in range(4) for _ in range(8)],
            "head": [h for _ in range(4) for h in range(8)],
            "score": [((i * 8 + h) % 11 - 4) / 6 for i in range(4) for h in range(8)],
        },
        PROVENANCE,
    )
    return Report(
        "sample",
        "A sample of every part",
        "What `unembed report` writes, with one figure of each kind.",
        "Nobody et al.: Nothing. 2021.",
        PROVENANCE,
        (
            Section(
                "Numbers by layer",
                ("Layers count from 0 here, from 1 in the paper.", "A second paragraph with `code` <b>and markup</b>."),
                (Exhibit("agreement", shares, percent=("agreement", "ffn", "residual")),),
                (
                    Figure(
                        "line",
                        "A line",
                        "line",
                        "agreement",
                        "layer",
                        ("agreement",),
                        ("value",),
                        "layer",
                        "agreement",
                        percent=True,
                    ),
                    Figure(
                        "bars", "Bars", "bar", "agreement", "layer", ("agreement", "ffn"), x_label="layer", percent=True
                    ),
                    Figure(
                        "stack",
                        "A stack",
                        "stacked",
                        "agreement",
                        "layer",
                        ("ffn", "residual"),
                        x_label="layer",
                        percent=True,
                    ),
                    Figure(
                        "boxes",
                        "Boxes",
                        "box",
                        "agreement",
                        "layer",
                        ("rank",),
                        ("rank",),
                        "layer",
                        "rank",
                        logarithmic=True,
                    ),
                    Figure(
                        "points",
                        "Points",
                        "scatter",
                        "agreement",
                        "ffn",
                        ("residual",),
                        x_label="ffn",
                        y_label="residual",
                    ),
                ),
                (
                    Finding(
                        "Agreement rises from layer 11 to 3.5 %.",
                        "Fig. 4",
                        "agreement rate",
                        "3.5 %",
                        "It rises to 35.0 % in layer 5.",
                        "above 1 % in the last layer",
                        "agrees",
                        "0.0 % (differs)",
                    ),
                    Finding("Nothing agrees.", "", "agreement", "none", "Something does.", "below 1 %", "differs"),
                    Finding(
                        "Keys have patterns.",
                        "",
                        "keys",
                        "all",
                        "All do.",
                        "above 90 %",
                        "inconclusive",
                        "All do.",
                        False,
                    ),
                ),
            ),
            Section("Examples", (), (Exhibit("examples", examples, "Hostile text stays text.", folded=True),)),
            Section(
                "Heads",
                (),
                (Exhibit("heads", heat, folded=True),),
                (
                    Figure(
                        "heat",
                        "A matrix",
                        "heat",
                        "heads",
                        "head",
                        ("score",),
                        x_label="head",
                        y_label="layer",
                        rows="layer",
                    ),
                ),
            ),
        ),
        {"model": "wren", "examples": 4000, "corpus": "WikiText"},
    )


def figures_without_published(report: Report) -> list[str]:
    """Figures that neither draw a published value nor say why there is none."""

    def draws(figure: Figure) -> bool:
        table = report[figure.table]
        columns = [f"{name}_published" for name in figure.y]
        return bool(figure.references) or any(
            row[c] is not None for c in columns if c in table.column_names for row in table.rows()
        )

    return [f.name for s in report.sections for f in s.figures if not draws(f) and not f.published]


def tables_of_two_units(report: Report) -> list[str]:
    """Tables of the page with shares next to numbers of another unit, or with the groups of an exhibit mixed.

    Read from the page: cells of a column in percent end in "%", those of columns that name a row are let pass.
    """
    mixed = []
    for exhibit in (e for s in report.sections for e in s.exhibits):
        made = page(replace(report, sections=(Section("s", (), (exhibit,)),)))
        for head, body in re.findall(r"<table><thead><tr>(.*?)</tr></thead><tbody>(.*?)</tbody>", made):
            names = re.findall(r"<th(?: class=[^>]*)?>(.*?)</th>", head)
            rows = [re.findall(r"<td(?: class=[^>]*)?>(.*?)</td>", row) for row in body.split("</tr>")[:-1]]
            units = {
                "%" if "%" in cell else next((group[0] for group in exhibit.apart if name in group), "")
                for name, cells in zip([n.replace(" ", "_") for n in names], zip(*rows, strict=True), strict=True)
                for cell in cells
                if re.match(r"[−\d]", cell) and name not in (*ROW_NAMES, "n")
            }
            if len(units) > 1:
                mixed.append(f"{exhibit.name}: {names}")
    return mixed


def certain_shares(report: Report) -> list[str]:
    """Columns in percent with a share of 0 or 1 whose interval holds nothing else."""
    return [
        f"{name}: {column}"
        for name, exhibit in report.exhibits.items()
        for column in exhibit.percent
        if f"{column}_low" in exhibit.table.column_names
        for row in exhibit.table.rows()
        if row[column] in (0, 1) and row[f"{column}_low"] == row[f"{column}_high"]
    ]


def part_of(cls: type[Any], **attributes: Any) -> Any:
    """An object of a class with only these attributes: the measurements that one function reads."""
    made = object.__new__(cls)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def with_unlearned(lm: Decoder, ids: Sequence[int]) -> Decoder:
    """The same model; these tokens alone were never seen in training."""
    counts = torch.full((lm.d_vocab,), 1000)
    counts[list(ids)] = 0
    return Decoder(Opened(lm.hf, lm.tokenizer, lm.name, None, counts))


def check_explanations(quantities: Sequence[Quantity[Any]], m: Any) -> None:
    """Every quantity explains itself on these measurements, in a sentence of numbers, or not at all."""
    texts = [quantity.explain(m) for quantity in quantities]
    assert all(text is None or (text.endswith(".") and re.search(r"\d", text)) for text in texts)
    assert any(texts)
