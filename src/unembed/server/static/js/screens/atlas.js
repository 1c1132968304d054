/** All memories (FFN neurons) of the model on one map: values with similar directions share an island. */
import { literal } from "../code.js";
import { button, debounced, fill, grouped, h, namedBoxes, segmented, statusLine, textBox } from "../dom.js";
import { mount } from "../islands/map.js";
import { visible } from "../islands/tokens.js";
import { about, card, columns, noMemories, pane } from "../parts.js";
import { sheet } from "../sheet.js";
import { differ, go, idOf, state, turn } from "../state.js";
import { loadMap } from "./atlas-map.js";
import { drawBest, drawPanel, hover, pointsOf } from "./atlas-panel.js";
import { COLOURS, colour, paint } from "./atlas-shades.js";

export function render(root, page) {
  const { api, model } = page;
  if (!model.can.memories) return noMemories(root);
  const boxes = namedBoxes({ canvas: "div", legend: "div.row.map-legend", panel: "div.stack", best: "div" });
  const chosenCard = card("Selected memory", null, boxes.panel);
  const enter = () => turn({ query: input.value.trim() });
  const input = textBox("Search the map", {
    placeholder: 'a word, -word, "·token", *part*, /expression/, name:label',
    style: { flex: "1 1 220px" },
    onenter: enter,
    onchange: enter,
  });
  const panes = {
    ...boxes,
    input,
    counted: statusLine("p.soft"),
    found: statusLine("span.faint"),
    pop: h("div.map-pop", { id: "map-pop", hidden: true }),
    over: sheet(chosenCard),
  };
  /**
   * The state of the screen. `points`: see `pointsOf`; `at`: the point of each id; `matched`: the points that the search
   * found, or null; `hidden`: the kinds, layers or densities that the legend hides.
   */
  const begun = { atlas: null, points: null, map: null, at: new Map(), matched: null, brushed: [], hidden: new Set() };
  /** @type {any} */ const t = { api, model, ...panes, ...begun };
  fill(root, frame(t, chosenCard, enter));
  return {
    update: (now, before) => update(t, now, before),
    key(event) {
      if (event.key !== "Escape" || !(state().memory || t.brushed.length)) return false;
      brush(t, []);
      return true;
    },
    destroy: () => t.map?.destroy(),
    code: () => code(model),
    exported: () => t.atlas && { name: "atlas", json: t.atlas, rows: rowsOf(t) },
  };
}

function frame(t, chosenCard, enter) {
  const colours = Object.entries(COLOURS).slice(0, t.model.can.index ? 3 : 2);
  const zoom = (text, label, run) => button(text, run, "icon-btn", { "aria-label": label, title: label });
  const controls = [
    segmented("Colour by", colours, colour(), (v) => turn({ colour: v })),
    segmented("Dragging", { move: "Move", brush: "Select" }, "move", (v) => t.map?.brush(v === "brush")),
  ];
  return h("div.stack", [
    h("div.row", h("h1", "Atlas of memories"), t.counted),
    h("div.atlas", [
      card("All values", controls, [
        h("div.row", [t.input, button("Search", enter, "btn"), button("Clear", () => clear(t), "quiet"), t.found]),
        h("div.map-frame", [
          t.canvas,
          t.pop,
          h("div.map-zoom", [
            zoom("+", "Zoom in", () => t.map?.zoom(1.6)),
            zoom("−", "Zoom out", () => t.map?.zoom(1 / 1.6)),
            zoom("⤢", "Show the whole map", () => t.map?.look({ x: 0.5, y: 0.5, zoom: 1 })),
          ]),
        ]),
        t.legend,
        about("atlas"),
      ]),
      h("div.stack.atlas-side", chosenCard, card("Best memories", null, t.best)),
    ]),
  ]);
}

function update(t, now, before) {
  if (before.screen !== now.screen) return load(t);
  if (!t.atlas) return undefined;
  if (now.colour !== before.colour) t.hidden = new Set();
  if (differ(now, before, "query")) return look(t);
  if (differ(now, before, "memory", "colour", "edits")) {
    const chosen = t.at.get(now.memory);
    if (now.memory !== before.memory && chosen !== undefined) t.map.reveal(chosen);
    redraw(t);
  }
  return undefined;
}

function redraw(t) {
  paint(t);
  drawPanel(t);
}

/** Select some points instead of one memory. */
function brush(t, points) {
  t.brushed = points;
  turn({ memory: "" });
  redraw(t);
}

function clear(t) {
  t.input.value = "";
  t.hidden = new Set();
  turn({ query: "" });
  brush(t, []);
}

