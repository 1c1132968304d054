"""Write a report to a folder (HTML page, tables as Parquet and JSON, figures as SVG), and read it again.

No model is needed: `reopen` reads what `write` saved, and writing the result again gives the same page.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from unembed.document.charts import draw
from unembed.document.html import page
from unembed.document.model import SCHEMA, Report
from unembed.errors import InvalidInput, reading
from unembed.results import Table, write_whole

PAGE, INDEX, TABLES, FIGURES = "report.html", "report.json", "tables", "figures"


def prepared(out: str | os.PathLike[str], parts: tuple[str, ...] = ()) -> Path:
    """Create the folder of a report and check that it can be written to; return its path.

    Call this before the computation starts.

    Args:
        parts: names of folders to create inside.

    Raises:
        InvalidInput: the path is a file, or its parent does not exist.
    """
    folder = Path(out)
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file")
        for place in (folder, *(folder / part for part in parts)):
            place.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL or half a surrogate pair
        why = getattr(error, "strerror", None) or "no folder can have this name"
        raise InvalidInput(
            f"cannot write to {str(folder)[:60]!r}", why=why, instead="Give a folder whose parent folder exists"
        ) from error
    return folder


def write(report: Report, out: str | os.PathLike[str]) -> Path:
    """Write a report to a folder, and return the path of its page.

    The files are `report.html` (one self-contained page), `report.json` (text, findings, definitions of the figures),
    `tables/NAME.parquet` and `.json`, and `figures/NAME.svg`.

    Raises:
        InvalidInput: the folder cannot be written to.
    """
    folder = prepared(out, (TABLES, FIGURES))
    for name, exhibit in report.exhibits.items():
        exhibit.table.to_parquet(folder / TABLES / f"{name}.parquet")
        exhibit.table.to_json(folder / TABLES / f"{name}.json")
    for section in report.sections:
        for figure in section.figures:
            svg = draw(figure, report[figure.table], standalone=True)
            write_whole(folder / FIGURES / f"{figure.name}.svg", svg + "\n")
    write_whole(folder / INDEX, json.dumps(report.to_dict(), ensure_ascii=False, indent=1) + "\n")
    return write_whole(folder / PAGE, page(report))


def reopen(out: str | os.PathLike[str]) -> Report:
    """Read the report that `write` saved in a folder; this needs no model.

    Raises:
        InvalidInput: the folder has no report, the report is damaged, or another version wrote it.
    """
    folder = Path(out)
    with reading(f"no report in {folder}", instead="Give a folder that `unembed report` wrote"):
        stored: dict[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    if not isinstance(stored, dict) or stored.get("schema") != SCHEMA:
        found = stored.get("schema") if isinstance(stored, dict) else None
        raise InvalidInput(f"{folder / INDEX}", why=f"its schema is {found!r}, not {SCHEMA!r}")
    names = [table["name"] for section in stored["sections"] for table in section["tables"]]
    return Report.from_dict(stored, {n: Table.from_parquet(folder / TABLES / f"{n}.parquet") for n in names})
