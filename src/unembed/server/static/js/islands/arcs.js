/**
 * A text with an arc from one token to each earlier one, as wide as that token's contribution is large; blue where it is
 * positive, orange where negative.
 *
 * mount(el, {tokens: [text], from: position, values: [number], label, format(x)}, {onpick(position)})
 */
import { fill, h, s } from "./nodes.js";
import { visible } from "./tokens.js";

const LETTER = 7.6;
const TALL = 92;

export function mount(el, data, options = {}) {
  const { tokens, from, values, label, format } = data;
  let wide = 6;
  const places = tokens.map((text) => {
    const name = visible(text).slice(0, 14);
    const width = Math.max(14, name.length * LETTER);
    const x = wide + width / 2;
    wide += width + 8;
    return { name, x };
  });
  const most = Math.max(...values.map(Math.abs), 1e-9);
  const arc = (value, i) => {
    const share = Math.abs(value) / most;
    const props = { class: value < 0 ? "arc minus" : "arc plus", "stroke-width": (0.8 + 7 * share).toFixed(2) };
    const title = s("title", `from ${visible(tokens[i])} (${i}): ${format(value)}`);
    return share >= 0.02 && s("path", { d: curve(places[i].x, places[from].x, i === from), ...props }, title);
  };
  const word = ({ name, x }, i) => {
    const props = { x, y: TALL + 16, "text-anchor": "middle", class: i === from ? "on" : "" };
    return s("text", { ...props, onclick: () => options.onpick?.(i) }, name);
  };
  const props = {
    viewBox: `0 0 ${wide} ${TALL + 24}`,
    role: "img",
    "aria-label": label,
    style: { width: `${wide}px` },
  };
  const svg = s("svg.arcs", props, values.map(arc), places.map(word));
  const box = h("div.scroll", { tabindex: 0, role: "group", "aria-label": label }, svg);
  fill(el, box);
  box.scrollLeft = wide; // of a long text, show the end, where the token usually is
}

/** The path from a token to another, or back to itself. */
function curve(a, b, isLoop) {
  if (isLoop) return `M${a - 5} ${TALL}C${a - 16} ${TALL - 26} ${a + 16} ${TALL - 26} ${a + 5} ${TALL}`;
  const top = TALL - 1.3 * Math.max(14, Math.min(TALL - 8, 12 + Math.abs(b - a) * 0.34));
  return `M${a} ${TALL}C${a} ${top} ${b} ${top} ${b} ${TALL}`;
}
