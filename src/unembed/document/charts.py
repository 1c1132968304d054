"""Draw columns of a table as SVG figures: lines, bars, stacks, box plots, heat maps, scatter plots, shaded text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unembed.document.model import Figure
from unembed.document.svg import LETTER, SERIES, WIDTH, Canvas, Real, Scale, fitted, x_title, y_axis
from unembed.results import Table, format_number, visible

Columns = Mapping[str, list[Any]]
_WIDE = 12
"""Approximate width of a capital letter or an m, in SVG units."""


def draw(figure: Figure, table: Table, *, standalone: bool = False) -> str:
    """Return the figure as SVG text.

    Args:
        standalone: True for a separate file, which includes the style sheet; False for a page that has `svg.STYLE`.
    """
    rows = list(table.rows())
    columns = {name: [row[name] for row in rows] for name in table.column_names}
    canvas = Canvas(figure.title)
    painter = {
        "line": _lines,
        "bar": _bars,
        "stacked": _stacks,
        "box": _boxes,
        "heat": _heat,
        "scatter": _scatter,
        "text": _text,
    }[figure.kind]
    painter(canvas, figure, columns)
    return canvas.drawn(standalone=standalone)


def _names(figure: Figure) -> list[str]:
    return [*figure.labels, *figure.y[len(figure.labels) :]]


def _writer(figure: Figure, ticks: Sequence[float] = ()) -> Callable[[Any], str]:
    """Return a function that formats the figure's numbers; for ticks, with enough decimals to distinguish them."""
    scale = 100 if figure.percent else 1
    decimals = _decimals([scale * tick for tick in ticks])

    def write(value: Any) -> str:
        if figure.percent and isinstance(value, int | float):
            return f"{format_number(100 * value, decimals=decimals)} %"
        return format_number(value, decimals=decimals)

    return write


def _decimals(ticks: Sequence[float]) -> int | None:
    """Return the fewest decimals that show all ticks exactly; None if the three digits of `format_number` suffice."""
    if all(math.isclose(float(f"{t:.3g}"), t, abs_tol=1e-9) for t in ticks):
        return None
    return next((n for n in range(5) if all(math.isclose(round(t, n), t, abs_tol=1e-9) for t in ticks)), None)


def _categories(canvas: Canvas, values: Sequence[Any], label: str) -> Callable[[int], float]:
    """Write the names of the x values below the axis; if there is no room for all, every second, third or so on.

    Returns a function from an x value's index to its x coordinate.
    """
    n = max(len(values), 1)
    step = canvas.inner_width / n
    names = [format_number(int(v) if isinstance(v, float) and v.is_integer() else v) for v in values]
    every = max(1, math.ceil(max((7 * len(name) + 6 for name in names), default=1) / step))
    # `free` is the x coordinate at which the next name to the right begins. The last name has none to its right.
    free = math.inf
    for i in reversed(range(0, len(names), every)):
        x, half = canvas.left + (i + 0.5) * step, 0.6 * LETTER * len(names[i])
        if min(x, WIDTH - half) + half < free:
            canvas.text(x, canvas.height - canvas.bottom + 20, names[i])
            free = min(x, WIDTH - half) - half
    x_title(canvas, label)
    return lambda i: canvas.left + (i + 0.5) * step


def _vertical(canvas: Canvas, figure: Figure, values: Sequence[Any]) -> Scale:
    published = [v for r in figure.references for v in (*r.low, *r.high)]
    low, high = figure.y_range or fitted([*values, *published], logarithmic=figure.logarithmic)
    scale = Scale(low, high, canvas.height - canvas.bottom, canvas.top, figure.logarithmic)
    y_axis(canvas, scale, figure.y_label, _writer(figure, scale.ticks()))
    return scale


def _beside(columns: Columns, name: str) -> tuple[list[Any] | None, list[Any] | None, list[Any] | None]:
    return columns.get(f"{name}_low"), columns.get(f"{name}_high"), columns.get(f"{name}_published")


def _legend(canvas: Canvas, figure: Figure, columns: Columns, *, always: bool = False) -> None:
    names, kinds = _names(figure), [_fill(i, name) for i, name in enumerate(figure.y)]
    printed = [i for i, name in enumerate(figure.y) if any(v is not None for v in _beside(columns, name)[2] or ())]
    if len(names) > 1 or always or figure.references or printed:
        names += [r.label for r in figure.references] + ["published"] * bool(printed)
        kinds += _reference_kinds(figure)
        kinds += [f"ref s{printed[0] % SERIES}" if len(printed) == 1 else "ref"] * bool(printed)
        canvas.legend(names, kinds)


