/**
 * How ranks change over layers: layer on x, place on y (logarithmic, place 1 on top), one line for each token.
 *
 * mount(el, {series: [{name, ranks: [number]}], layers: [string], size, at}, {onpick(layer)}) -> {update, at, destroy}
 *   `at` (the option and the method): the layer under the cursor; `size`: the number of tokens of the vocabulary, the bottom of the scale.
 */
import { fill, s } from "./nodes.js";
import { visible } from "./tokens.js";

const H = 190;

export function mount(el, data, options = {}) {
  let move = () => {};
  const update = (next) => {
    const W = Math.max(300, Math.min(900, el.clientWidth || 560));
    const PAD = { left: 46, right: Math.min(120, 14 + 8 * Math.max(...next.series.map((one) => visible(one.name).length))), top: 14, bottom: 26 };
    const n = next.layers.length;
    const x = (i) => PAD.left + (n < 2 ? 0 : (i * (W - PAD.left - PAD.right)) / (n - 1));
    const deepest = Math.log10(Math.max(10, next.size));
    const y = (rank) => PAD.top + (Math.log10(rank + 1) / deepest) * (H - PAD.top - PAD.bottom);
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, class: "ranks", role: "img", "aria-label": described(next) });
    for (let place = 1; place <= next.size; place *= 10)
      svg.append(s("line", { x1: PAD.left, x2: W - PAD.right, y1: y(place - 1), y2: y(place - 1), class: "rule" }), text(PAD.left - 8, y(place - 1) + 4, place.toLocaleString("en"), "end"));
    const every = Math.ceil(n / 16);
    next.layers.forEach((label, i) => i % every || svg.append(text(x(i), H - 8, label, "middle")));
    const cursor = s("line", { y1: PAD.top - 6, y2: H - PAD.bottom + 4, class: "cursor" });
    move = (i) => ["x1", "x2"].forEach((end) => cursor.setAttribute(end, x(i)));
    if (next.at !== undefined && next.at !== null) {
      move(next.at);
      svg.append(cursor);
    }
    const ends = [];
    next.series.forEach((one, k) => {
      const points = one.ranks.map((r, i) => `${x(i).toFixed(1)},${y(r).toFixed(1)}`).join(" ");
      svg.append(s("polyline", { points, class: `line line${k}` }));
      one.ranks.forEach((r, i) => svg.append(s("circle", { cx: x(i), cy: y(r), r: 3, class: `dot line${k}` }, s("title", {}, `${visible(one.name)}: place ${(r + 1).toLocaleString("en")} after layer ${next.layers[i]}`))));
      ends.push([y(one.ranks[n - 1]), one.name, k]);
    });
    ends.sort((a, b) => a[0] - b[0]);
    let low = -20;
    for (const [at, name, k] of ends) {
      low = Math.max(at, low + 14);
      svg.append(text(x(n - 1) + 10, low + 4, visible(name), "start", `end line${k}`));
    }
    if (options.onpick)
      svg.addEventListener("click", (event) => {
        const box = svg.getBoundingClientRect();
        const at = ((event.clientX - box.left) / box.width) * W;
        const i = n < 2 ? 0 : Math.round(((at - PAD.left) / (W - PAD.left - PAD.right)) * (n - 1));
        options.onpick(Math.max(0, Math.min(n - 1, i)));
      });
    fill(el, svg);
  };
  update(data);
  return { update, at: (i) => move(i), destroy: () => fill(el) };
}

function described(data) {
  const lines = data.series.map((one) => `${visible(one.name)}: ${one.ranks.map((r) => r + 1).join(", ")}`);
  return `Place after each layer. ${lines.join(". ")}`;
}

const text = (x, y, content, anchor, cls = "") => s("text", { x, y, "text-anchor": anchor, class: cls }, content);