const load = (t) =>
  pane(t.canvas, async () => {
    fill(t.counted, "Reading the map …");
    let version = "";
    const progress = (line) => {
      if (line.kind === "atlas") version = line.version;
      else fill(t.counted, `Computing the map, once: step ${line.done} of ${line.of}`);
    };
    await t.api.stream("/atlas", {}, progress, { channel: "atlas", what: "Computing the map of all values" });
    const atlas = (t.atlas = await loadMap(t.api, version));
    t.points = pointsOf(atlas);
    t.at = new Map(atlas.layer.map((_, i) => [t.points.id(i), i]));
    const [shown, all] = [atlas.x.length, atlas.n_values].map(grouped);
    const sample =
      `A sample: ${shown} of ${all} values, evenly spaced over all layers` +
      `${atlas.best.length ? " and with the best memories" : ""}, `;
    fill(t.counted, [
      atlas.x.length < atlas.n_values ? sample : `${all} values (FFN neurons) `,
      `on ${atlas.islands.length} islands of similar direction`,
    ]);
    drawMap(t);
    drawBest(t);
    await look(t);
  });

function drawMap(t) {
  const { x, y, islands } = t.atlas;
  const sized = [...islands].sort((a, b) => b.size - a.size);
  const [large] = sized;
  const data = {
    x,
    y,
    islands,
    named: sized.map((one) => ({ ...one, names: one.tokens.map((text) => visible(text)) })),
    spacing: large.radius / (Math.sqrt(Math.max(0, ((large.size - 1) / 3) * 4 + 1)) / 2 + 0.4),
    label: `Map of ${x.length} values. Arrows: the next value in a direction. Enter: its card. + and −: zoom.`,
  };
  t.map = mount(t.canvas, data, {
    onpick(i) {
      turn({ memory: i < 0 ? "" : t.points.id(i) });
      if (i < 0) t.over.hide();
      else bring(t);
    },
    onhover: (i, where) => hover(t, i, where),
    onbrush: (points) => (brush(t, points), bring(t)),
    onview: remember,
  });
  t.map.canvas.addEventListener("keydown", (e) => {
    if (e.key === "Enter" && state().memory) go({ screen: "memory" });
  });
  const [left, top, zoom] = state().view.split(",").map(Number);
  const chosen = t.at.get(state().memory);
  if (zoom) t.map.look({ x: left, y: top, zoom }, false);
  else if (chosen !== undefined) t.map.look({ x: x[chosen], y: y[chosen], zoom: 4 }, false);
}

/** On a narrow page, show the selection as a sheet below the map. */
function bring({ over, canvas }) {
  if (over.show()) canvas.parentElement.scrollIntoView({ block: "start" });
}

const remember = debounced(({ x, y, zoom }) => {
  const rounded = [x, y, zoom].map((v) => Number(v.toFixed(4)));
  turn({ view: zoom === 1 ? "" : rounded.join(",") });
}, 150);

/** Apply search, colour and selection of the address. */
async function look(t) {
  const { query } = state();
  if (document.activeElement !== t.input) t.input.value = query;
  t.matched = null;
  fill(t.found);
  if (query.trim())
    await pane(t.found, async () => {
      const { memories, notes } = await t.api.get("/atlas/matches", { q: query }, { channel: "atlas-search" });
      const points = memories.map(([layer, index]) => t.at.get(idOf({ layer, index })));
      t.matched = new Set(points.filter((i) => i !== undefined));
      const missing = memories.length - t.matched.size;
      fill(t.found, [
        `${grouped(memories.length)} found`,
        missing > 0 && `, ${grouped(missing)} of them not on the map`,
        notes.map((note) => ` ${note}`),
      ]);
    });
  redraw(t);
}

function code(model) {
  const { query } = state();
  if (!query) return ["from unembed.memories.value_map import value_map", "", "print(value_map(lm))"];
  const index = model.can.index ? "index" : "None";
  return ["from unembed.index.atlas import atlas_matches", "", `print(atlas_matches(lm, ${index}, ${literal(query)}))`];
}

const rowsOf = ({ atlas }) =>
  columns(
    [...atlas.x.keys()],
    [
      ...["layer", "index", "x", "y"].map((name) => [name, (i) => atlas[name][i]]),
      ["island", (i) => atlas.cluster[i]],
      ["kind", (i) => atlas.kinds[atlas.kind[i]]],
      ["density", (i) => atlas.density?.[i] ?? ""],
      ["top_tokens", (i) => JSON.stringify(atlas.top[i].map((id) => atlas.tokens[id]))],
    ],
  );
