/**
 * The screen or a card as one SVG of shapes and text that any program opens, with a title above and the provenance
 * below. Every saved picture is made here; controls are left out, and a scrolled box shows its visible part.
 */
import { overlap, s } from "../islands/nodes.js";

const PAD = 20;
const LEFT_OUT =
  ".btn, .icon-btn, .quiet, .icon, .menu, .hidden, [hidden], img, [role=radio][aria-checked=false], " +
  "input[type=range], input[type=file], details:not([open])";
/** Controls are drawn as the text that they show, without their boxes. */
const CONTROL = ".segmented, .segmented *, input, select";
const PAINT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "text-anchor"];
const pen = /** @type {CanvasRenderingContext2D} */ (
  document.createElement("canvas").getContext("2d", { willReadFrequently: true })
);

/**
 * Draw an element of the page, with a title above it and lines of text below.
 * @returns {SVGSVGElement & {width: any, height: any}} width and height are in pixels of the page
 */
export function drawing(el, { title, lines }) {
  const page = getComputedStyle(document.documentElement);
  const box = el.getBoundingClientRect();
  const width = Math.ceil(Math.max(box.width, 360)) + 2 * PAD;
  const body = s("g");
  const defs = s("defs");
  const small = fontOf(page, 11);
  const captions = lines.flatMap((line) => wrapped(line, width - 2 * PAD, small));
  const top = PAD + 30;
  const height = Math.ceil(top + box.height + 16 + captions.length * 15 + PAD);
  const words = (text, x, y, font, fill) => s("text", { x, y, ...font, fill: colour(fill).fill }, text);
  walk(el, body, { x: box.left - PAD, y: box.top - top, defs, shown: box });
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" }, [
    s("title", title),
    s("desc", lines.join("\n")),
    defs,
    s("rect", { width, height, fill: colour(page.backgroundColor).fill }),
    words(title, PAD, PAD + 14, { ...fontOf(page, 16), "font-weight": 600 }, page.color),
    body,
    captions.map((line, i) => words(line, PAD, top + box.height + 26 + i * 15, small, page.color)),
  ]);
  return svg;
}

const fontOf = (style, size = Number.parseFloat(style.fontSize)) => ({
  "font-family": style.fontFamily,
  "font-size": size,
  "font-weight": style.fontWeight,
  "font-style": style.fontStyle,
});

function measure(font) {
  pen.font = `${font["font-style"]} ${font["font-weight"]} ${font["font-size"]}px ${font["font-family"]}`;
  return pen;
}

/** Break a text into lines that are no wider than so many pixels. */
function wrapped(text, width, font) {
  const found = [""];
  const on = measure(font);
  for (const word of text.split(/(?<= )/).flatMap((w) => w.match(/.{1,40}/gu) || [])) {
    if (found.at(-1) && on.measureText(found.at(-1) + word).width > width) found.push("");
    found[found.length - 1] += word;
  }
  return found;
}

/** Colours as hexadecimal numbers and opacities, by their CSS text: other programs do not read oklab() or color-mix(). */
const colours = new Map();
function colour(css) {
  if (!colours.has(css)) {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = css;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    colours.set(css, {
      fill: `#${[r, g, b].map((x) => x.toString(16).padStart(2, "0")).join("")}`,
      "fill-opacity": a / 255,
    });
  }
  return colours.get(css);
}

/** Draw a node and its children into `out`; `at`: where the drawing begins on the page, its definitions, and its visible part. */
function walk(node, out, at) {
  if (node.nodeType === Node.TEXT_NODE) return text(node, out, at);
  if (node.nodeType !== Node.ELEMENT_NODE || node.matches(LEFT_OUT)) return undefined;
  const style = getComputedStyle(node);
  const box = node.getBoundingClientRect();
  if (style.display === "none" || style.visibility === "hidden") return undefined;
  const clips = style.overflowX !== "visible" && style.display !== "inline";
  if (clips && !overlap(box, at.shown)) return undefined;
  const group = s("g");
  if (style.opacity !== "1") group.setAttribute("opacity", style.opacity);
  if (overlap(box, at.shown)) paint(group, style, box, at, node.matches(CONTROL));
  let inner = group;
  if (clips) {
    const id = `clip${at.defs.childElementCount}`;
    at.defs.append(s("clipPath", { id }, rectangle(box, at)));
    inner = s("g", { "clip-path": `url(#${id})` });
    group.append(inner);
    at = { ...at, shown: common(box, at.shown) };
  }
  if (node.tagName === "svg") inner.append(inlined(node, box, at));
  else if (node.tagName === "CANVAS")
    inner.append(s("image", { ...placed(box, at), href: node.toDataURL(), preserveAspectRatio: "none" }));
  else if (/^(INPUT|TEXTAREA|SELECT)$/.test(node.tagName)) typed(node, style, box, inner, at);
  else {
    pseudo(node, "::before", box, inner, at);
    for (const child of ordered(node)) walk(child, inner, at);
    pseudo(node, "::after", box, inner, at);
  }
  if (group.childElementCount) out.append(group);
  return undefined;
}

