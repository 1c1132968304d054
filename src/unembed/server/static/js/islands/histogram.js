/**
 * A histogram with marked values.
 *
 * mount(el, {edges: [number], counts: [number], marks: [{value, name}], label}) -> {update, destroy}
 *   Heights are logarithmic: most coefficients are near zero, and the rare large ones matter most.
 */
import { fill, s } from "./nodes.js";

const W = 440;
const H = 96;
const shown = (x) => x.toPrecision(3).replace("-", "−");

export function mount(el, data) {
  const update = ({ edges, counts, marks, label }) => {
    const low = Math.min(edges[0], ...marks.map((m) => m.value));
    const high = Math.max(edges.at(-1), ...marks.map((m) => m.value));
    const x = (v) => 4 + ((v - low) / (high - low || 1)) * (W - 8);
    const most = Math.log1p(Math.max(...counts));
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, class: "histogram", role: "img", "aria-label": label });
    counts.forEach((n, i) => {
      const height = (64 * Math.log1p(n)) / most;
      if (n)
        svg.append(
          s(
            "rect",
            { x: x(edges[i]), y: 78 - height, width: Math.max(1, x(edges[i + 1]) - x(edges[i]) - 0.5), height },
            [s("title", `${n} from ${shown(edges[i])} to ${shown(edges[i + 1])}`)],
          ),
        );
    });
    const text = (at, y, content) =>
      svg.append(
        s(
          "text",
          { x: x(at), y, "text-anchor": x(at) > W * 0.8 ? "end" : x(at) < W * 0.2 ? "start" : "middle" },
          content,
        ),
      );
    text(low, 92, shown(low));
    text(high, 92, shown(high));
    if (x(0) > 40 && x(0) < W - 40) text(0, 92, "0");
    for (const { value, name } of marks) {
      svg.append(s("line", { x1: x(value), x2: x(value), y1: 12, y2: 80, class: "here" }));
      text(value, 9, name);
    }
    fill(el, svg);
  };
  update(data);
  return { update, destroy: () => fill(el) };
}

/** The same in the height of a line of text, without numbers. */
export function sparkline(el, counts) {
  const most = Math.log1p(Math.max(...counts));
  const width = 84 / counts.length;
  const svg = s("svg", { viewBox: "0 0 84 20", class: "sparkline", "aria-hidden": "true" });
  counts.forEach((n, i) => {
    const height = n ? Math.max(1, (18 * Math.log1p(n)) / most) : 0;
    if (n) svg.append(s("rect", { x: i * width, y: 20 - height, width: Math.max(0.8, width - 0.3), height }));
  });
  fill(el, svg);
}
