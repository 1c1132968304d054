/**
 * Squares for every head of every layer, shaded by a score; and the pattern of one head as a triangle.
 *
 * matrix(el, {scores: [[number or null]], chosen: [layer, head], definition, top, names, mixers}, {onpick(layer,
 * head)}): only the `top` largest are shown; `names(layer, head)` is a head's label; `mixers` name what layers without
 *   any score have instead of attention
 * pattern(el, {tokens, weights, hideFirst, marked(dst, src), format(x)}): `marked` cells are outlined; `format`
 * writes a weight
 */
import { fill, h, moveFocus, s } from "./nodes.js";
import { visible } from "./tokens.js";

export function matrix(el, data, options = {}) {
  const flat = data.scores.flat().filter((x) => x !== null);
  const most = Math.max(...flat.map(Math.abs), 1e-9);
  const signed = flat.some((x) => x < -0.1 * most);
  const size = (x) => (signed ? Math.abs(x) : x);
  const order = flat.map(size).sort((a, b) => b - a);
  const [layer0, head0] = data.chosen || [0, 0];
  el.className = "matrix";
  el.setAttribute("role", "grid");
  el.setAttribute("aria-label", `Heads by ${data.definition}`);
  const lines = data.scores.map((row, layer) =>
    h("div.line", { role: "row" }, [
      h("span", { role: "rowheader" }, `L${layer}`),
      row.every((score) => score === null) && h("em", { role: "gridcell" }, data.mixers?.[layer] || "none"),
      row.map((score, head) => {
        if (score === null) return row.some((x) => x !== null) && h("span", { role: "gridcell" }, "–");
        const here = layer0 === layer && head0 === head;
        const rank = order.indexOf(size(score));
        const shown = rank < (data.top ?? flat.length);
        const name = data.names?.(layer, head);
        const title =
          `L${layer}H${head}: ${score.toPrecision(3)}, ` + `${rank + 1} of ${flat.length}${name ? `, ${name}` : ""}`;
        const q = Math.round((16 * Math.max(0, size(score))) / most);
        return h(
          "button",
          {
            class:
              (!shown ? "q0" : score < 0 && signed ? `w${Math.ceil((6 * q) / 16)}` : `q${q}`) +
              (data.chosen && here ? " on" : ""),
            type: "button",
            role: "gridcell",
            tabindex: here ? 0 : -1,
            data: { at: `${layer}.${head}` },
            title,
            "aria-label": title,
            onclick: () => options.onpick?.(layer, head),
          },
          [
            !shown
              ? ""
              : score
                  .toFixed(2)
                  .replace(/^-(?=0\.00$)/, "")
                  .replace("0.", ".")
                  .replace("-", "−"),
          ],
        );
      }),
    ]),
  );
  const widest = Math.max(...data.scores.map((row) => row.length));
  const columns = Array.from({ length: widest }, (_, head) => h("span", { role: "columnheader" }, `H${head}`));
  fill(el, h("div.line", { role: "row" }, h("span"), columns), lines.reverse());
  el.onkeydown = moveFocus;
}

/**
 * The patterns of all heads as small pictures, a row for each layer.
 *
 * thumbnails(el, {patterns: [[base64]], side, chosen: [layer, head], name(layer, head), mixers}, {onpick(layer, head)})
 */
export function thumbnails(el, data, options = {}) {
  if (!el.isConnected) return; // another screen is open now, and elements outside the page have no computed colours
  const { patterns, side, chosen } = data;
  el.className = Math.max(...patterns.map((heads) => heads.length)) > 12 ? "thumbs small" : "thumbs";
  const probe = h("span.map-0", { hidden: true });
  fill(el, probe);
  const [r, g, b] = getComputedStyle(probe).backgroundColor.match(/\d+/g).map(Number);
  fill(el, [
    patterns
      .map((heads, layer) =>
        h("div.line", [
          h("span", `L${layer}`),
          !heads.length && h("em", data.mixers?.[layer] || "none"),
          heads.map((packed, head) => {
            const canvas = h("canvas", { width: side, height: side, "aria-hidden": "true" });
            const pen = canvas.getContext("2d");
            const image = pen.createImageData(side, side);
            const bytes = atob(packed);
            for (let i = 0; i < bytes.length; i++)
              image.data.set([r, g, b, Math.round(255 * Math.sqrt(bytes.charCodeAt(i) / 255))], 4 * i);
            pen.putImageData(image, 0, 0);
            const name = data.name(layer, head);
            const here = chosen[0] === layer && chosen[1] === head;
            return h(
              "button",
              {
                type: "button",
                class: here ? "on" : "",
                "aria-pressed": String(here),
                "aria-label": `Pattern of L${layer}H${head}${name ? `, ${name}` : ""}`,
                title: `L${layer}H${head}${name ? `, ${name}` : ""}`,
                onclick: () => options.onpick?.(layer, head),
              },
              [canvas, h("small", name || `H${head}`)],
            );
          }),
        ]),
      )
      .reverse(),
  ]);
}

export function pattern(el, data) {
  const n = data.tokens.length;
  const from = data.hideFirst && n > 1 ? 1 : 0;
  const edge = 86;
  const slant = 34; // the room that the slanted name of the last token needs
  const room = Math.min(440, innerWidth - edge - slant - 64); // a picture that shrinks has names too small to read
  const size = Math.max(4, Math.min(52, room / (n - from)));
  const width = edge + (n - from) * size + slant;
  const svg = s("svg", {
    viewBox: `0 0 ${width} ${edge + (n - from) * size + 4}`,
    class: "heatmap",
    role: "img",
    "aria-label": `Attention of ${n} destinations (rows) over their sources (columns)`,
    style: { width: `${width}px` },
  });
  const names = data.tokens.map((t) => visible(t).slice(0, 12));
  data.weights.forEach((row, dst) => {
    if (dst < from) return; // it attends only to the hidden column
    const y = edge + (dst - from) * size;
    if (size >= 9) svg.append(s("text", { x: edge - 5, y: y + size * 0.7, "text-anchor": "end" }, names[dst]));
    row.forEach((w, src) => {
      if (src < from) return;
      svg.append(
        s(
          "rect",
          {
            x: edge + (src - from) * size,
            y,
            width: size - 1,
            height: size - 1,
            rx: 1.5,
            class: `q${Math.round(16 * Math.sqrt(Math.max(0, Math.min(1, w))))}${data.marked?.(dst, src) ? " on" : ""}`,
          },
          [
            s("title", [
              `${visible(data.tokens[dst])} reads ${visible(data.tokens[src])}: ` +
                (data.format || ((x) => `${(100 * x).toFixed(1)} %`))(w),
            ]),
          ],
        ),
      );
    });
  });
  if (size >= 9)
    for (let src = from; src < n; src++) {
      const x = edge + (src - from) * size + size * 0.65;
      svg.append(s("text", { x, y: edge - 5, transform: `rotate(-60 ${x} ${edge - 5})` }, names[src]));
    }
  fill(el, svg);
}
