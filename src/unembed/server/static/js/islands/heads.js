/**
 * Squares for every head of every layer, shaded by a score; and the pattern of one head as a triangle.
 *
 * matrix(el, {scores: [[number or null]], chosen: [layer, head], definition, top, names, mixers}, {onpick(layer,
 * head)}): only the `top` largest are shown; `names(layer, head)` is a head's label; `mixers` name what layers without
 *   any score have instead of attention
 * pattern(el, {tokens, weights, hideFirst, marked(dst, src), format(x)}): `marked` cells are outlined; `format`
 * writes a weight
 */
import { button, fill, h, s, svgText } from "./nodes.js";
import { clamp, fixed, num, percent } from "./numbers.js";
import { columnHeader, square, squares } from "./squares.js";
import { visible } from "./tokens.js";

const short = (x) => fixed(x, 2).replace("0.", ".");

export function matrix(el, data, options = {}) {
  const { scores, chosen, mixers, names } = data;
  const flat = scores.flat().filter((x) => x !== null);
  const most = Math.max(...flat.map(Math.abs), 1e-9);
  const signed = flat.some((x) => x < -0.1 * most);
  const size = (x) => (signed ? Math.abs(x) : x);
  const order = flat.map(size).sort((a, b) => b - a);
  const [layer0, head0] = chosen || [0, 0];
  const shade = (score) => {
    const q = Math.round((16 * Math.max(0, size(score))) / most);
    return q > 0 && score < 0 && signed ? `w${Math.ceil((6 * q) / 16)}` : `q${q}`;
  };
  const cell = (score, layer, head) => {
    const here = layer0 === layer && head0 === head;
    const rank = order.indexOf(size(score));
    const isShown = rank < (data.top ?? flat.length);
    const name = names?.(layer, head);
    const title = `L${layer}H${head}: ${num(score)}, ${rank + 1} of ${flat.length}${name ? `, ${name}` : ""}`;
    const cls = (isShown ? shade(score) : "q0") + (chosen && here ? " on" : "");
    return square(`${layer}.${head}`, title, cls, here, () => options.onpick?.(layer, head), isShown && short(score));
  };
  const rows = scores.map((row, layer) => {
    const any = row.some((x) => x !== null);
    const cells = row.map((score, head) =>
      score === null ? any && h("span", { role: "gridcell" }, "–") : cell(score, layer, head),
    );
    const instead = !any && h("em", { role: "gridcell" }, mixers?.[layer] || "none");
    return [`L${layer}`, [instead, cells]];
  });
  const widest = Math.max(...scores.map((row) => row.length));
  const head = [h("span"), Array.from({ length: widest }, (_, i) => columnHeader(`H${i}`))];
  squares(el, { cls: "matrix", label: `Heads by ${data.definition}`, head, rows });
}

/**
 * The patterns of all heads as small pictures, a row for each layer.
 *
 * thumbnails(el, {patterns: [[base64]], side, chosen: [layer, head], name(layer, head), mixers}, {onpick(layer, head)})
 */
export function thumbnails(el, data, options = {}) {
  if (!el.isConnected) return; // another screen is open now, and elements outside the page have no computed colours
  const { patterns, side, chosen } = data;
  el.className = Math.max(...patterns.map((heads) => heads.length)) > 8 ? "thumbs small" : "thumbs";
  const probe = h("span.map-0", { hidden: true });
  fill(el, probe);
  const colour = getComputedStyle(probe).backgroundColor.split(/\D+/).slice(1, 4).map(Number);
  const one = (packed, layer, head) => {
    const name = data.name(layer, head);
    const here = chosen[0] === layer && chosen[1] === head;
    const title = `L${layer}H${head}${name ? `, ${name}` : ""}`;
    const content = [picture(packed, side, colour), h("small", name || `H${head}`)];
    return button(content, () => options.onpick?.(layer, head), here ? "on" : "", {
      "aria-pressed": String(here),
      "aria-label": `Pattern of ${title}`,
      title,
    });
  };
  const lines = patterns.map((heads, layer) =>
    h("div.line", [
      h("span", `L${layer}`),
      !heads.length && h("em", data.mixers?.[layer] || "none"),
      heads.map((packed, head) => one(packed, layer, head)),
    ]),
  );
  fill(el, lines.reverse());
}

function picture(packed, side, colour) {
  const canvas = h("canvas", { width: side, height: side, "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(side, side);
  const bytes = atob(packed);
  for (let i = 0; i < bytes.length; i++)
    image.data.set([...colour, Math.round(255 * Math.sqrt(bytes.charCodeAt(i) / 255))], 4 * i);
  pen.putImageData(image, 0, 0);
  return canvas;
}

const EDGE = 86;
const SLANT = 34; // the room that the slanted name of the last token needs

export function pattern(el, data) {
  const { tokens, weights, hideFirst } = data;
  const n = tokens.length;
  const from = hideFirst && n > 1 ? 1 : 0;
  const room = Math.min(440, innerWidth - EDGE - SLANT - 64); // a picture that shrinks has names too small to read
  const size = Math.max(4, Math.min(52, room / (n - from)));
  const width = EDGE + (n - from) * size + SLANT;
  const at = (i) => EDGE + (i - from) * size;
  const words = tokens.map((t) => visible(t));
  const names = size >= 9 ? words.map((word) => word.slice(0, 12)) : null;
  const format = data.format || percent;
  const cell = (w, src, dst) => {
    const cls = `q${Math.round(16 * Math.sqrt(clamp(w, 0, 1)))}${data.marked?.(dst, src) ? " on" : ""}`;
    const place = { x: at(src), y: at(dst), width: size - 1, height: size - 1, rx: 1.5, class: cls };
    return s("rect", place, s("title", `${words[dst]} reads ${words[src]}: ${format(w)}`));
  };
  const row = (all, dst) => [
    names && svgText(EDGE - 5, at(dst) + size * 0.7, names[dst], "end"),
    all.map((w, src) => src >= from && cell(w, src, dst)),
  ];
  const slanted = (name, src) => {
    const x = at(src) + size * 0.65;
    return src >= from && s("text", { x, y: EDGE - 5, transform: `rotate(-60 ${x} ${EDGE - 5})` }, name);
  };
  const props = {
    viewBox: `0 0 ${width} ${EDGE + (n - from) * size + 4}`,
    role: "img",
    "aria-label": `Attention of ${n} destinations (rows) over their sources (columns)`,
    style: { width: `${width}px` },
  };
  // a hidden first column is all that the first row attends to
  const rows = weights.map((all, dst) => dst >= from && row(all, dst));
  fill(el, s("svg.heatmap", props, rows, names?.map(slanted)));
}
