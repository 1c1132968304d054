/** What the pointer and the keys do on the map: move it, zoom, select one point or those in a frame. */

import { consume } from "./nodes.js";

/** The listeners of the canvas. */
export function events(m) {
  const { canvas, box, options } = m;
  /** @type {any} */ let drag = null; // where it began, the view then, whether it selects, and whether the pointer has moved
  const place = (event) => {
    const at = canvas.getBoundingClientRect();
    return [event.clientX - at.left, event.clientY - at.top];
  };
  const end = () => {
    drag = null;
    box.hidden = true;
  };
  return {
    pointerdown(event) {
      if (event.button) return;
      const [x, y] = place(event);
      drag = { x, y, from: m.view, brush: m.brushes !== event.shiftKey, moved: false };
      canvas.setPointerCapture(event.pointerId);
    },
    pointermove(event) {
      const [x, y] = place(event);
      if (!drag) {
        const found = m.hit(x, y);
        canvas.classList.toggle("on-point", found >= 0);
        return options.onhover?.(found, [x, y]);
      }
      drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > 5;
      if (!drag.moved) return undefined;
      options.onhover?.(-1);
      if (drag.brush) return frame(box, drag, x, y);
      const { from } = drag;
      return m.look({ ...from, x: from.x - (x - drag.x) / m.scale(), y: from.y - (y - drag.y) / m.scale() });
    },
    pointerup(event) {
      if (!drag) return;
      const [x, y] = place(event);
      const was = drag;
      end();
      if (!was.moved) options.onpick?.(m.hit(x, y));
      else if (was.brush) options.onbrush?.(inside(m, was, x, y));
    },
    pointercancel: end,
    pointerleave: () => options.onhover?.(-1),
    wheel(event) {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return; // the page scrolls
      event.preventDefault();
      m.zoom(Math.exp(-event.deltaY / 300), ...place(event));
    },
    dblclick: (event) => m.zoom(2, ...place(event)),
    keydown: (event) => onkey(m, event),
  };
}

function frame(box, drag, x, y) {
  box.hidden = false;
  const corner = { left: Math.min(x, drag.x), top: Math.min(y, drag.y) };
  const size = { width: Math.abs(x - drag.x), height: Math.abs(y - drag.y) };
  for (const [name, n] of Object.entries({ ...corner, ...size })) box.style[name] = `${n}px`;
}

/** The points in the frame of a brush. */
function inside({ data, shown, ux, uy }, drag, x, y) {
  const [x0, x1] = [ux(Math.min(x, drag.x)), ux(Math.max(x, drag.x))];
  const [y0, y1] = [uy(Math.min(y, drag.y)), uy(Math.max(y, drag.y))];
  const isIn = (i) => data.x[i] >= x0 && data.x[i] <= x1 && data.y[i] >= y0 && data.y[i] <= y1 && !shown.faint?.[i];
  return [...data.x.keys()].filter(isIn);
}

function onkey(m, event) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const by = { "+": 1.5, "=": 1.5, "-": 1 / 1.5 }[event.key];
  if (step) m.options.onpick?.(neighbour(m, step));
  else if (by) m.zoom(by);
  else if (event.key === "0") m.look({ x: 0.5, y: 0.5, zoom: 1 });
  else return;
  consume(event);
}

/** The nearest point in a direction from the selected one, or from the middle. */
function neighbour({ data, shown, hit, width, height }, [dx, dy]) {
  const { chosen, faint } = shown;
  if (chosen < 0) return hit(width / 2, height / 2, Math.max(width, height));
  let best = chosen;
  let least = Infinity;
  for (let i = 0; i < data.x.length; i++) {
    const [x, y] = [data.x[i] - data.x[chosen], data.y[i] - data.y[chosen]];
    const along = x * dx + y * dy;
    if (along <= 1e-6 || faint?.[i]) continue;
    const cost = along + 3 * Math.abs(x * dy - y * dx);
    if (cost < least) [best, least] = [i, cost];
  }
  return best;
}