def _reference_kinds(figure: Figure) -> list[str]:
    """Return the style class of each published value in a figure.

    A value has the colour of the data series that it is compared with. Values without such a series are dashed and
    dotted in turn.
    """
    free = [r for r in figure.references if r.series < 0]
    return [
        f"ref s{r.series % SERIES}" if r.series >= 0 else "ref dotted" if free.index(r) % 2 else "ref"
        for r in figure.references
    ]


def _references(canvas: Canvas, figure: Figure, x: Callable[[int], float], n: int, y: Scale) -> None:
    """Draw published values as dashed lines, intervals as bands, and a range of the x axis as a vertical band."""
    first, last = x(0), x(max(n - 1, 0))
    for reference, kind in zip(figure.references, _reference_kinds(figure), strict=True):
        across = [first + at * (last - first) for at in reference.at] or [canvas.left, WIDTH - canvas.right]
        times = 1 if reference.at else 2
        low, high = (
            list(zip(across, (y(v) for v in side * times), strict=False)) for side in (reference.low, reference.high)
        )
        if not low:  # a reference without values is a range of the x axis
            top, foot = canvas.top, canvas.height - canvas.bottom
            half = (last - first) / max(n - 1, 1) / 2
            ends = across[0] - half, across[1] + half
            corners = [(ends[0], top), (ends[1], top), (ends[1], foot), (ends[0], foot)]
            canvas.path(corners, kind.replace("ref", "refband", 1), closed=True)
            for x_end in ends:
                canvas.path([(x_end, top), (x_end, foot)], kind)
        if high:
            canvas.path([*low, *reversed(high)], kind.replace("ref", "refband", 1), closed=True)
        for edge in (low, high):
            if len(edge) == 1:  # a single value: draw a short line
                edge = [(edge[0][0] - 14, edge[0][1]), (edge[0][0] + 14, edge[0][1])]
            canvas.path(edge, kind)


def _all(columns: Columns, names: Sequence[str], suffixes: Sequence[str] = ("", "_low", "_high", "_published")) -> list:
    return [v for name in names for suffix in suffixes for v in columns.get(name + suffix, [])]


def _hover(figure: Figure, columns: Columns, name: str, i: int, label: str) -> str:
    write = _writer(figure)
    low, high, published = _beside(columns, name)
    hover = f"{figure.x_label or figure.x} {format_number(columns[figure.x][i])}, {label}: {write(columns[name][i])}"
    if low is not None and high is not None:
        hover += f" [{write(low[i])}, {write(high[i])}]"
    if published is not None and published[i] is not None:
        hover += f", published {write(published[i])}"
    return hover


def _lines(canvas: Canvas, figure: Figure, columns: Columns) -> None:
    _legend(canvas, figure, columns)
    y = _vertical(canvas, figure, _all(columns, figure.y))
    x = _categories(canvas, columns[figure.x], figure.x_label)
    places = range(len(columns[figure.x]))
    for s, (name, label) in enumerate(zip(figure.y, _names(figure), strict=True)):
        colour = s % SERIES
        low, high, published = _beside(columns, name)
        if low is not None and high is not None:
            known = [i for i in places if math.isfinite(y(low[i])) and math.isfinite(y(high[i]))]
            edge = [(x(i), y(high[i])) for i in known] + [(x(i), y(low[i])) for i in reversed(known)]
            canvas.path(edge, f"band f{colour}", closed=True)
        if published is not None:
            canvas.path([(x(i), y(published[i])) for i in places], f"ref s{colour}")
        canvas.path([(x(i), y(columns[name][i])) for i in places], f"line s{colour}")
        for i in places:
            if math.isfinite(y(columns[name][i])):
                canvas.dot(x(i), y(columns[name][i]), 3, f"f{colour}", _hover(figure, columns, name, i, label))
    _references(canvas, figure, x, len(places), y)


