/**
 * The grid of layers and positions. Only visible cells exist as elements; an update rewrites only cells that differ; a
 * selection moves an overlay. Nothing here reads the layout during an update, because the browser would then lay out
 * the page twice for one frame.
 *
 * mount(el, data, options) -> {update, select, mark, cell, destroy}
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
import { token, visible } from "./tokens.js";

const LABEL = 92;
const HEAD = 44;
/** Narrower columns show only their colour. */
const READABLE = 40;
const NARROWEST = 3;
/** Columns shrink to this width before the grid scrolls. */
const SQUEEZED = 56;

export function mount(el, data, options = {}) {
  el.classList.add("grid");
  el.classList.toggle("ranges", !!options.onrange);
  el.tabIndex = 0;
  el.setAttribute("role", "grid");
  el.setAttribute("aria-label", options.label || "Layers and positions");
  const head = div("grid-head");
  const body = div("grid-body");
  const corner = div("grid-corner");
  const ring = div("grid-ring");
  const cross = div("grid-column");
  ring.hidden = cross.hidden = true;
  el.replaceChildren(head, body);
  body.append(cross, ring);
  body.setAttribute("role", "rowgroup");
  head.append(corner);
  head.setAttribute("role", "row");
  corner.setAttribute("role", "columnheader");
  head.setAttribute("aria-rowindex", "1");
  const id = `grid${Math.random().toString(36).slice(2, 8)}`;
  const rowHeight = 28;
  let columnWidth = 92;
  let margin = 2;
  let at = [0, 0];
  const painted = new Map();
  const heads = new Map();
  let frame = 0;
  let ranged = null;
  let anchor = null;
  let dragged = null;
  /** The pinned columns, each with its order among them. */
  let pinned = new Map();

  /** The box's scroll offset and size. */
  let seen;
  const look = () => (seen = [el.scrollLeft, el.scrollTop, el.clientWidth, el.clientHeight]);

  const observer = new ResizeObserver(() => (look(), update(data)));
  observer.observe(el);
  el.addEventListener("scroll", schedule, { passive: true });
  el.addEventListener("keydown", onkey);
  body.addEventListener("click", (event) => {
    const found = cellOf(event);
    if (found && event.shiftKey && options.onpin) options.onpin(...found);
    else if (found) pick(found[0], found[1], true);
  });
  const rowAt = (event) =>
    clamp(Math.floor((event.clientY - body.getBoundingClientRect().top) / rowHeight), data.rows.length);
  body.addEventListener("pointerdown", (event) => {
    if (!options.onrange || event.button || !(/** @type {HTMLElement} */ (event.target).closest(".grid-label"))) return;
    body.setPointerCapture(event.pointerId);
    dragged = [rowAt(event), false];
    event.preventDefault();
  });
  body.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    const r = rowAt(event);
    if (r !== dragged[0]) dragged[1] = true;
    if (dragged[1]) tellRange(dragged[0], r);
  });
  body.addEventListener("pointerup", (_event) => {
    if (dragged && !dragged[1]) {
      pick(dragged[0], at[1], true);
      options.onrange(null);
    }
    dragged = null;
    el.focus({ preventScroll: true });
  });
  body.addEventListener("pointercancel", () => (dragged = null));
  body.addEventListener("dblclick", (event) => {
    const found = cellOf(event);
    if (found && options.onopen) options.onopen(found[0], found[1]);
  });
  body.addEventListener("pointerover", (event) => {
    const found = event.pointerType === "touch" ? null : cellOf(event);
    if (found && options.onhover)
      options.onhover(found[0], found[1], /** @type {HTMLElement} */ (event.target).closest(".cell"));
  });
  body.addEventListener("pointerleave", () => options.onhover?.(-1, -1, null));
  head.addEventListener("click", (event) => {
    /** @type {HTMLElement} */
    const cell = /** @type {HTMLElement} */ (event.target).closest("[data-c]");
    if (cell && event.shiftKey && options.onpincolumn) options.onpincolumn(Number(cell.dataset.c));
    else if (cell) pick(at[0], Number(cell.dataset.c), true);
  });

  function update(next) {
    const other = data.rows.length !== next.rows.length || !painted.size;
    data = next;
    const widest = Math.max(4, ...data.columns.map((c) => visible(c.text).length));
    columnWidth = Math.min(116, Math.max(68, widest * 8 + 18));
    const room = seen[2] - LABEL - 2;
    if (room > 0 && (data.fit || data.columns.length * Math.min(columnWidth, SQUEEZED) < room))
      columnWidth = Math.max(NARROWEST, Math.min(132, whole(room / data.columns.length)));
    margin = columnWidth < 8 ? 0 : 2;
    el.classList.toggle("dense", columnWidth < READABLE);
    el.classList.toggle("thin", !margin);
    pinned = new Map((data.pinned || []).map((c, k) => [c, k]));
    el.setAttribute("aria-rowcount", String(data.rows.length + 1));
    el.setAttribute("aria-colcount", String(data.columns.length + 1));
    corner.textContent = data.corner || "";
    body.style.width = head.style.width = `${LABEL + data.columns.length * columnWidth}px`;
    body.style.height = `${data.rows.length * rowHeight}px`;
    if (other) look();
    drop(data.rows.length, data.columns.length);
    for (const [c, cell] of heads) writeHead(cell, c);
    for (const [r, row] of painted) {
      writeRow(row.el, r);
      for (const [c, cell] of row.cells) writeCell(cell, r, c);
    }
    const [r, c] = data.at || at;
    const stays = painted.size && r === at[0] && c === at[1] && c < data.columns.length && r < data.rows.length;
    if (!stays) return pick(r, c);
    place(); // the scroll offset does not change
    paint();
  }

  function schedule() {
    if (!frame) frame = requestAnimationFrame(() => ((frame = 0), look(), paint()));
  }

  /** Remove elements outside these rows and columns. */
  function drop(r1, c1, r0 = 0, c0 = 0) {
    const gone = (c) => (c < c0 || c >= c1) && !(pinned.has(c) && c < data.columns.length);
    for (const [r, row] of painted) {
      if (r < r0 || r >= r1) row.el.remove(), painted.delete(r);
      else for (const [c, cell] of row.cells) if (gone(c)) cell.remove(), row.cells.delete(c);
    }
    for (const [c, cell] of heads) if (gone(c)) cell.remove(), heads.delete(c);
  }

  /** The left edge of a column; a pinned one moves so that it stays in the box. */
  function leftOf(c) {
    const natural = LABEL + c * columnWidth;
    const k = pinned.get(c);
    if (k === undefined) return natural;
    const [left, , wide] = seen;
    const last = left + wide - (pinned.size - k) * columnWidth;
    return Math.max(left + LABEL + k * columnWidth, Math.min(natural, last));
  }

  function movePinned() {
    const move = (el, c) => {
      el.style.left = `${leftOf(c)}px`;
    };
    for (const c of pinned.keys()) {
      if (heads.has(c)) move(heads.get(c), c);
      for (const row of painted.values()) if (row.cells.has(c)) move(row.cells.get(c), c);
    }
  }

  function paint() {
    const [c0, c1] = window(seen[0], seen[2] || 1200, columnWidth, data.columns.length);
    const [r0, r1] = window(seen[1], seen[3] || 800, rowHeight, data.rows.length);
    drop(r1, c1, r0, c0);
    const columns = Array.from({ length: Math.max(0, c1 - c0) }, (_, i) => c0 + i);
    for (const c of pinned.keys()) if ((c < c0 || c >= c1) && c < data.columns.length) columns.push(c);
    for (const c of columns) if (!heads.has(c)) heads.set(c, writeHead(part(head, "grid-token", "columnheader", c), c));
    for (let r = r0; r < r1; r++) {
      let row = painted.get(r);
      if (!row) painted.set(r, (row = { el: rowOf(r), cells: new Map() }));
      for (const c of columns)
        if (!row.cells.has(c)) row.cells.set(c, writeCell(part(row.el, "cell", "gridcell", c, r), r, c));
    }
    if (pinned.size) movePinned();
    if (seen[2] > LABEL) options.onview?.(seen[0], seen[2] - LABEL, data.columns.length * columnWidth);
  }

  /** An element at column c. */
  function part(into, cls, role, c, r) {
    const el = div(cls);
    el.setAttribute("role", role);
    el.setAttribute("aria-colindex", String(c + 2));
    el.dataset.c = String(c);
    if (r !== undefined) {
      el.dataset.r = String(r);
      el.id = `${id}-${r}-${c}`;
    }
    into.append(el);
    return el;
  }

  /** Set the content of an element: `made()` is called only if `content` has changed. */
  function hold(el, content, made) {
    if (el.content !== content) el.replaceChildren(...made());
    el.content = content;
    if (!el.dataset.c) return el;
    const stays = pinned.has(Number(el.dataset.c));
    if (el.wide !== columnWidth || el.stays !== stays) {
      el.style.left = `${leftOf(Number(el.dataset.c))}px`;
      el.style.width = `${columnWidth - margin}px`;
      el.style.zIndex = stays ? "1" : "";
      el.classList.toggle("pinned", stays && el.classList.contains("grid-token"));
      el.wide = columnWidth;
      el.stays = stays;
    }
    return el;
  }

  function writeHead(el, c) {
    const { text, next } = data.columns[c];
    const under = next === undefined ? String(c) : `${c} → ${visible(next)}`;
    return hold(el, `${text} ${under}`, () => [token(text), div("grid-next", under)]);
  }

  function rowOf(r) {
    const el = div("grid-row");
    el.setAttribute("role", "row");
    el.setAttribute("aria-rowindex", String(r + 2));
    el.style.top = `${r * rowHeight}px`;
    const label = div("grid-label");
    label.setAttribute("role", "rowheader");
    el.append(label);
    body.append(el);
    return writeRow(el, r);
  }

  function writeRow(el, r) {
    const { label, sub, cls } = data.rows[r];
    el.className = `grid-row ${cls || ""}${inRange(r) ? " ranged" : ""}`;
    hold(el.firstChild, `${label} ${sub}`, () => (sub ? [label, div("sub", sub)] : [label]));
    return el;
  }

  function writeCell(el, r, c) {
    const { text, q, cls, same, glyph, name } = data.rows[r].cells[c];
    const wanted = `cell q${q}${cls ? ` ${cls}` : ""}${same ? " same" : ""}`;
    if (el.className !== wanted) el.className = wanted;
    if (el.getAttribute("aria-label") !== name) el.setAttribute("aria-label", name);
    return hold(el, `${same ? "" : text} ${glyph}`, () => [
      same ? div("stem") : token(text),
      ...(glyph ? [div("glyph", glyph)] : []),
    ]);
  }

  function pick(r, c, tell) {
    at = [clamp(r, data.rows.length), clamp(c, data.columns.length)];
    place();
    reveal();
    if (tell && options.onselect) options.onselect(at[0], at[1]);
  }

  function place() {
    if (!data.rows.length || !data.columns.length) return;
    ring.hidden = cross.hidden = false;
    const x = LABEL + at[1] * columnWidth;
    ring.style.width = `${columnWidth - margin}px`;
    ring.style.height = `${rowHeight - 2}px`;
    ring.style.transform = `translate(${x}px, ${at[0] * rowHeight}px)`;
    cross.style.width = `${columnWidth - margin}px`;
    cross.style.transform = `translateX(${x}px)`;
    for (const cell of heads.values()) {
      cell.classList.toggle("on", Number(cell.dataset.c) === at[1]);
      cell.classList.toggle("end", at[1] > data.columns.length / 2); // its full token would overflow at the right
    }
    el.setAttribute("aria-activedescendant", `${id}-${at[0]}-${at[1]}`);
  }

  function reveal() {
    const x = LABEL + at[1] * columnWidth;
    const top = at[0] * rowHeight;
    const [left, above, wide, high] = seen;
    const to = [
      Math.max(x + columnWidth - wide, Math.min(x - LABEL, left)),
      Math.max(top + rowHeight + HEAD - high, Math.min(top, above)),
    ];
    if (wide && (to[0] !== left || to[1] !== above)) {
      seen.splice(0, 2, ...to);
      requestAnimationFrame(() => el.scrollTo(...to)); // in this frame, the page would be laid out twice
    }
    paint();
  }

  function tellRange(from, to) {
    options.onrange(Math.min(from, to), Math.max(from, to), to);
  }

  function mark(range) {
    ranged = range;
    for (const [r, row] of painted) row.el.classList.toggle("ranged", inRange(r));
  }

  const inRange = (r) => !!ranged && r >= ranged[0] && r <= ranged[1];

  function onkey(event) {
    const { key, ctrlKey } = event;
    const by = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (event.shiftKey && by && options.onrange) {
      anchor ??= at[0];
      pick(at[0] + by, at[1], false);
      tellRange(anchor, at[0]);
      event.preventDefault();
      return event.stopPropagation();
    }
    if (key !== "Shift") anchor = null;
    const last = [data.rows.length - 1, data.columns.length - 1];
    const moves = {
      ArrowUp: [at[0] - 1, at[1]],
      ArrowDown: [at[0] + 1, at[1]],
      ArrowLeft: [at[0], at[1] - 1],
      ArrowRight: [at[0], at[1] + 1],
      Home: [ctrlKey ? 0 : at[0], 0],
      End: [ctrlKey ? last[0] : at[0], last[1]],
      PageUp: [at[0] - 8, at[1]],
      PageDown: [at[0] + 8, at[1]],
    };
    if (moves[key] && !event.altKey && !event.metaKey) pick(moves[key][0], moves[key][1], true);
    else if (key === "Enter" && options.onopen) options.onopen(at[0], at[1]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  function cellOf(event) {
    /** @type {HTMLElement} */
    const cell = /** @type {HTMLElement} */ (event.target).closest(".cell");
    return cell ? [Number(cell.dataset.r), Number(cell.dataset.c)] : null;
  }

  look();
  update(data);
  return {
    update,
    select: (r, c) => pick(r, c, false),
    /** Mark the selected range of rows, [first, last] or null. */
    mark,
    /** Scroll so that the column at this fraction of the width is in the middle. */
    centre(share) {
      el.scrollTo({ left: share * data.columns.length * columnWidth - (seen[2] - LABEL) / 2 });
    },
    cell: (r, c) => painted.get(r)?.cells.get(c) || null,
    destroy() {
      observer.disconnect();
      cancelAnimationFrame(frame);
      el.replaceChildren();
    },
  };
}

/** Whole pixels, except for columns so narrow that rounding would leave much of the width empty. */
const whole = (width) => (width < 8 ? width : Math.floor(width));

function window(scroll, size, step, n) {
  const from = Math.max(0, Math.floor(scroll / step) - 3);
  return [from, Math.min(n, Math.ceil((scroll + size) / step) + 3)];
}

const clamp = (i, n) => Math.max(0, Math.min(n - 1, i));

function div(cls, text) {
  const el = document.createElement("div");
  el.className = cls;
  if (text) el.textContent = text;
  return el;
}
