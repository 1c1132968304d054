/**
 * An overview of all cells of a grid in the width of the box, without text, with a frame around the visible part.
 *
 * mount(el, {rows}, {onpick(share)}) -> {update, view}; `view(left, width, whole)`: the part in view, in any one unit.
 */
import { fill, s } from "./nodes.js";

const ROW = 5;

export function mount(el, data, options = {}) {
  let frame = s("rect");
  let shown = 0;
  const update = ({ rows }) => {
    shown = rows[0]?.cells.length ?? 0;
    frame = s("rect.view", { y: 0, height: rows.length * ROW });
    const props = {
      viewBox: `0 0 ${shown} ${rows.length * ROW}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `All ${shown} positions; click to move there`,
      onclick(event) {
        const box = event.currentTarget.getBoundingClientRect();
        options.onpick?.((event.clientX - box.left) / box.width);
      },
    };
    fill(el, s("svg.minimap", props, rows.map(strip), frame));
  };
  const view = (left, width, whole) => {
    frame.setAttribute("x", String((left / whole) * shown));
    frame.setAttribute("width", String(Math.min(1, width / whole) * shown));
  };
  update(data);
  return { update, view };
}

/** A row of cells; neighbours of one shade are one rectangle. */
function strip({ cells }, r) {
  const found = [];
  for (let c = 0; c < cells.length; ) {
    let end = c + 1;
    while (end < cells.length && cells[end].q === cells[c].q) end++;
    found.push(s(`rect.q${cells[c].q}`, { x: c, y: r * ROW, width: end - c, height: ROW }));
    c = end;
  }
  return found;
}