def _bars(canvas: Canvas, figure: Figure, columns: Columns) -> None:
    _legend(canvas, figure, columns)
    y = _vertical(canvas, figure, _all(columns, figure.y))
    x = _categories(canvas, columns[figure.x], figure.x_label)
    n = len(columns[figure.x])
    step = canvas.inner_width / max(n, 1)
    width = min(34.0, 0.72 * step / len(figure.y))
    base = y(1e-300 if figure.logarithmic else max(y.low, 0.0))
    for s, (name, label) in enumerate(zip(figure.y, _names(figure), strict=True)):
        low, high, published = _beside(columns, name)
        for i in range(n):
            top = y(columns[name][i])
            if not math.isfinite(top):
                continue
            left = x(i) + (s - len(figure.y) / 2) * width
            hover = _hover(figure, columns, name, i, label)
            canvas.box(left + 1, min(top, base), width - 2, abs(base - top), f"f{s % SERIES}", hover)
            if low is not None and high is not None and math.isfinite(y(low[i])):
                canvas.rule(left + width / 2, y(low[i]), left + width / 2, y(high[i]), "whisker zero")
            if published is not None and math.isfinite(y(published[i])):
                canvas.rule(left - 2, y(published[i]), left + width + 2, y(published[i]), "ref")
    _references(canvas, figure, x, n, y)


def _fill(number: int, name: str) -> str:
    """Return the style class of a series: its colour, or grey for the series named "none"."""
    return "rest" if name == "none" else f"f{number % SERIES}"


def _stacks(canvas: Canvas, figure: Figure, columns: Columns) -> None:
    _legend(canvas, figure, columns, always=True)
    n = len(columns[figure.x])
    totals = [sum(columns[name][i] or 0.0 for name in figure.y) for i in range(n)]
    y = _vertical(canvas, figure, totals)
    x = _categories(canvas, columns[figure.x], figure.x_label)
    width = min(44.0, 0.78 * canvas.inner_width / max(n, 1))
    for i in range(n):
        below = 0.0
        for s, (name, label) in enumerate(zip(figure.y, _names(figure), strict=True)):
            value = columns[name][i]
            if value is None or not math.isfinite(value):
                continue
            top, foot = y(below + value), y(below)
            hover = _hover(figure, columns, name, i, label)
            canvas.box(x(i) - width / 2, top, width, foot - top - 0.6, _fill(s, name), hover, "fill-opacity:.88")
            below += value
    _references(canvas, figure, x, n, y)


def _boxes(canvas: Canvas, figure: Figure, columns: Columns) -> None:
    """Draw boxes from the first to the third quartile with the median, and whiskers at 5 and 95 percent."""
    _legend(canvas, figure, columns)
    spread = [f"_{q}" for q in ("q05", "q25", "q50", "q75", "q95")]
    y = _vertical(canvas, figure, _all(columns, figure.y, spread))
    x = _categories(canvas, columns[figure.x], figure.x_label)
    n = len(columns[figure.x])
    width = min(36.0, 0.7 * canvas.inner_width / max(n, 1) / len(figure.y))
    write = _writer(figure)
    for s, (stem, label) in enumerate(zip(figure.y, _names(figure), strict=True)):
        for i in range(n):
            q05, q25, q50, q75, q95 = (columns[stem + q][i] for q in spread)
            if q50 is None or not math.isfinite(q50):
                continue
            middle = x(i) + (s - (len(figure.y) - 1) / 2) * width
            hover = (
                f"{figure.x_label or figure.x} {format_number(columns[figure.x][i])}, {label}: median {write(q50)}, "
                f"half in [{write(q25)}, {write(q75)}], nine in ten in [{write(q05)}, {write(q95)}]"
            )
            colour = s % SERIES
            canvas.rule(middle, y(q05), middle, y(q95), f"whisker s{colour}")
            half = 0.4 * width
            canvas.box(
                middle - half, y(q75), 2 * half, max(y(q25) - y(q75), 1), f"f{colour}", hover, "fill-opacity:.55"
            )
            canvas.rule(middle - half, y(q50), middle + half, y(q50), "middle")
    _references(canvas, figure, x, n, y)


def axis_of(column: Sequence[Any]) -> list[Any]:
    """Return the distinct values along an axis of a heat map: integers sorted, names in the order of the rows."""
    found = list(dict.fromkeys(column))
    return sorted(found) if all(isinstance(one, int) for one in found) else found


