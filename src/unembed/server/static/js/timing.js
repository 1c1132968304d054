/** Durations of interactions, from the event to the next frame, for the tests and a panel. */
import { afterPaint, button, h, modal } from "./dom.js";

/** The class of an interaction, by the first key of the state that it changes, and its limit in milliseconds. */
const CLASSES = {
  screen: ["open a screen", 100],
  metric: ["recolour", 50],
  stages: ["recolour", 50],
  diff: ["recolour", 50],
  pins: ["pin", 100],
  position: ["position", 100],
  token: ["position", 100],
  layer: ["select", 50],
  stage: ["select", 50],
  layers: ["select", 50],
  memory: ["memory", 100],
};

/** Begin a span; the returned function ends it, when all is drawn. */
export function span(name) {
  const start = performance.now();
  let ended;
  return () =>
    (ended ??= afterPaint(() => {
      if (performance.getEntriesByType("measure").length > 2000) performance.clearMeasures();
      performance.measure(name, { start, end: performance.now() });
    }));
}

/** A span for a change of the state. */
export function changed(now, before) {
  const key = Object.keys(CLASSES).find((name) => now[name] !== before[name]);
  return key ? span(CLASSES[key][0]) : () => {};
}

/** The spans of this page, by class. */
export function panel(table) {
  const limits = Object.fromEntries([...Object.values(CLASSES), ["trace", 100], ["sort", 50]]);
  const found = Map.groupBy(
    performance.getEntriesByType("measure").filter((one) => one.name in limits),
    (one) => one.name,
  );
  const rows = [...found].map(([name, list]) => {
    const times = list.map((one) => one.duration).sort((a, b) => a - b);
    return [
      name,
      times.length,
      ...[0.5, 0.95, 1].map((q) => Math.round(times[Math.ceil(q * times.length) - 1])),
      limits[name],
    ];
  });
  const dialog = modal({ "aria-label": "Timings" }, [
    h("h1", "Timings"),
    table(
      ["interaction", "times", "median (ms)", "p95", "most", "limit"],
      rows,
      "From the event to the frame after it, on this page.",
    ),
    button("Close", () => dialog.close(), { class: "btn main" }),
  ]);
}