const common = (a, b) => ({
  left: Math.max(a.left, b.left),
  top: Math.max(a.top, b.top),
  right: Math.min(a.right, b.right),
  bottom: Math.min(a.bottom, b.bottom),
});

/** The children of a node in the order of painting. */
function ordered(node) {
  const level = (child) => {
    if (child.nodeType !== Node.ELEMENT_NODE) return 0;
    const style = getComputedStyle(child);
    return style.position === "static" ? 0 : Number(style.zIndex) || 0;
  };
  const levels = new Map([...node.childNodes].map((child) => [child, level(child)]));
  return [...levels.keys()].sort((a, b) => Number(levels.get(a)) - Number(levels.get(b)));
}

const placed = (box, at) => ({ x: box.left - at.x, y: box.top - at.y, width: box.width, height: box.height });
const rectangle = (box, at, more = {}) => s("rect", { ...placed(box, at), ...more });

/** Draw the background, rings and borders of a box. */
function paint(out, style, box, at, isControl) {
  if (!box.width || !box.height || isControl) return;
  const rx = Math.min(Number.parseFloat(style.borderTopLeftRadius) || 0, box.width / 2, box.height / 2);
  const ground = colour(style.backgroundColor);
  if (ground["fill-opacity"]) out.append(rectangle(box, at, { rx, ...ground }));
  const sides = ["Top", "Right", "Bottom", "Left"].map((side) => ({
    side,
    width: style[`border${side}Style`] === "none" ? 0 : Number.parseFloat(style[`border${side}Width`]),
    ...colour(style[`border${side}Color`]),
  }));
  const drawn = sides.filter((one) => one.width && one["fill-opacity"]);
  if (drawn.length === 4) ring(out, box, at, rx, drawn[0].width, drawn[0], drawn[0].width / 2);
  else for (const one of drawn) out.append(edge(box, at, one.side, one.width, one));
  const shadow = /^(.+?\)) (-?[\d.]+)px (-?[\d.]+)px 0px ([\d.]+)px( inset)?$/.exec(style.boxShadow);
  if (!shadow) return;
  const [, css, dx, dy, spread, inset] = shadow;
  if (Number(spread)) ring(out, box, at, rx, Number(spread), colour(css), (inset ? 1 : -1) * (Number(spread) / 2));
  else if (inset && Number(dy) < 0) out.append(edge(box, at, "Bottom", -Number(dy), colour(css)));
  else if (inset && Number(dx) > 0) out.append(edge(box, at, "Left", Number(dx), colour(css)));
}

function ring(out, box, at, rx, width, paintOf, by) {
  const { x, y, width: w, height: tall } = placed(box, at);
  const sizes = { x: x + by, y: y + by, width: Math.max(0, w - 2 * by), height: Math.max(0, tall - 2 * by), rx };
  const stroke = { stroke: paintOf.fill, "stroke-opacity": paintOf["fill-opacity"], "stroke-width": width };
  out.append(s("rect", { ...sizes, fill: "none", ...stroke }));
}

function edge(box, at, side, width, { fill, "fill-opacity": opacity }) {
  const part = { left: box.left, top: box.top, width: box.width, height: box.height };
  if (side === "Bottom") part.top = box.bottom - width;
  if (side === "Right") part.left = box.right - width;
  if (side === "Top" || side === "Bottom") part.height = width;
  else part.width = width;
  return rectangle(part, at, { fill, "fill-opacity": opacity });
}

/** Draw a pseudo-element, such as the bar under a candidate. */
function pseudo(node, which, box, out, at) {
  const style = getComputedStyle(node, which);
  if (style.content === "none" || style.content === "normal" || style.position !== "absolute") return;
  const [left, top, width, height] = [style.left, style.top, style.width, style.height].map(Number.parseFloat);
  if (![left, top, width, height].every(Number.isFinite)) return;
  const { fill, "fill-opacity": opacity } = colour(style.backgroundColor);
  const part = { left: box.left + left, top: box.top + top, width, height };
  if (opacity) out.append(rectangle(part, at, { fill, "fill-opacity": opacity * Number(style.opacity) }));
}

