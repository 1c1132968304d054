"""Write HTML tables, for results, notebooks and reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], kinds: Sequence[str] = (), *, caption: str = ""
) -> str:
    """Return an HTML table.

    Args:
        head: the names of the columns, as escaped HTML.
        rows: the cells of each row, as escaped HTML.
        kinds: the CSS class of each column, such as "number"; "" for none.
        caption: the caption, as escaped HTML; empty for none.
    """
    marks = [f' class="{kind}"' if kind else "" for kind in kinds] or [""] * len(head)

    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}{mark}>{c}</{tag}>' for mark, c in zip(marks, cells, strict=True))}</tr>"

    title = f"<caption>{caption}</caption>" if caption else ""
    body = "".join(line("td", row) for row in rows)
    return f"<table>{title}<thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"
