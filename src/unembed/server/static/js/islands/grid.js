/**
 * The grid of layers and positions. Only visible cells exist as elements; an update rewrites only cells that differ; a
 * selection moves an overlay. Nothing here reads the layout during an update, because the browser would then lay out
 * the page twice for one frame.
 *
 * mount(el, data, options) -> {update, select, mark, centre, destroy}
 *   data.fit: all columns fit the width, without text where they are narrow; data.pinned: columns that stay in view.
 *   data: {rows: [{label, sub, name, cells: [{text, q, title, name, same, glyph, cls}]}], columns: [{text, next}],
 *   at: [row, column]}
 *     `same`: the cell repeats the row below it; q: 0 to 16, the fill. Rows are given top first.
 *   options: {onview(left, width, whole) when the box is scrolled or sized, onselect(row, column), onopen(row,
 *   column), onhover(row, column, element), onrange(first, last, row), onpin(row, column), label}
 *     `onpin`: a cell clicked with Shift;
 *     `onrange`: rows chosen by dragging over their labels or with Shift and the arrows; null where one label was
 *     clicked
 */
import { LABEL, leftOf, ROW, writeCell, writeHead, writeRow } from "./grid-cells.js";
import { listen } from "./grid-events.js";
import { h } from "./nodes.js";
import { clamp, within } from "./numbers.js";
import { visible } from "./tokens.js";

const HEAD = 44;
/** Narrower columns show only their colour. */
const READABLE = 40;
const NARROWEST = 3;
/** Columns shrink to this width before the grid scrolls. */
const SQUEEZED = 56;

export function mount(el, data, options = {}) {
  const g = begun(el, data, options);
  el.classList.add("grid");
  el.classList.toggle("ranges", !!options.onrange);
  el.tabIndex = 0;
  el.setAttribute("role", "grid");
  el.setAttribute("aria-label", options.label || "Layers and positions");
  g.head.append(g.corner);
  g.body.append(g.cross, g.ring);
  el.replaceChildren(g.head, g.body);
  const observer = new ResizeObserver(() => (look(g), update(g, g.data)));
  observer.observe(el);
  el.addEventListener("scroll", () => schedule(g), { passive: true });
  listen(g, (r, c, tell) => pick(g, r, c, tell));
  look(g);
  update(g, data);
  return {
    update: (next) => update(g, next),
    select: (r, c) => pick(g, r, c, false),
    /** Mark a range of rows, [first, last], or none where it is null. */
    mark(range) {
      g.ranged = range;
      for (const [r, row] of g.painted) row.el.classList.toggle("ranged", g.inRange(r));
    },
    /** Scroll so that the column at this fraction of the width is in the middle. */
    centre: (share) => el.scrollTo({ left: share * g.data.columns.length * g.columnWidth - (g.seen[2] - LABEL) / 2 }),
    destroy() {
      observer.disconnect();
      cancelAnimationFrame(g.frame);
      el.replaceChildren();
    },
  };
}

/**
 * The state of a grid. `at`: the selected cell; `painted`: rows that exist as elements, with their cells; `pinned`: the
 * pinned columns, each with its order among them; `seen`: the box's scroll offset and size.
 */
function begun(el, data, options) {
  const id = `grid${Math.random().toString(36).slice(2, 8)}`;
  const head = h("div.grid-head", { role: "row", "aria-rowindex": 1 });
  const body = h("div.grid-body", { role: "rowgroup" });
  const corner = h("div.grid-corner", { role: "columnheader" });
  const [ring, cross] = ["ring", "column"].map((name) => h(`div.grid-${name}`, { hidden: true }));
  const size = { columnWidth: 92, margin: 2, seen: [0, 0, 0, 0] };
  const drawn = { painted: new Map(), heads: new Map(), pinned: new Map(), frame: 0 };
  const inRange = (r) => !!g.ranged && r >= g.ranged[0] && r <= g.ranged[1];
  const elements = { el, head, body, corner, ring, cross };
  const g = { ...elements, ...size, ...drawn, data, options, id, at: [0, 0], ranged: null, inRange };
  return g;
}

const look = (g) => (g.seen = [g.el.scrollLeft, g.el.scrollTop, g.el.clientWidth, g.el.clientHeight]);

function schedule(g) {
  if (!g.frame) g.frame = requestAnimationFrame(() => ((g.frame = 0), look(g), paint(g)));
}

/** Whole pixels, except for columns so narrow that rounding would leave much of the width empty. */
const whole = (width) => (width < 8 ? width : Math.floor(width));

/** The width of the columns: what their texts need, or less where all columns then fit. */
function widthOf({ columns, fit }, seen) {
  const widest = Math.max(4, ...columns.map((c) => visible(c.text).length));
  const wanted = clamp(widest * 8 + 18, 68, 116);
  const room = seen[2] - LABEL - 2;
  const squeezed = room > 0 && (fit || columns.length * Math.min(wanted, SQUEEZED) < room);
  return squeezed ? clamp(whole(room / columns.length), NARROWEST, 132) : wanted;
}