/** Draw a text line by line, as the browser laid it out. */
function text(node, out, at) {
  if (!node.data.trim()) return;
  const parent = node.parentElement;
  const style = getComputedStyle(parent);
  const font = fontOf(style);
  const ascent = measure(font).measureText("x").fontBoundingBoxAscent;
  const { fill, "fill-opacity": opacity } = colour(style.color);
  const keepsSpaces = style.whiteSpace.startsWith("pre") || style.whiteSpaceCollapse === "preserve";
  for (const { line, box } of lines(node, keepsSpaces)) {
    if (!overlap(box, at.shown)) continue;
    const made = s("text", { x: box.left - at.x, y: box.top - at.y + ascent, ...font, fill }, line);
    if (opacity < 1) made.setAttribute("fill-opacity", opacity);
    if (line.length > 1) made.setAttribute("textLength", box.width);
    made.setAttributeNS("http://www.w3.org/XML/1998/namespace", "xml:space", "preserve");
    out.append(made);
  }
}

/** Trim a text to what was laid out: the browser drops spaces at the ends of a line. */
function asShown(text, width, font) {
  const on = measure(font);
  const away = (one) => Math.abs(on.measureText(one).width - width);
  const ways = [text.trim(), text.trimStart(), text.trimEnd(), text];
  return ways.reduce((best, one) => (away(one) < away(best) - 0.5 ? one : best));
}

function lines(node, keepsSpaces) {
  const range = document.createRange();
  const clean = (line) => (keepsSpaces ? line.replace(/\n$/, "") : line.replace(/\s+/g, " "));
  const font = fontOf(getComputedStyle(node.parentElement));
  range.selectNodeContents(node);
  const all = [...range.getClientRects()].filter((box) => box.width);
  const whole = (box) => (keepsSpaces ? clean(node.data) : asShown(clean(node.data), box.width, font));
  if (all.length < 2) return all.map((box) => ({ line: whole(box), box }));
  const found = [];
  let at = 0;
  for (const letter of node.data) {
    range.setStart(node, at);
    range.setEnd(node, (at += letter.length));
    const box = [...range.getClientRects()].find((one) => one.width);
    if (!box) continue;
    const last = found.at(-1);
    if (last && Math.abs(last.top - box.top) < 3) Object.assign(last, { line: last.line + letter, right: box.right });
    else found.push({ line: letter, left: box.left, top: box.top, right: box.right, bottom: box.bottom });
  }
  return found.map(({ line, ...box }) => ({ line: clean(line), box: { ...box, width: box.right - box.left } }));
}

/** Draw the value of an input, list or tick box. */
function typed(el, style, box, out, at) {
  const font = fontOf(style);
  const size = font["font-size"];
  let words = el.tagName === "SELECT" ? el.selectedOptions[0]?.text : el.value;
  if (el.type === "checkbox") words = el.checked ? "☑" : "☐";
  const tall = Number.parseFloat(style.lineHeight) || size * 1.4;
  const multi = el.tagName === "TEXTAREA";
  const left = box.left - at.x + Number.parseFloat(style.paddingLeft);
  const middle = box.top - at.y + box.height / 2 + size * 0.36;
  const first = box.top - at.y + Number.parseFloat(style.paddingTop) + tall * 0.74;
  const room = box.width - 2 * Number.parseFloat(style.paddingLeft);
  const shown = multi ? (words || "").split("\n").flatMap((line) => wrapped(line, room, font)) : [words || ""];
  shown.forEach((line, i) => {
    if (line)
      out.append(s("text", { x: left, y: multi ? first + i * tall : middle, ...font, ...colour(style.color) }, line));
  });
}

/** Copy an SVG of the page, with its computed style written into it. */
function inlined(svg, box, at) {
  const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
  const of = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((el, i) => {
    const look = getComputedStyle(of[i]);
    for (const name of PAINT) {
      const value = look.getPropertyValue(name);
      el.setAttribute(name, /^(fill|stroke)$/.test(name) && value !== "none" ? colour(value).fill : value);
    }
    if (of[i].tagName === "text")
      for (const [name, value] of Object.entries(fontOf(look))) el.setAttribute(name, value);
    for (const name of ["class", "style", "tabindex", "role"]) el.removeAttribute(name);
  });
  for (const name of ["class", "style", "tabindex"]) copy.removeAttribute(name);
  for (const [name, value] of Object.entries(placed(box, at))) copy.setAttribute(name, String(value));
  return copy;
}
