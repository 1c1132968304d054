/** Write the elements of the grid, each only if its content or its place has changed. */
import { h } from "./nodes.js";
import { token, visible } from "./tokens.js";

/** The width of the rows' labels, and the height of a row. */
export const LABEL = 92;
export const ROW = 28;

/** The left edge of a column; a pinned one moves so that it stays in the box. */
export function leftOf({ pinned, seen, columnWidth }, c) {
  const natural = LABEL + c * columnWidth;
  const k = pinned.get(c);
  if (k === undefined) return natural;
  const [left, , wide] = seen;
  const last = left + wide - (pinned.size - k) * columnWidth;
  return Math.max(left + LABEL + k * columnWidth, Math.min(natural, last));
}

/** Set the content of an element: `made()` is called only if `content` has changed. */
function hold(g, el, content, made) {
  if (el.content !== content) el.replaceChildren(...made());
  el.content = content;
  if (!el.dataset.c) return el;
  const c = Number(el.dataset.c);
  const stays = g.pinned.has(c);
  if (el.wide !== g.columnWidth || el.stays !== stays) {
    el.style.left = `${leftOf(g, c)}px`;
    el.style.width = `${g.columnWidth - g.margin}px`;
    el.style.zIndex = stays ? "1" : "";
    el.classList.toggle("pinned", stays && el.classList.contains("grid-token"));
    el.wide = g.columnWidth;
    el.stays = stays;
  }
  return el;
}

export function writeHead(g, el, c) {
  const { text, next, cls } = g.data.columns[c];
  const under = next === undefined ? String(c) : `${c} → ${visible(next)}`;
  el.classList.toggle("template", cls === "template");
  el.classList.toggle("message", !!cls && cls !== "template");
  return hold(g, el, `${text} ${under} ${cls}`, () => [token(text), h("div.grid-next", under)]);
}

export function writeRow(g, el, r) {
  const { label, sub, cls } = g.data.rows[r];
  el.className = `grid-row ${cls || ""}${g.inRange(r) ? " ranged" : ""}`;
  hold(g, el.firstChild, `${label} ${sub}`, () => (sub ? [label, h("div.sub", sub)] : [label]));
  return el;
}

export function writeCell(g, el, r, c) {
  const { text, q, cls, same, glyph, name } = g.data.rows[r].cells[c];
  const wanted = `cell q${q}${cls ? ` ${cls}` : ""}${same ? " same" : ""}`;
  if (el.className !== wanted) el.className = wanted;
  if (el.getAttribute("aria-label") !== name) el.setAttribute("aria-label", name);
  const made = () => [same ? h("div.stem") : token(text), ...(glyph ? [h("div.glyph", glyph)] : [])];
  return hold(g, el, `${same ? "" : text} ${glyph}`, made);
}
