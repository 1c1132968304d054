/**
 * Thousands of points on a canvas, grouped in named islands, with pan, zoom, hover and brush.
 *
 * mount(el, {x, y, islands: [{x, y, radius}], named: [{x, y, radius, names: [text]}], spacing, label},
 * {onpick(point), onhover(point, at), onbrush([point]), onview(view)})
 *   -> {paint({groups, classes, faint, rings, chosen}), look(view), view(), zoom(by), brush(on),
 *   reveal(point), canvas, destroy}
 * x and y lie in 0 to 1. `groups`: a number for each point, and `classes` what colours each number; `faint`: whether
 * a point is in the background, or null; `rings`: points with a ring; a view is {x, y, zoom}: the middle and the
 * magnification. Points of one colour are one path, so that a redraw of the canvas fits in a frame.
 */
import { events } from "./map-events.js";
import { colours, draw } from "./map-paint.js";
import { fill, h } from "./nodes.js";
import { clamp } from "./numbers.js";

const CLOSE = 14; // pixels within which a point is hit
const CELL = 1 / 96; // cells of the grid used to find points
const MOST = 64;

export function mount(el, data, options = {}) {
  const canvas = h("canvas.map-canvas", { tabindex: 0, role: "application", "aria-label": data.label });
  const box = h("div.map-brush", { hidden: true });
  fill(el, canvas, box);
  el.classList.add("map");
  const m = begun(el, data, options, canvas, box);
  for (const [name, run] of Object.entries(events(m))) canvas.addEventListener(name, run, { passive: false });
  const forget = onOtherSizeOrColours(m);
  return {
    canvas,
    /** Colour the points: `classes[groups[i]]` is the class whose background a point has. */
    paint(next) {
      m.shown = { ...m.shown, ...next };
      m.redraw();
    },
    look: m.look,
    view: () => m.view,
    zoom: m.zoom,
    /** Set whether dragging selects; Shift inverts it. */
    brush(value) {
      m.brushes = value;
      canvas.classList.toggle("brushes", value);
    },
    /** Bring a point into view. */
    reveal(i) {
      const [x, y] = [m.px(data.x[i]), m.py(data.y[i])];
      const isOut = x < 0 || y < 0 || x > m.width || y > m.height;
      if (m.width && isOut) m.look({ x: data.x[i], y: data.y[i], zoom: m.view.zoom });
    },
    destroy() {
      cancelAnimationFrame(m.frame);
      forget();
      fill(el);
    },
  };
}

/** The state of a map: what is shown of it, and the pixels of a point (`px`, `py`) and the reverse (`ux`, `uy`). */
function begun(el, data, options, canvas, box) {
  const shown = { groups: null, classes: [], faint: null, rings: [], chosen: -1 };
  const view = { x: 0.5, y: 0.5, zoom: 1 };
  const cells = cellsOf(data);
  const pen = canvas.getContext("2d");
  const sizes = { width: 0, height: 0, frame: 0 };
  const parts = { el, data, options, canvas, box, pen, shown, view, ...sizes, brushes: false, colour: colours(el) };
  const m = {
    ...parts,
    scale: (zoom = m.view.zoom) => Math.min(m.width, m.height) * 0.96 * zoom,
    px: (x) => (x - m.view.x) * m.scale() + m.width / 2,
    py: (y) => (y - m.view.y) * m.scale() + m.height / 2,
    ux: (at) => (at - m.width / 2) / m.scale() + m.view.x,
    uy: (at) => (at - m.height / 2) / m.scale() + m.view.y,
    redraw: () => (m.frame ||= requestAnimationFrame(() => draw(m))),
    look: (next, tell = true) => look(m, next, tell),
    zoom: (by, x = m.width / 2, y = m.height / 2) => zoom(m, by, x, y),
    hit: (x, y, close = CLOSE) => hit(m, cells, x, y, close),
  };
  return m;
}

const cellOf = (x, y) => Math.floor(x / CELL) * 1000 + Math.floor(y / CELL);

const cellsOf = ({ x, y }) => Map.groupBy(x.keys(), (i) => cellOf(x[i], y[i]));

/** The point at a pixel of the canvas, or -1. */
function hit({ scale, ux, uy, data, shown }, cells, x, y, close) {
  const reach = close / scale();
  let best = -1;
  let least = reach * reach;
  const [mx, my] = [ux(x), uy(y)];
  for (let cx = Math.floor((mx - reach) / CELL); cx <= Math.floor((mx + reach) / CELL); cx++)
    for (let cy = Math.floor((my - reach) / CELL); cy <= Math.floor((my + reach) / CELL); cy++)
      for (const i of cells.get(cx * 1000 + cy) || []) {
        const away = (data.x[i] - mx) ** 2 + (data.y[i] - my) ** 2;
        if (away < least && !shown.faint?.[i]) [best, least] = [i, away];
      }
  return best;
}

function look(m, { x, y, zoom: by }, tell) {
  m.view = { x: clamp(x, 0, 1), y: clamp(y, 0, 1), zoom: clamp(by, 1, MOST) };
  m.redraw();
  if (tell) m.options.onview?.(m.view);
}

/** Zoom about a pixel of the canvas. */
function zoom(m, by, x, y) {
  const [mx, my] = [m.ux(x), m.uy(y)];
  const next = clamp(m.view.zoom * by, 1, MOST);
  const one = m.scale(next);
  m.look({ x: mx - (x - m.width / 2) / one, y: my - (y - m.height / 2) / one, zoom: next });
}

/** Draw again when the size or the theme changes; returns what ends it. */
function onOtherSizeOrColours({ el, redraw, colour }) {
  const flipped = () => (colour.forget(), redraw());
  const sizes = new ResizeObserver(redraw);
  sizes.observe(el);
  const themes = new MutationObserver(flipped);
  themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", flipped);
  return () => {
    sizes.disconnect();
    themes.disconnect();
    dark.removeEventListener("change", flipped);
  };
}
