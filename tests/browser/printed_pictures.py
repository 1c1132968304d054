"""Pictures of what a command prints and of a report's figure beside the published numbers, drawn by a browser page."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).parents[2]
REPORT = ROOT / ".cache" / "report" / "geva2021"

COMMAND = 'unembed explain "He was born in the United" --token " States" --against " Kingdom" --by component'
COLUMNS = 84
FIGURES = ("Fig. 4", "Values: here and published")
"""The heading of a figure of the report, and of the table with the published numbers."""
ROWS = 6
"""Rows of that table that are shown."""

_TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; width: max-content; background: #292929; }}
pre {{ margin: 0; padding: 20px 26px; color: {foreground}; font: 15px/1.42 "DejaVu Sans Mono", monospace; }}
{stylesheet}</style><pre>{code}</pre>"""

_REPORT = """<!doctype html><meta charset="utf-8"><title>report</title><style>{style}
body {{ max-width: none; width: max-content; margin: 0; padding: 24px 28px; }}
.picture {{ display: grid; grid-template-columns: 400px 990px; gap: 32px; align-items: start; }}
</style><body><div class="picture"><div>{figure}</div><div class="exhibit">{table}</div></div>"""


def terminal_page(command: str = COMMAND) -> str:
    """A page with a command and what it prints on a terminal, in its colours."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), highlight=False)  # noqa: SIM115
    console.print(Text.assemble(("$ ", "bold green"), command), soft_wrap=True)
    for line in _printed(command):
        console.print(Text.from_ansi(line), soft_wrap=True)
    return console.export_html(theme=SVG_EXPORT_THEME, code_format=_TERMINAL)


def _printed(command: str) -> Iterator[str]:
    """The lines of a command on a terminal of its own."""
    screen, end = pty.openpty()
    settings = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    settings.pop("NO_COLOR", None)
    words = [sys.executable, "-m", *shlex.split(command)]
    with subprocess.Popen(words, stdout=end, stderr=subprocess.DEVNULL, env=settings) as process:
        os.close(end)
        text = b""
        while part := _read(screen):
            text += part
    if process.returncode:
        sys.exit(f"Cannot make the picture: `{command}` exited with {process.returncode}")
    yield from text.decode().replace("\r\n", "\n").rstrip("\n").split("\n")


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 1 << 16)
    except OSError:  # how Linux says that the other end was closed
        return b""


def report_page(folder: Path = REPORT) -> str:
    """A page with one figure of a report and the table in which our numbers stand next to the published ones.

    A report that is not there is made first, over the shipped text: some minutes.
    """
    if not (folder / "report.html").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        words = ["report", "geva2021", "--corpus", "shipped", "--out", str(folder), "--seed", "0"]
        subprocess.run([sys.executable, "-m", "unembed", *words], check=True, stdout=subprocess.DEVNULL)
    page = (folder / "report.html").read_text("utf-8")
    style = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    figure = re.search(rf"<figure><h3>{re.escape(FIGURES[0])}.*?</svg>", page, re.DOTALL)
    table = re.search(rf"<h3>{re.escape(FIGURES[1])}</h3>.*?</table>", page, re.DOTALL)
    if figure is None or table is None:
        sys.exit(f"Cannot make the picture: {folder}/report.html has no {' or '.join(FIGURES)}")
    head, *rows = table[0].split("<tr>")[1:]
    shown = "<tr>".join([table[0].split("<tr>")[0], head, *rows[:ROWS]])
    return _REPORT.format(style=style, figure=f"{figure[0]}</figure>", table=f"{shown}</tbody></table></div>")


CIRCUIT = 'unembed circuit "The capital of France is" --token " Paris" --against " London" --model smollm2'
_ALONE = (
    "<style>header, section, footer { display: none; } body { width: 1240px; max-width: none; padding: 16px; }</style>"
)
"""Of a circuit's page, the picture alone."""


def circuit_page() -> str:
    """The picture of a circuit of SmolLM2, which must have been fetched."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "circuit.html"
        subprocess.run([sys.executable, "-m", *shlex.split(CIRCUIT), "--html", str(path)], check=True)
        return path.read_text("utf-8").replace("</head>", f"{_ALONE}</head>")


ATLAS = ROOT / "docs" / "atlas" / "smollm2"
_LINES = (
    "<style>header, nav, footer, section:not(#s3), section p, tr:nth-child(n+17) { display: none; } "
    "td:first-child { white-space: nowrap; } body { width: 1080px; max-width: none; padding: 8px 24px 24px; }</style>"
)
"""Of an atlas's page, 16 of the descriptions that were drawn at random."""


def atlas_page() -> str:
    """Some lines of SmolLM2's atlas."""
    page = (ATLAS / "index.html").read_text("utf-8")
    if 'id="s3"><h2>Descriptions drawn' not in page:
        sys.exit(f"Cannot make the picture: {ATLAS}/index.html has no fourth section with descriptions")
    return page.replace("</head>", f"{_LINES}</head>")


PAGES = {"terminal": terminal_page, "report": report_page, "circuit": circuit_page, "atlas-lines": atlas_page}
"""How to make the page of each picture."""
