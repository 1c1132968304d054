/**
 * Ranks or probabilities of tokens by layer, one line for each token; ranks are logarithmic with rank 1 on top.
 *
 * mount(el, {series: [{name, ranks, probabilities}], layers: [string], size, at, probability}, {onpick(layer)}) ->
 * {update, at, x, destroy}
 *   `at` (the option and the method): the layer under the cursor; `x(layer)`: its x in percent of the width;
 *   `size`: the number of tokens of the vocabulary, the bottom of the scale; `probability`: whether that is the scale.
 */
import { fill, s } from "./nodes.js";
import { visible } from "./tokens.js";

const H = 190;
const QUARTERS = [1, 0.75, 0.5, 0.25, 0];
const asPercent = (p) => `${Number((100 * p).toPrecision(2))} %`;

export function mount(el, data, options = {}) {
  let move = (_i) => {};
  let share = (_i) => "0%";
  const update = (next) => {
    const W = Math.max(300, Math.min(900, el.clientWidth || 560));
    const PAD = {
      left: 74,
      right: Math.min(120, 14 + 7.5 * Math.max(...next.series.map((one) => visible(one.name).length))),
      top: 14,
      bottom: 26,
    };
    const n = next.layers.length;
    const x = (i) => PAD.left + (n < 2 ? 0 : (i * (W - PAD.left - PAD.right)) / (n - 1));
    const deepest = Math.log10(Math.max(10, next.size));
    const y = (v) => PAD.top + (next.probability ? 1 - v : Math.log10(v) / deepest) * (H - PAD.top - PAD.bottom);
    const of = (one) => (next.probability ? one.probabilities : one.ranks);
    share = (i) => `${(100 * x(i)) / W}%`;
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, class: "ranks", role: "img", "aria-label": described(next) });
    svg.style.maxWidth = `${W}px`; // if the box has become wider, the text does not grow
    const rule = (v, label) =>
      svg.append(
        s("line", { x1: PAD.left, x2: W - PAD.right, y1: y(v), y2: y(v), class: "rule" }),
        text(PAD.left - 8, y(v) + 4, label, "end"),
      );
    if (next.probability) for (const p of QUARTERS) rule(p, asPercent(p));
    else for (let rank = 1; rank <= next.size; rank *= 10) rule(rank, rank.toLocaleString("en"));
    const every = Math.ceil(n / 16);
    for (let i = 0; i < n; i += every) svg.append(text(x(i), H - 8, next.layers[i], "middle"));
    const cursor = s("line", { y1: PAD.top - 6, y2: H - PAD.bottom + 4, class: "cursor" });
    move = (i) => {
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, String(x(i)));
    };
    if (next.at !== undefined && next.at !== null) {
      move(next.at);
      svg.append(cursor);
    }
    const ends = [];
    next.series.forEach((one, k) => {
      const points = of(one)
        .map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`)
        .join(" ");
      svg.append(s("polyline", { points, class: `line line${k}` }));
      of(one).forEach((v, i) => {
        svg.append(
          s("circle", { cx: x(i), cy: y(v), r: 3, class: `dot line${k}` }, [
            s("title", [
              `${visible(one.name)}: rank ${one.ranks[i].toLocaleString("en")}, ${asPercent(one.probabilities[i])}, ` +
                `after layer ${next.layers[i]}`,
            ]),
          ]),
        );
      });
      ends.push([y(of(one)[n - 1]), one.name, k]);
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
  return { update, at: (i) => move(i), x: (i) => share(i), destroy: () => fill(el) };
}

function described(data) {
  const lines = data.series.map(
    (one) => `${visible(one.name)}: ${(data.probability ? one.probabilities.map(asPercent) : one.ranks).join(", ")}`,
  );
  return `${data.probability ? "Probability" : "Rank"} after each layer. ${lines.join(". ")}`;
}

const text = (x, y, content, anchor, cls = "") => s("text", { x, y, "text-anchor": anchor, class: cls }, content);
