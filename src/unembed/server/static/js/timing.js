/** How long interactions take, from the event to the next frame: the tests and a panel of the page read it. */
import { afterPaint, button, h, modal } from "./dom.js";
import { differ } from "./state.js";

/** The limit of each kind of interaction in milliseconds, and the parts of the state that it changes. */
const CLASSES = {
  "open a screen": [100, "screen"],
  recolour: [50, "metric", "stages", "diff"],
  pin: [100, "pins"],
  position: [100, "position", "token"],
  select: [50, "layer", "stage", "layers"],
  memory: [100, "memory"],
};

/** Begin to measure; the returned function ends it after the next frame. */
export function span(name) {
  const start = performance.now();
  let ended;
  return () =>
    (ended ??= afterPaint(() => {
      if (performance.getEntriesByType("measure").length > 2000) performance.clearMeasures();
      performance.measure(name, { start, end: performance.now() });
    }));
}

/** Begin to measure a change of the state. */
export function changed(now, before) {
  const found = Object.entries(CLASSES).find(([, [, ...keys]]) => differ(now, before, ...keys));
  return found ? span(found[0]) : () => {};
}

/** Show the durations measured on this page. */
export function panel(table) {
  const ofState = Object.fromEntries(Object.entries(CLASSES).map(([name, [most]]) => [name, most]));
  const limits = { ...ofState, trace: 100, sort: 50 };
  const spans = performance.getEntriesByType("measure").filter((one) => one.name in limits);
  const rows = [...Map.groupBy(spans, (one) => one.name)].map(([name, list]) => {
    const times = list.map((one) => one.duration).sort((a, b) => a - b);
    const quantiles = [0.5, 0.95, 1].map((q) => Math.round(times[Math.ceil(q * times.length) - 1]));
    return [name, times.length, ...quantiles, limits[name]];
  });
  const head = ["interaction", "times", "median (ms)", "p95", "most", "limit"];
  const dialog = modal({ "aria-label": "Timings" }, [
    h("h1", "Timings"),
    table(head, rows, "From the event to the frame after it, on this page."),
    button("Close", () => dialog.close(), "btn main"),
  ]);
}