def _heat(canvas: Canvas, figure: Figure, columns: Columns) -> None:
    """Draw a heat map: stronger colours for larger numbers, and another colour for negative ones."""
    across, down = axis_of(columns[figure.x]), axis_of(columns[figure.rows])
    canvas.left = max(
        canvas.left, 7 * max((len(format_number(name)) for name in down), default=0) + (26 if figure.y_label else 10)
    )
    side = canvas.inner_width / max(len(across), 1)
    tall = min(side, 26.0) if len(down) > 1 else 26.0
    values = columns[figure.y[0]]
    low, high = figure.y_range or fitted(values)
    largest = max(abs(low), abs(high)) or 1.0
    write = _writer(figure)
    _colour_bar(canvas, largest, low < 0, write)
    canvas.height = canvas.top + canvas.bottom + tall * len(down)
    _categories(canvas, across, figure.x_label)
    every = max(1, math.ceil(14 / tall))
    for r, name in enumerate(down):
        if r % every == 0:
            canvas.text(canvas.left - 7, canvas.top + (r + 0.5) * tall + 4, format_number(name), anchor="end")
    for i, value in enumerate(values):
        if value is None or not math.isfinite(value):
            continue
        c, r = across.index(columns[figure.x][i]), down.index(columns[figure.rows][i])
        strength = min(1.0, abs(value) / largest)
        tone = "--heat" if value >= 0 else "--cold"
        hover = (
            f"{figure.y_label or figure.rows} {format_number(columns[figure.rows][i])}, "
            f"{figure.x_label or figure.x} {format_number(columns[figure.x][i])}: {write(value)}"
        )
        colour = _heat_colour(tone, strength)
        canvas.box(canvas.left + c * side, canvas.top + r * tall, side - 1, tall - 1, "cell", hover, colour)
    if figure.y_label:
        canvas.text(13, canvas.top + tall * len(down) / 2, figure.y_label, turn=-90)


def _heat_colour(tone: str, strength: Real) -> str:
    return f"fill:rgba(var({tone}),{0.04 + 0.96 * strength:.3f})"


def _colour_bar(canvas: Canvas, largest: Real, signed: bool, write: Callable[[Any], str]) -> None:
    """Draw the colour scale above the figure, and move the figure down by its height."""
    steps, width, height = 20, 5, 9
    x, y = canvas.left, canvas.top
    shares = [i / steps for i in range(-steps if signed else 0, steps + 1)]
    for i, share in enumerate(shares):
        colour = _heat_colour("--heat" if share >= 0 else "--cold", abs(share))
        canvas.box(x + 46 + i * width, y, width, height, "cell", style=colour)
    canvas.text(x + 40, y + 9, write(-largest if signed else 0.0), anchor="end")
    canvas.text(x + 52 + len(shares) * width, y + 9, write(largest), anchor="start")
    canvas.top += height + 10


def _scatter(canvas: Canvas, figure: Figure, columns: Columns) -> None:
    _legend(canvas, figure, columns)
    xs, ys = columns[figure.x], _all(columns, figure.y, ("",))
    low, high = fitted(xs)
    if figure.equal:
        ends = [abs(end) for end in (low, high, *fitted(ys))]
        low, high = -max(ends), max(ends)
        canvas.height = canvas.top + canvas.bottom + canvas.inner_width
        figure = replace(figure, y_range=(low, high))
    y = _vertical(canvas, figure, ys)
    x = Scale(low, high, canvas.left, WIDTH - canvas.right)
    write = _writer(figure, x.ticks())
    for tick in x.ticks():
        canvas.text(x(tick), canvas.height - canvas.bottom + 20, write(tick))
    x_title(canvas, figure.x_label)
    for s, (name, label) in enumerate(zip(figure.y, _names(figure), strict=True)):
        for i, value in enumerate(columns[name]):
            if math.isfinite(x(xs[i])) and math.isfinite(y(value)):
                canvas.dot(x(xs[i]), y(value), 3, f"f{s % SERIES}", _hover(figure, columns, name, i, label))


def _text(canvas: Canvas, figure: Figure, columns: Columns) -> None:
    """Draw tokens as running text; the background colour of each shows the sign and size of its value."""
    canvas.left, canvas.bottom, line = 10, 8, 24
    values = columns[figure.y[0]]
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0) or 1.0
    write, x, y = _writer(figure), canvas.left, canvas.top
    for token, value in zip(columns[figure.x], values, strict=True):
        word = visible(str(token))
        width = sum(_WIDE if letter in "mw@%&#<>=+~↵" or letter.isupper() else LETTER + 1 for letter in word) + 6
        if x > canvas.left and x + width > WIDTH - canvas.right:
            x, y = canvas.left, y + line
        number = value if value is not None and math.isfinite(value) else 0.0
        tone = "--cold" if number < 0 else "--heat"
        colour = f"fill:rgba(var({tone}),{0.04 + 0.66 * abs(number) / largest:.3f})"
        hover = f"{word}: {write(value)}"
        canvas.box(x, y, width - 2, line - 4, "cell", hover, colour)
        canvas.text(x + 3, y + 14, word, anchor="start", kind="name")
        x += width
    canvas.height = y + line + canvas.bottom
