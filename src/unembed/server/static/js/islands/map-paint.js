/** Drawing the map on its canvas. */
import { h, overlap } from "./nodes.js";
import { clamp } from "./numbers.js";

/** A function that looks up the colour of a CSS class; its method `forget` is called when the theme has changed. */
export function colours(el) {
  const known = new Map();
  const colour = (name, property = "backgroundColor") => {
    const key = `${name} ${property}`;
    if (!known.has(key)) {
      const probe = h("span", { class: name, hidden: true });
      el.append(probe);
      known.set(key, getComputedStyle(probe)[property]);
      probe.remove();
    }
    return known.get(key);
  };
  return Object.assign(colour, { forget: () => known.clear() });
}

const CIRCLE = 2 * Math.PI;

export function draw(m) {
  const { el, pen, data, shown, colour, px, py } = m;
  m.frame = 0;
  if (!fit(m, el.getBoundingClientRect())) return;
  const one = m.scale();
  pen.fillStyle = colour("map-sea");
  pen.beginPath();
  for (const { x, y, radius } of data.islands) {
    pen.moveTo(px(x) + radius * one, py(y));
    pen.arc(px(x), py(y), radius * one, 0, CIRCLE);
  }
  pen.fill();
  const size = clamp(0.72 * data.spacing * one, 1.4, 11);
  const byColour = pointsByColour(m, size);
  const background = byColour.get("map-faint");
  byColour.delete("map-faint");
  if (background) points(m, "map-faint", background, size);
  for (const [name, list] of byColour) points(m, name, list, size);
  pen.lineWidth = 1.5;
  pen.strokeStyle = colour("map-ring", "color");
  for (const i of shown.rings) ring(m, i, size / 2 + 2);
  pen.lineWidth = 2.5;
  if (shown.chosen >= 0) ring(m, shown.chosen, size / 2 + 4);
  names(m, one);
}

/** Give the canvas the size of its box and clear it; false if the box has no size. */
function fit(m, box) {
  const { canvas, pen } = m;
  const ratio = devicePixelRatio || 1;
  if (!box.width) return false;
  const [width, height] = [box.width, box.height].map((x) => Math.round(x * ratio));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  [m.width, m.height] = [box.width, box.height];
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, m.width, m.height);
  return true;
}

/**
 * The points in view by the CSS class of their colour, as [x, y, x, y, ...].
 * @returns {Map<string, number[]>}
 */
function pointsByColour({ data, shown, px, py, width, height }, size) {
  const found = new Map();
  for (let i = 0; i < data.x.length; i++) {
    const [x, y] = [px(data.x[i]), py(data.y[i])];
    if (x < -size || y < -size || x > width + size || y > height + size) continue;
    const key = shown.faint?.[i] ? "map-faint" : (shown.classes[shown.groups?.[i] ?? 0] ?? "map-0");
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(x, y);
  }
  return found;
}

function points({ pen, colour }, name, list, size) {
  pen.fillStyle = colour(name);
  pen.beginPath();
  for (let i = 0; i < list.length; i += 2)
    if (size < 4) pen.rect(list[i] - size / 2, list[i + 1] - size / 2, size, size);
    else {
      pen.moveTo(list[i] + size / 2, list[i + 1]);
      pen.arc(list[i], list[i + 1], size / 2, 0, CIRCLE);
    }
  pen.fill();
}

function ring({ pen, px, py, data }, i, radius) {
  pen.beginPath();
  pen.arc(px(data.x[i]), py(data.y[i]), radius, 0, CIRCLE);
  pen.stroke();
}

/** Write the names of the islands where there is room, the largest islands first. */
function names({ pen, el, data, colour, px, py, width, height }, one) {
  const taken = [];
  Object.assign(pen, { textAlign: "center", lineJoin: "round", lineWidth: 4 });
  pen.font = `600 11.5px ${getComputedStyle(el).fontFamily}`;
  pen.strokeStyle = colour("map-halo");
  pen.fillStyle = colour("map-ring", "color");
  for (const { x, y, radius, names } of data.named) {
    const [cx, cy] = [px(x), py(y)];
    if (cx < 0 || cy < 0 || cx > width || cy > height || radius * one < 16) continue;
    const text = names.slice(0, radius * one > 60 ? 3 : radius * one > 32 ? 2 : 1).join(" ");
    const half = pen.measureText(text).width / 2 + 3;
    const at = { left: cx - half, right: cx + half, top: cy - 8, bottom: cy + 8 };
    if (taken.some((other) => overlap(at, other))) continue;
    taken.push(at);
    pen.strokeText(text, cx, cy + 4);
    pen.fillText(text, cx, cy + 4);
  }
}
