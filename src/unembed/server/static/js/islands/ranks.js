/**
 * Ranks or probabilities of tokens by layer, one line for each token; ranks are logarithmic with rank 1 on top.
 *
 * mount(el, {series: [{name, ranks, probabilities}], layers: [string], size, at, probability}, {onpick(layer)}) ->
 * {at, x}
 *   `at` (the option and the method): the layer under the cursor; `x(layer)`: its x in percent of the width;
 *   `size`: the number of tokens of the vocabulary, the bottom of the scale; `probability`: whether that is the scale.
 */
import { fill, s, svgText } from "./nodes.js";
import { within } from "./numbers.js";
import { visible } from "./tokens.js";

const H = 190;
const QUARTERS = [1, 0.75, 0.5, 0.25, 0];
const asPercent = (p) => `${Number((100 * p).toPrecision(2))} %`;

export function mount(el, data, options = {}) {
  const scale = scaleOf(el, data);
  const { W, top, bottom, x, at } = scale;
  const cursor = s("line.cursor", { y1: top - 6, y2: bottom + 4 });
  const move = (i) => {
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, String(x(i)));
  };
  const hasCursor = (data.at ?? null) !== null;
  if (hasCursor) move(data.at);
  const props = {
    viewBox: `0 0 ${W} ${H}`,
    role: "img",
    "aria-label": described(data),
    style: { "max-width": `${W}px` }, // if the box becomes wider, the text does not grow
    onclick(event) {
      const box = event.currentTarget.getBoundingClientRect();
      options.onpick?.(at(((event.clientX - box.left) / box.width) * W));
    },
  };
  fill(el, s("svg.ranks", props, axes(data, scale), hasCursor && cursor, curves(data, scale), ends(data, scale)));
  return { at: move, x: (i) => `${(100 * x(i)) / W}%` };
}

/** What a series shows: its probabilities or its ranks. */
const valuesOf = (one, probability) => (probability ? one.probabilities : one.ranks);

/** The places of the chart: `x(layer)`, `y(value)`, and `at(x)`, the layer there. */
function scaleOf(el, { series, layers, size, probability }) {
  const W = Math.max(300, Math.min(900, el.clientWidth || 560));
  const [left, top, bottom] = [74, 14, H - 26];
  const right = W - Math.min(120, 14 + 7.5 * Math.max(...series.map((one) => visible(one.name).length)));
  const n = layers.length;
  const deepest = Math.log10(Math.max(10, size));
  const x = (i) => left + (n < 2 ? 0 : (i * (right - left)) / (n - 1));
  const y = (v) => top + (probability ? 1 - v : Math.log10(v) / deepest) * (bottom - top);
  const at = (px) => within(Math.round(((px - left) / (right - left)) * (n - 1)), n);
  return { W, left, right, top, bottom, n, x, y, at };
}

function axes({ layers, size, probability }, { left, right, n, x, y }) {
  const rule = (v, label) => [
    s("line.rule", { x1: left, x2: right, y1: y(v), y2: y(v) }),
    svgText(left - 8, y(v) + 4, label, "end"),
  ];
  const found = [];
  if (probability) for (const p of QUARTERS) found.push(rule(p, asPercent(p)));
  else for (let rank = 1; rank <= size; rank *= 10) found.push(rule(rank, rank.toLocaleString("en")));
  const every = Math.ceil(n / 16);
  for (let i = 0; i < n; i += every) found.push(svgText(x(i), H - 8, layers[i], "middle"));
  return found;
}

function curves({ series, layers, probability }, { x, y }) {
  const dot = (one, k) => (v, i) => {
    const says = `rank ${one.ranks[i].toLocaleString("en")}, ${asPercent(one.probabilities[i])}`;
    const title = s("title", `${visible(one.name)}: ${says}, after layer ${layers[i]}`);
    return s(`circle.dot.line${k}`, { cx: x(i), cy: y(v), r: 3 }, title);
  };
  return series.map((one, k) => {
    const values = valuesOf(one, probability);
    const points = values.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
    return [s(`polyline.line.line${k}`, { points }), values.map(dot(one, k))];
  });
}

/** The names at the ends of the lines, none over another. */
function ends({ series, probability }, { n, x, y }) {
  let low = -20;
  const all = series.map((one, k) => ({ at: y(valuesOf(one, probability)[n - 1]), name: one.name, k }));
  const fromTop = all.sort((a, b) => a.at - b.at);
  return fromTop.map(({ at, name, k }) => {
    low = Math.max(at, low + 14);
    return svgText(x(n - 1) + 10, low + 4, visible(name), "start", `end line${k}`);
  });
}

function described(data) {
  const { probability } = data;
  const values = (one) => (probability ? one.probabilities.map(asPercent) : one.ranks).join(", ");
  const lines = data.series.map((one) => `${visible(one.name)}: ${values(one)}`);
  return `${probability ? "Probability" : "Rank"} after each layer. ${lines.join(". ")}`;
}
