/**
 * An overview of all cells of a grid in the width of the box, without text, with a frame around the visible part.
 *
 * mount(el, {rows}, {onpick(share)}) -> {update, view}; `view(left, width, whole)`: the part in view, in any one unit.
 */
import { fill, s } from "./nodes.js";

const ROW = 5;

export function mount(el, data, options = {}) {
  let frame = s("rect");
  const update = ({ rows }) => {
    const n = rows[0]?.cells.length ?? 0;
    const svg = s("svg", {
      viewBox: `0 0 ${n} ${rows.length * ROW}`,
      preserveAspectRatio: "none",
      class: "minimap",
      role: "img",
      "aria-label": `All ${n} positions; click to move there`,
    });
    rows.forEach((row, r) => {
      for (let c = 0; c < n; ) {
        let end = c + 1;
        while (end < n && row.cells[end].q === row.cells[c].q) end++; // neighbours of one shade are one rectangle
        svg.append(s("rect", { x: c, y: r * ROW, width: end - c, height: ROW, class: `q${row.cells[c].q}` }));
        c = end;
      }
    });
    frame = s("rect", { y: 0, height: rows.length * ROW, class: "view" });
    svg.append(frame);
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      options.onpick?.((event.clientX - box.left) / box.width);
    });
    fill(el, svg);
    shown = n;
  };
  let shown = 0;
  const view = (left, width, whole) => {
    frame.setAttribute("x", String((left / whole) * shown));
    frame.setAttribute("width", String(Math.min(1, width / whole) * shown));
  };
  update(data);
  return { update, view };
}
