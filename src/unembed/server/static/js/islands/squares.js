/** A matrix of squares to click, with a heading for each column and a name for each row. */
import { button, fill, h } from "./nodes.js";

/** Draw the matrix; `head`: cells of its first row; `rows`: [name, cells] each, from the bottom up. */
export function squares(el, { cls, label, head, rows }) {
  const line = (...cells) => h("div.line", { role: "row" }, cells);
  el.className = cls;
  el.setAttribute("role", "grid");
  el.setAttribute("aria-label", label);
  fill(el, line(head), rows.map(([name, cells]) => line(h("span", { role: "rowheader" }, name), cells)).reverse());
  el.onkeydown = moveFocus;
}

export const columnHeader = (text, cls = "") => h("span", { role: "columnheader", class: cls }, text);

/** A cell of a matrix as a button; `at`: its `row.column`; `takesFocus`: whether the tab key reaches it. */
export const square = (at, title, cls, takesFocus, onclick, text) =>
  button(text, onclick, cls, {
    role: "gridcell",
    tabindex: takesFocus ? 0 : -1,
    data: { at },
    title,
    "aria-label": title,
  });

/** Arrow keys move the focus among cells named `row.column` in `data-at`, rows counted from below. */
function moveFocus(event) {
  const now = event.target.dataset.at?.split(".").map(Number);
  const by = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  const next = now && by && event.currentTarget.querySelector(`[data-at="${now[0] + by[0]}.${now[1] + by[1]}"]`);
  if (!next) return;
  next.focus();
  event.preventDefault();
}
