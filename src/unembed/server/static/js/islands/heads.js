/**
 * Squares for every head of every layer, shaded by a score; and the pattern of one head as a triangle.
 *
 * matrix(el, {scores: [[number]], chosen: [layer, head], said}, {onpick(layer, head)})
 * pattern(el, {tokens, weights, hideFirst, at})
 */
import { visible } from "./tokens.js";

export function matrix(el, data, options = {}) {
  const flat = data.scores.flat();
  const most = Math.max(...flat.map(Math.abs), 1e-9);
  const order = [...flat].sort((a, b) => b - a);
  el.className = "matrix";
  el.setAttribute("role", "grid");
  el.setAttribute("aria-label", `Heads by ${data.said}`);
  const lines = data.scores.map((row, layer) => {
    const line = node("div", "line");
    line.setAttribute("role", "row");
    const label = node("span", "");
    label.setAttribute("role", "rowheader");
    label.textContent = `L${layer}`;
    line.append(label);
    row.forEach((score, head) => {
      const on = data.chosen && data.chosen[0] === layer && data.chosen[1] === head;
      const cell = node("button", `q${score > 0 ? Math.round((16 * score) / most) : 0}${on ? " on" : ""}`);
      cell.type = "button";
      cell.setAttribute("role", "gridcell");
      cell.tabIndex = on || (!data.chosen && layer === 0 && head === 0) ? 0 : -1;
      cell.dataset.at = `${layer}.${head}`;
      cell.textContent = Math.abs(score) < 0.005 ? "·" : score.toFixed(2).replace("0.", ".").replace("-", "−");
      const rank = order.indexOf(score) + 1;
      cell.title = `L${layer}H${head}: ${score.toPrecision(3)}, ${rank} of ${flat.length}`;
      cell.setAttribute("aria-label", cell.title);
      cell.addEventListener("click", () => options.onpick?.(layer, head));
      line.append(cell);
    });
    return line;
  });
  el.replaceChildren(...lines.reverse());
  el.onkeydown = (event) => {
    const now = event.target.dataset.at?.split(".").map(Number);
    const by = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!now || !by) return;
    const next = el.querySelector(`[data-at="${now[0] + by[0]}.${now[1] + by[1]}"]`);
    if (next) {
      next.focus();
      event.preventDefault();
    }
  };
}

const NS = "http://www.w3.org/2000/svg";

export function pattern(el, data) {
  const n = data.tokens.length;
  const from = data.hideFirst && n > 1 ? 1 : 0;
  const size = Math.max(4, Math.min(30, 420 / (n - from)));
  const left = 86;
  const top = 86;
  const svg = svgNode("svg", { viewBox: `0 0 ${left + (n - from) * size + 4} ${top + n * size + 4}`, class: "heatmap", role: "img", "aria-label": `Attention of ${n} destinations (rows) over their sources (columns)` });
  const texts = size >= 9;
  data.weights.forEach((row, dst) => {
    if (texts) svg.append(svgNode("text", { x: left - 5, y: top + dst * size + size * 0.7, "text-anchor": "end" }, visible(data.tokens[dst]).slice(0, 12)));
    row.forEach((w, src) => {
      if (src < from) return;
      const rect = svgNode("rect", { x: left + (src - from) * size, y: top + dst * size, width: size - 1, height: size - 1, rx: 1.5, class: `fill${Math.round(16 * Math.sqrt(Math.max(0, Math.min(1, w))))}` });
      rect.append(svgNode("title", {}, `${visible(data.tokens[dst])} reads ${visible(data.tokens[src])}: ${(100 * w).toFixed(1)} %`));
      svg.append(rect);
    });
  });
  if (texts)
    for (let src = from; src < n; src++) {
      const x = left + (src - from) * size + size * 0.65;
      svg.append(svgNode("text", { x, y: top - 5, transform: `rotate(-60 ${x} ${top - 5})` }, visible(data.tokens[src]).slice(0, 12)));
    }
  svg.style.width = `${left + (n - from) * size + 4}px`;
  el.replaceChildren(svg);
}

function node(tag, cls) {
  const el = document.createElement(tag);
  if (cls) el.className = cls;
  return el;
}

function svgNode(tag, props, content) {
  const el = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(props)) el.setAttribute(name, String(value));
  if (content !== undefined) el.textContent = content;
  return el;
}
