/**
 * A histogram with marked values.
 *
 * mount(el, {edges: [number], counts: [number], marks: [{value, name}], label})
 *   Heights are logarithmic: most coefficients are near zero, and the rare large ones matter most.
 */
import { fill, s, svgText } from "./nodes.js";
import { num } from "./numbers.js";

const W = 440;
const H = 96;

export function mount(el, { edges, counts, marks, label }) {
  const low = Math.min(edges[0], ...marks.map((m) => m.value));
  const high = Math.max(edges.at(-1), ...marks.map((m) => m.value));
  const x = (v) => 4 + ((v - low) / (high - low || 1)) * (W - 8);
  const most = Math.log1p(Math.max(...counts));
  const bar = (n, i) => {
    const height = (64 * Math.log1p(n)) / most;
    const width = Math.max(1, x(edges[i + 1]) - x(edges[i]) - 0.5);
    const title = () => s("title", `${n} from ${num(edges[i])} to ${num(edges[i + 1])}`);
    return n > 0 && s("rect", { x: x(edges[i]), y: 78 - height, width, height }, title());
  };
  const text = (at, y, content) => {
    const anchor = x(at) > W * 0.8 ? "end" : x(at) < W * 0.2 ? "start" : "middle";
    return svgText(x(at), y, content, anchor);
  };
  const mark = ({ value, name }) => [
    s("line.here", { x1: x(value), x2: x(value), y1: 12, y2: 80 }),
    text(value, 9, name),
  ];
  const zero = x(0) > 40 && x(0) < W - 40 && text(0, 92, "0");
  const props = { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label };
  const ends = [text(low, 92, num(low)), text(high, 92, num(high))];
  fill(el, s("svg.histogram", props, counts.map(bar), ends, zero, marks.map(mark)));
}
