"""Elements that all SVG figures share: a canvas, axes, ticks, a legend, and a style sheet for light and dark pages.

Colours are set by CSS classes, so that figures inside a page and in separate files can use the same style sheet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

Real = int | float

WIDTH, HEIGHT = 460, 280
LETTER = 7
"""Approximate width of a letter, in SVG units."""
SERIES = 7
"""Number of colours of data series; a figure with more series repeats them."""

STYLE = """
svg.figure { --s0: #2f6fde; --s1: #c2570c; --s2: #0b7a4b; --s3: #8a4fd0; --s4: #b08900; --s5: #0f8b9d; --s6: #b3406b;
  --fig-ink: #1d2433; --fig-soft: #667085; --fig-line: #e4e2dd; --heat: 47,111,222; --cold: 194,87,12;
  font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; width: 100%; height: auto; display: block; }
@media (prefers-color-scheme: dark) { svg.figure { --s0: #6ea8fe; --s1: #f29a4b; --s2: #4cc38a; --s3: #b794f4;
  --s4: #e3c14b; --s5: #56c7d6; --s6: #ee8fb4; --fig-ink: #e8eaf0; --fig-soft: #98a2b3; --fig-line: #2d333f;
  --heat: 110,168,254; --cold: 242,154,75; } }
.figure text { fill: var(--fig-soft); } .figure text.name { fill: var(--fig-ink); }
.figure .axis { stroke: var(--fig-line); stroke-width: 1; } .figure .zero { stroke: var(--fig-soft); opacity: .6; }
.figure .line { fill: none; stroke-width: 2; stroke-linejoin: round; } .figure .dash { stroke-dasharray: 5 4; }
.figure .band { opacity: .16; stroke: none; } .figure .whisker { stroke-width: 1.4; opacity: .7; fill: none; }
.figure .ref { fill: none; stroke: var(--fig-ink); stroke-width: 1.6; stroke-dasharray: 6 4; opacity: .75; }
.figure .ref.dotted { stroke-dasharray: 1.5 3; stroke-width: 2.2; }
.figure .refband { fill: var(--fig-ink); opacity: .1; stroke: none; }
.figure .rest { fill: var(--fig-line); }
.figure .middle { stroke: var(--fig-ink); stroke-width: 2.2; }
"""
for _i in range(SERIES):
    STYLE += f".figure .s{_i} {{ stroke: var(--s{_i}); }} .figure .f{_i} {{ fill: var(--s{_i}); }}\n"
    STYLE += f".figure .refband.s{_i} {{ fill: var(--s{_i}); stroke: none; }}\n"


_SCHEME = re.compile(r"@media \(prefers-color-scheme: dark\) \{.*?\} \}", re.DOTALL)
_VARIABLE = re.compile(r"(--[a-z0-9-]+): ([^;]+);")


def in_plain_colours(drawing: str) -> str:
    """Convert a standalone SVG for renderers without CSS variables: light colours on a white background."""
    light = _SCHEME.sub("", drawing)
    for name, colour in dict(_VARIABLE.findall(light)).items():
        light = light.replace(f"var({name})", colour)
    return light.replace("</style>", '</style><rect width="100%" height="100%" fill="#fff"/>', 1)


@dataclass
class Canvas:
    """A list of SVG elements, with methods that add elements. Coordinates: x from the left, y from the top."""

    title: str
    height: Real = HEIGHT
    left: Real = 68
    top: Real = 10
    right: Real = 10
    bottom: Real = 44
    elements: list[str] = field(default_factory=list)

    @property
    def inner_width(self) -> Real:
        """Width of the plot area, between the margins."""
        return WIDTH - self.left - self.right

    @property
    def inner_height(self) -> Real:
        """Height of the plot area, between the margins."""
        return self.height - self.top - self.bottom

    def add(self, element: str) -> None:
        """Add an element, on top of the previous ones."""
        self.elements.append(element)

    def text(self, x: Real, y: Real, words: str, *, anchor: str = "middle", kind: str = "", turn: Real = 0) -> None:
        """Write text at a point; centred text is moved inwards if the edge of the figure would cut it off."""
        half = 0.6 * LETTER * len(words)  # a little more than half of the text: digits are wide
        if anchor == "middle" and not turn and 2 * half < WIDTH:
            x = min(max(x, half), WIDTH - half)
        turned = f' transform="rotate({turn:g} {x:.1f} {y:.1f})"' if turn else ""
        named = f' class="{kind}"' if kind else ""
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}{turned}>{escape(words)}</text>')

    def rule(self, x1: Real, y1: Real, x2: Real, y2: Real, kind: str = "axis") -> None:
        """Draw a straight line."""
        self.add(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>')

    def box(self, x: Real, y: Real, width: Real, height: Real, kind: str, hover: str = "", style: str = "") -> None:
        """Draw a filled rectangle with a tooltip (`hover`)."""
        title = f"<title>{escape(hover)}</title>" if hover else ""
        styled = f' style="{style}"' if style else ""
        self.add(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" rx="1.5" '
            f'class="{kind}"{styled}>{title}</rect>'
        )

    def dot(self, x: Real, y: Real, radius: Real, kind: str, hover: str = "") -> None:
        """Draw a filled circle."""
        title = f"<title>{escape(hover)}</title>" if hover else ""
        self.add(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{kind}">{title}</circle>')

    def path(self, points: Sequence[tuple[Real, Real]], kind: str, *, closed: bool = False) -> None:
        """Draw a line through points, with a gap at points that are not finite."""
        steps, pen = [], "M"
        for x, y in points:
            if math.isfinite(x) and math.isfinite(y):
                steps.append(f"{pen}{x:.1f} {y:.1f}")
                pen = "L"
            else:
                pen = "M"
        if steps:
            self.add(f'<path d="{"".join(steps)}{"Z" if closed else ""}" class="{kind}"/>')

    def legend(self, names: Sequence[str], kinds: Sequence[str]) -> None:
        """Draw a legend above the plot area, in as many rows as it needs, and move the plot area down."""
        x, row, height = self.left, 0, 18
        for name, kind in zip(names, kinds, strict=True):
            width = 34 + 7.7 * len(name)  # enough for the widest of the possible fonts
            if x > self.left and x + width > WIDTH - self.right:
                x, row = self.left, row + 1
            y = self.top + 8 + row * height
            if kind.startswith("ref"):  # published values are shown as a line, not a square
                self.rule(x - 1, y - 4, x + 13, y - 4, kind)
            else:
                self.add(f'<rect x="{x:.1f}" y="{y - 8:.1f}" width="11" height="9" rx="2" class="{kind}"/>')
            self.text(x + 16, y, name, anchor="start", kind="name")
            x += width
        self.top += (row + 1) * height + 4

    def drawn(self, *, standalone: bool) -> str:
        """Return the figure as SVG text; `standalone` adds the style sheet, which a separate file needs."""
        style = f"<style>{STYLE}</style>" if standalone else ""
        xmlns = ' xmlns="http://www.w3.org/2000/svg"' if standalone else ""
        return (
            f'<svg{xmlns} class="figure" viewBox="0 0 {WIDTH} {self.height:g}" role="img" '
            f'aria-label="{escape(self.title)}">{style}{"".join(self.elements)}</svg>'
        )


@dataclass(frozen=True)
class Scale:
    """Converts numbers to coordinates along an axis: `low` to `start`, and `high` to `end`."""

    low: Real
    high: Real
    start: Real
    end: Real
    logarithmic: bool = False

    def __call__(self, value: Real | None) -> Real:
        """Return the coordinate of a number; NaN for None and numbers that are not finite."""
        if value is None or not math.isfinite(value):
            return math.nan
        if self.logarithmic:
            if value <= 0:
                return self.start
            share = (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low) or 1)
        else:
            share = (value - self.low) / (self.high - self.low or 1)
        return self.start + min(max(share, -0.02), 1.02) * (self.end - self.start)

    def ticks(self) -> list[Real]:
        """Return round numbers between the ends of the axis, for its tick marks."""
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, (last - first) // 5)
            return [10.0**power for power in range(first, last + 1, step)]
        step = round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        found = [i * step for i in range(first, int(self.high / step + 1e-9) + 1)]
        return [0.0 if abs(t) < step / 1e6 else t for t in found]


def round_step(size: Real) -> Real:
    """Return the smallest number that is 1, 2 or 5 times a power of ten and at least `size`."""
    if not math.isfinite(size) or size <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(size))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= size * (1 - 1e-9))


def fitted(values: Sequence[Real | None], *, logarithmic: bool = False) -> tuple[Real, Real]:
    """Return round numbers as the ends of an axis that contains all values and, unless it is logarithmic, zero."""
    found = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not logarithmic)]
    if not found:
        return (0.1, 1.0) if logarithmic else (0.0, 1.0)
    if logarithmic:
        low, high = min(found), max(found)
        low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
        return (low, high * 10) if low == high else (low, high)
    low, high = min(*found, 0.0), max(*found, 0.0)
    if low == high:
        high = low + 1
    step = round_step((high - low) / 5)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def y_axis(canvas: Canvas, scale: Scale, label: str, write: Callable[[Any], str]) -> None:
    """Draw grid lines with their numbers, and the axis title along the left side."""
    for tick in scale.ticks():
        y = scale(tick)
        canvas.rule(canvas.left, y, WIDTH - canvas.right, y, "zero" if tick == 0 and scale.low < 0 else "axis")
        canvas.text(canvas.left - 7, y + 4, write(tick), anchor="end")
    if label:
        middle = canvas.top + canvas.inner_height / 2
        canvas.text(12, middle, label, turn=-90)


def x_title(canvas: Canvas, label: str) -> None:
    """Write the axis title below the drawing."""
    if label:
        canvas.text(canvas.left + canvas.inner_width / 2, canvas.height - 6, label)
