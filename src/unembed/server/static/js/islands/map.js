/**
 * Thousands of points on a canvas, grouped in named islands, with pan, zoom, hover and brush.
 *
 * mount(el, {x, y, islands: [{x, y, radius}], named: [{x, y, radius, names: [text]}], spacing, label},
 * {onpick(point), onhover(point, at), onbrush([point]), onview(view)})
 *   -> {paint({groups, classes, faint, rings, chosen}), look(view), view(), zoom(by), brush(on), at(point),
 *   reveal(point), canvas, destroy}
 * x and y lie in 0 to 1. `groups`: a number for each point, and `classes` what colours each number; `faint`: whether
 * a point is in the background, or null; `rings`: points with a ring; a view is {x, y, zoom}: the middle and the
 * magnification. Points of one colour are one path, so that a redraw of the canvas fits in a frame.
 */
import { fill, h } from "./nodes.js";

const CLOSE = 14; // pixels within which a point is hit
const CELL = 1 / 96; // cells of the grid used to find points
const MOST = 64;

export function mount(el, data, options = {}) {
  const n = data.x.length;
  const canvas = h("canvas.map-canvas", { tabindex: 0, role: "application", "aria-label": data.label });
  const box = h("div.map-brush", { hidden: true });
  fill(el, canvas, box);
  el.classList.add("map");
  const pen = canvas.getContext("2d");
  const cells = new Map();
  const cellOf = (x, y) => Math.floor(x / CELL) * 1000 + Math.floor(y / CELL);
  for (let i = 0; i < n; i++) {
    const key = cellOf(data.x[i], data.y[i]);
    if (cells.has(key)) cells.get(key).push(i);
    else cells.set(key, [i]);
  }
  let view = { x: 0.5, y: 0.5, zoom: 1 };
  let shown = { groups: null, classes: [], faint: null, rings: [], chosen: -1 };
  let width = 0;
  let height = 0;
  let frame = 0;
  let drag = null;
  let brushes = false;

  const scale = () => Math.min(width, height) * 0.96 * view.zoom;
  const px = (x) => (x - view.x) * scale() + width / 2;
  const py = (y) => (y - view.y) * scale() + height / 2;
  const ux = (at) => (at - width / 2) / scale() + view.x;
  const uy = (at) => (at - height / 2) / scale() + view.y;

  /** The colour of a class in the current theme. */
  const colours = new Map();
  function colour(name, property = "backgroundColor") {
    const key = `${name} ${property}`;
    if (!colours.has(key)) {
      const probe = h("span", { class: name, hidden: true });
      el.append(probe);
      colours.set(key, getComputedStyle(probe)[property]);
      probe.remove();
    }
    return colours.get(key);
  }

  function draw() {
    frame = 0;
    const ratio = devicePixelRatio || 1;
    const box = el.getBoundingClientRect();
    if (!box.width) return;
    if (canvas.width !== Math.round(box.width * ratio) || canvas.height !== Math.round(box.height * ratio)) {
      canvas.width = Math.round(box.width * ratio);
      canvas.height = Math.round(box.height * ratio);
    }
    [width, height] = [box.width, box.height];
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const one = scale();
    pen.fillStyle = colour("map-sea");
    pen.beginPath();
    for (const { x, y, radius } of data.islands) {
      pen.moveTo(px(x) + radius * one, py(y));
      pen.arc(px(x), py(y), radius * one, 0, 2 * Math.PI);
    }
    pen.fill();
    const size = Math.max(1.4, Math.min(11, 0.72 * data.spacing * one));
    /** @type {Map<string, number[]>} */
    const byColour = new Map();
    for (let i = 0; i < n; i++) {
      const [x, y] = [px(data.x[i]), py(data.y[i])];
      if (x < -size || y < -size || x > width + size || y > height + size) continue;
      const key = shown.faint?.[i] ? "map-faint" : (shown.classes[shown.groups?.[i] ?? 0] ?? "map-0");
      let list = byColour.get(key);
      if (!list) byColour.set(key, (list = []));
      list.push(x, y);
    }
    const paint = (name, list) => {
      pen.fillStyle = colour(name);
      pen.beginPath();
      for (let i = 0; i < list.length; i += 2)
        if (size < 4) pen.rect(list[i] - size / 2, list[i + 1] - size / 2, size, size);
        else {
          pen.moveTo(list[i] + size / 2, list[i + 1]);
          pen.arc(list[i], list[i + 1], size / 2, 0, 2 * Math.PI);
        }
      pen.fill();
    };
    if (byColour.has("map-faint")) paint("map-faint", byColour.get("map-faint"));
    for (const [name, list] of byColour) if (name !== "map-faint") paint(name, list);
    pen.lineWidth = 1.5;
    pen.strokeStyle = colour("map-ring", "color");
    for (const i of shown.rings) ring(i, size / 2 + 2);
    if (shown.chosen >= 0) {
      pen.lineWidth = 2.5;
      ring(shown.chosen, size / 2 + 4);
    }
    names(one);
  }

  function ring(i, radius) {
    pen.beginPath();
    pen.arc(px(data.x[i]), py(data.y[i]), radius, 0, 2 * Math.PI);
    pen.stroke();
  }

  /** Names of the islands where there is room, the largest first. */
  function names(one) {
    const taken = [];
    pen.textAlign = "center";
    pen.lineJoin = "round";
    pen.lineWidth = 4;
    pen.font = `600 11.5px ${getComputedStyle(el).fontFamily}`;
    pen.strokeStyle = colour("map-halo");
    pen.fillStyle = colour("map-ring", "color");
    for (const { x, y, radius, names } of data.named) {
      const [cx, cy] = [px(x), py(y)];
      if (cx < 0 || cy < 0 || cx > width || cy > height || radius * one < 16) continue;
      const text = names.slice(0, radius * one > 60 ? 3 : radius * one > 32 ? 2 : 1).join(" ");
      const half = pen.measureText(text).width / 2 + 3;
      const at = { left: cx - half, right: cx + half, top: cy - 8, bottom: cy + 8 };
      if (taken.some((b) => b.left < at.right && b.right > at.left && b.top < at.bottom && b.bottom > at.top)) continue;
      taken.push(at);
      pen.strokeText(text, cx, cy + 4);
      pen.fillText(text, cx, cy + 4);
    }
  }

  const redraw = () => {
    frame ||= requestAnimationFrame(draw);
  };

  /** The point at a pixel of the canvas, or -1. */
  function hit(x, y, close = CLOSE) {
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

  function look(next, tell = true) {
    const onMap = (at) => Math.max(0, Math.min(1, at));
    view = { x: onMap(next.x), y: onMap(next.y), zoom: Math.max(1, Math.min(MOST, next.zoom)) };
    redraw();
    if (tell) options.onview?.(view);
  }

  /** Zoom about a pixel of the canvas. */
  function zoom(by, x = width / 2, y = height / 2) {
    const [mx, my] = [ux(x), uy(y)];
    const next = Math.max(1, Math.min(MOST, view.zoom * by));
    const one = Math.min(width, height) * 0.96 * next;
    look({ x: mx - (x - width / 2) / one, y: my - (y - height / 2) / one, zoom: next });
  }

  const place = (event) => {
    const at = canvas.getBoundingClientRect();
    return [event.clientX - at.left, event.clientY - at.top];
  };
  const on = {
    pointerdown(event) {
      if (event.button) return;
      const [x, y] = place(event);
      drag = { x, y, from: view, brush: brushes !== event.shiftKey, moved: false };
      canvas.setPointerCapture(event.pointerId);
    },
    pointermove(event) {
      const [x, y] = place(event);
      if (!drag) {
        const found = hit(x, y);
        canvas.classList.toggle("on-point", found >= 0);
        return options.onhover?.(found, [x, y]);
      }
      drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > 5;
      if (!drag.moved) return undefined;
      options.onhover?.(-1);
      if (!drag.brush)
        return look({ ...drag.from, x: drag.from.x - (x - drag.x) / scale(), y: drag.from.y - (y - drag.y) / scale() });
      box.hidden = false;
      const [left, top] = [Math.min(x, drag.x), Math.min(y, drag.y)];
      Object.assign(box.style, {
        left: `${left}px`,
        top: `${top}px`,
        width: `${Math.abs(x - drag.x)}px`,
        height: `${Math.abs(y - drag.y)}px`,
      });
      return undefined;
    },
    pointerup(event) {
      if (!drag) return;
      const [x, y] = place(event);
      const was = drag;
      drag = null;
      box.hidden = true;
      if (!was.moved) return options.onpick?.(hit(x, y));
      if (!was.brush) return;
      const [x0, x1] = [ux(Math.min(x, was.x)), ux(Math.max(x, was.x))];
      const [y0, y1] = [uy(Math.min(y, was.y)), uy(Math.max(y, was.y))];
      const inside = [];
      for (let i = 0; i < n; i++)
        if (data.x[i] >= x0 && data.x[i] <= x1 && data.y[i] >= y0 && data.y[i] <= y1 && !shown.faint?.[i])
          inside.push(i);
      options.onbrush?.(inside);
    },
    pointercancel() {
      drag = null;
      box.hidden = true;
    },
    pointerleave: () => options.onhover?.(-1),
    wheel(event) {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return; // the page scrolls
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 300), ...place(event));
    },
    dblclick: (event) => zoom(2, ...place(event)),
    keydown(event) {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (step) options.onpick?.(neighbour(step));
      else if (event.key === "+" || event.key === "=") zoom(1.5);
      else if (event.key === "-") zoom(1 / 1.5);
      else if (event.key === "0") look({ x: 0.5, y: 0.5, zoom: 1 });
      else return;
      event.preventDefault();
      event.stopPropagation();
    },
  };
  for (const [name, run] of Object.entries(on)) canvas.addEventListener(name, run, { passive: false });

  /** The nearest point in a direction from the selected one, or from the middle. */
  function neighbour([dx, dy]) {
    if (shown.chosen < 0) return hit(width / 2, height / 2, Math.max(width, height));
    let best = shown.chosen;
    let least = Infinity;
    for (let i = 0; i < n; i++) {
      const [x, y] = [data.x[i] - data.x[shown.chosen], data.y[i] - data.y[shown.chosen]];
      const along = x * dx + y * dy;
      if (along <= 1e-6 || shown.faint?.[i]) continue;
      const cost = along + 3 * Math.abs(x * dy - y * dx);
      if (cost < least) [best, least] = [i, cost];
    }
    return best;
  }

  const sizes = new ResizeObserver(redraw);
  sizes.observe(el);
  const themes = new MutationObserver(() => (colours.clear(), redraw()));
  themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const flipped = () => (colours.clear(), redraw());
  dark.addEventListener("change", flipped);

  return {
    canvas,
    /** Colour the points: `classes[groups[i]]` is the class whose background a point has. */
    paint(next) {
      shown = { ...shown, ...next };
      redraw();
    },
    look,
    view: () => view,
    zoom,
    /** Set whether dragging selects; Shift inverts it. */
    brush: (value) => {
      brushes = value;
      canvas.classList.toggle("brushes", value);
    },
    /** Where a point is drawn. */
    at: (i) => [px(data.x[i]), py(data.y[i])],
    /** Bring a point into view. */
    reveal(i) {
      const [x, y] = [px(data.x[i]), py(data.y[i])];
      if (width && (x < 0 || y < 0 || x > width || y > height)) look({ x: data.x[i], y: data.y[i], zoom: view.zoom });
    },
    destroy() {
      cancelAnimationFrame(frame);
      sizes.disconnect();
      themes.disconnect();
      dark.removeEventListener("change", flipped);
      fill(el);
    },
  };
}
