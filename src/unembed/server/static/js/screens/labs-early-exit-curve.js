/** Layers saved against disagreement: a curve with a point on it to drag, or to move with the arrow keys. */
import { consume, fill, num, s, svgText } from "../dom.js";
import { asTable } from "../parts.js";

export const CURVE = ["threshold", "disagreement %", "layers saved", "share saved"];
export const curveRows = (steps) =>
  steps.map((r) => [r.threshold ?? "never", r.disagreement, r.saved_layers, r.share_saved]);

/** Draw the curve; `move(step)` is called when the user moves the point. Returns the function that places it. */
export function drawCurve(el, steps, move) {
  const most = Math.max(...steps.map((r) => r.disagreement), 1);
  const deep = Math.max(...steps.map((r) => r.saved_layers), 1);
  const x = (r) => 40 + (r.disagreement / most) * 300;
  const y = (r) => 160 - (r.saved_layers / deep) * 140;
  let at = 0;
  const point = draggable(steps.length, (event) => {
    const [up, down] = [at + 1, at - 1];
    const to = { ArrowRight: up, ArrowUp: up, ArrowLeft: down, ArrowDown: down, Home: 0, End: steps.length }[event.key];
    if (to === undefined) return;
    consume(event);
    move(to);
  });
  const near = (e) => {
    const p = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const far = steps.map((r) => Math.hypot(x(r) - p.x, y(r) - p.y));
    move(far.indexOf(Math.min(...far)));
  };
  const props = {
    viewBox: "0 0 360 196",
    style: { "max-width": "460px", "touch-action": "none" },
    role: "group",
    "aria-label": "Layers saved against disagreement",
    onpointerdown: (e) => (svg.setPointerCapture(e.pointerId), near(e), point.focus(), e.preventDefault()),
    onpointermove: (e) => e.buttons && near(e),
  };
  const svg = s("svg.ranks", props, [
    s("line.rule", { x1: 40, x2: 340, y1: 160, y2: 160 }),
    s("line.rule", { x1: 40, x2: 40, y1: 20, y2: 160 }),
    s("polyline.line.line0", { points: steps.map((r) => `${x(r)},${y(r)}`).join(" ") }),
    steps.map((r) => s("circle.dot.line0", { cx: x(r), cy: y(r), r: 3 })),
    point,
    svgText(40, 12, "layers saved"),
    svgText(34, 24, String(Number(deep.toFixed(2))), "end"),
    svgText(34, 164, "0", "end"),
    svgText(40, 176, "0 %", "middle"),
    svgText(190, 190, "predictions that change", "middle"),
    svgText(340, 176, `${num(most)} %`, "middle"),
  ]);
  fill(el, [svg, asTable(CURVE, () => curveRows(steps), "The curve as a table")]);
  return (step) => {
    at = step;
    const r = steps[at];
    const said = `${num(r.saved_layers)} layers saved, ${num(r.disagreement)} % differ`;
    const shown = { cx: x(r), cy: y(r), "aria-valuenow": at, "aria-valuetext": said };
    for (const [name, value] of Object.entries(shown)) point.setAttribute(name, String(value));
  };
}

const draggable = (n, onkeydown) =>
  s("circle.dot.line1", {
    r: 13,
    "fill-opacity": 0.2,
    tabindex: 0,
    role: "slider",
    "aria-label": "Point on the curve",
    "aria-valuemin": 0,
    "aria-valuemax": n - 1,
    style: { cursor: "grab" },
    onkeydown,
  });
