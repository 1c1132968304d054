/**
 * A text with arcs from one token to earlier ones. The width is the size of the contribution; blue is positive, orange
 * negative.
 *
 * mount(el, {tokens: [text], from, values: [number], label, format(x)}, {onpick(position)})
 */
import { fill, h, s } from "./nodes.js";
import { visible } from "./tokens.js";

const LETTER = 7.6;
const TALL = 92;

export function mount(el, data, options = {}) {
  const { tokens, from, values, label } = data;
  let at = 6;
  const places = tokens.map((text) => {
    const name = visible(text);
    const wide = Math.max(14, Math.min(name.length, 14) * LETTER);
    const place = { name: name.slice(0, 14), x: at + wide / 2 };
    at += wide + 8;
    return place;
  });
  const most = Math.max(...values.map(Math.abs), 1e-9);
  const svg = s("svg", {
    viewBox: `0 0 ${at} ${TALL + 24}`,
    class: "arcs",
    role: "img",
    "aria-label": label,
    style: { width: `${at}px` },
  });
  values.forEach((value, i) => {
    const share = Math.abs(value) / most;
    if (share < 0.02) return;
    const [a, b] = [places[i].x, places[from].x];
    const high = i === from ? 26 : Math.max(14, Math.min(TALL - 8, 12 + Math.abs(b - a) * 0.34));
    const path =
      i === from
        ? `M${a - 5} ${TALL}C${a - 16} ${TALL - high} ${a + 16} ${TALL - high} ${a + 5} ${TALL}`
        : `M${a} ${TALL}C${a} ${TALL - high * 1.3} ${b} ${TALL - high * 1.3} ${b} ${TALL}`;
    svg.append(
      s(
        "path",
        { d: path, class: value < 0 ? "arc minus" : "arc plus", "stroke-width": (0.8 + 7 * share).toFixed(2) },
        [s("title", `from ${visible(tokens[i])} (${i}): ${data.format(value)}`)],
      ),
    );
  });
  places.forEach(({ name, x }, i) => {
    svg.append(
      s(
        "text",
        { x, y: TALL + 16, "text-anchor": "middle", class: i === from ? "on" : "", onclick: () => options.onpick?.(i) },
        name,
      ),
    );
  });
  const box = h("div.scroll", { tabindex: 0, role: "group", "aria-label": label }, svg);
  fill(el, box);
  box.scrollLeft = at; // in a long text, show its end, where the destination token is
}