function update(g, next) {
  const { el, head, body, painted } = g;
  const other = g.data.rows.length !== next.rows.length || !painted.size;
  g.data = next;
  const { rows, columns } = next;
  g.columnWidth = widthOf(next, g.seen);
  g.margin = g.columnWidth < 8 ? 0 : 2;
  el.classList.toggle("dense", g.columnWidth < READABLE);
  el.classList.toggle("thin", !g.margin);
  g.pinned = new Map((next.pinned || []).map((c, k) => [c, k]));
  el.setAttribute("aria-rowcount", String(rows.length + 1));
  el.setAttribute("aria-colcount", String(columns.length + 1));
  g.corner.textContent = next.corner || "";
  body.style.width = head.style.width = `${LABEL + columns.length * g.columnWidth}px`;
  body.style.height = `${rows.length * ROW}px`;
  if (other) look(g);
  drop(g, rows.length, columns.length);
  for (const [c, cell] of g.heads) writeHead(g, cell, c);
  for (const [r, row] of painted) {
    writeRow(g, row.el, r);
    for (const [c, cell] of row.cells) writeCell(g, cell, r, c);
  }
  const [r, c] = next.at || g.at;
  const stays = painted.size && r === g.at[0] && c === g.at[1] && c < columns.length && r < rows.length;
  if (!stays) return pick(g, r, c);
  place(g); // the scroll offset does not change
  paint(g);
}

/** Remove elements outside these rows and columns. */
function drop({ pinned, painted, heads, data }, r1, c1, r0 = 0, c0 = 0) {
  const gone = (c) => (c < c0 || c >= c1) && !(pinned.has(c) && c < data.columns.length);
  for (const [r, row] of painted) {
    if (r < r0 || r >= r1) row.el.remove(), painted.delete(r);
    else for (const [c, cell] of row.cells) if (gone(c)) cell.remove(), row.cells.delete(c);
  }
  for (const [c, cell] of heads) if (gone(c)) cell.remove(), heads.delete(c);
}

function movePinned(g) {
  for (const c of g.pinned.keys())
    for (const cells of [g.heads, ...[...g.painted.values()].map((row) => row.cells)])
      if (cells.has(c)) cells.get(c).style.left = `${leftOf(g, c)}px`;
}

/** The first and the last of n steps that are in view, and a few more. */
function inView(scroll, size, step, n) {
  const from = Math.max(0, Math.floor(scroll / step) - 3);
  return [from, Math.min(n, Math.ceil((scroll + size) / step) + 3)];
}

function paint(g) {
  const { seen, data, columnWidth, heads, painted } = g;
  const n = data.columns.length;
  const [c0, c1] = inView(seen[0], seen[2] || 1200, columnWidth, n);
  const [r0, r1] = inView(seen[1], seen[3] || 800, ROW, data.rows.length);
  drop(g, r1, c1, r0, c0);
  const columns = Array.from({ length: Math.max(0, c1 - c0) }, (_, i) => c0 + i);
  for (const c of g.pinned.keys()) if ((c < c0 || c >= c1) && c < n) columns.push(c);
  for (const c of columns)
    if (!heads.has(c)) heads.set(c, writeHead(g, part(g.head, "grid-token", "columnheader", c), c));
  for (let r = r0; r < r1; r++) {
    if (!painted.has(r)) painted.set(r, { el: rowOf(g, r), cells: new Map() });
    const { el, cells } = painted.get(r);
    for (const c of columns)
      if (!cells.has(c)) {
        const cell = part(el, "cell", "gridcell", c);
        cell.dataset.r = String(r);
        cell.id = `${g.id}-${r}-${c}`;
        cells.set(c, writeCell(g, cell, r, c));
      }
  }
  if (g.pinned.size) movePinned(g);
  if (seen[2] > LABEL) g.options.onview?.(seen[0], seen[2] - LABEL, n * columnWidth);
}

function part(into, cls, role, c) {
  const el = h(`div.${cls}`, { role, "aria-colindex": c + 2, data: { c } });
  into.append(el);
  return el;
}

function rowOf(g, r) {
  const style = { top: `${r * ROW}px` };
  const el = h("div", { role: "row", "aria-rowindex": r + 2, style }, h("div.grid-label", { role: "rowheader" }));
  g.body.append(el);
  return writeRow(g, el, r);
}

/** Select a cell; `tell`: whether to call `onselect`. */
function pick(g, r, c, tell = false) {
  g.at = [within(r, g.data.rows.length), within(c, g.data.columns.length)];
  place(g);
  reveal(g);
  if (tell) g.options.onselect?.(...g.at);
}

/** Move the overlay to the selected cell. */
function place({ data, ring, cross, at, columnWidth, margin, heads, el, id }) {
  if (!data.rows.length || !data.columns.length) return;
  ring.hidden = cross.hidden = false;
  const x = LABEL + at[1] * columnWidth;
  const width = `${columnWidth - margin}px`;
  Object.assign(ring.style, { width, height: `${ROW - 2}px`, transform: `translate(${x}px, ${at[0] * ROW}px)` });
  Object.assign(cross.style, { width, transform: `translateX(${x}px)` });
  for (const cell of heads.values()) {
    cell.classList.toggle("on", Number(cell.dataset.c) === at[1]);
    cell.classList.toggle("end", at[1] > data.columns.length / 2); // its full token would overflow at the right
  }
  el.setAttribute("aria-activedescendant", `${id}-${at[0]}-${at[1]}`);
}

function reveal(g) {
  const { at, columnWidth, seen, el } = g;
  const x = LABEL + at[1] * columnWidth;
  const top = at[0] * ROW;
  const [left, above, wide, high] = seen;
  const to = [
    Math.max(x + columnWidth - wide, Math.min(x - LABEL, left)),
    Math.max(top + ROW + HEAD - high, Math.min(top, above)),
  ];
  if (wide && (to[0] !== left || to[1] !== above)) {
    seen.splice(0, 2, ...to);
    requestAnimationFrame(() => el.scrollTo(...to)); // in this frame, the page would be laid out twice
  }
  paint(g);
}
