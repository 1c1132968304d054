/** The first screen: how the next-token prediction forms, layer by layer, at every position. */
import { architecture } from "../architecture.js";
import { afterPaint, button, fill, h, namedBoxes, within } from "../dom.js";
import { about, card, failure, pane, waiting } from "../parts.js";
import { QUESTION, questionQuery } from "../question.js";
import { asksAnew, differ, MOST_PINS, pinned, state, turn } from "../state.js";
import { span as timed } from "../timing.js";
import * as tour from "../tour.js";
import * as tray from "../tray.js";
import { framed } from "./trace-aside.js";
import { attributionPane } from "./trace-attribution.js";
import { drawCell, drawSpan } from "./trace-cell.js";
import { flowCard } from "./trace-flow.js";
import { gridPane, span } from "./trace-grid.js";
import { load } from "./trace-load.js";
import { predictionPane } from "./trace-prediction.js";
import { promptPane } from "./trace-prompt.js";
import { race as raceOf } from "./trace-race.js";
import { METRICS } from "./trace-rows.js";

/** Entropies are loaded in advance if fewer logits than this are needed. */
const CHEAP = 2e7;
/** Changes that redraw the grid without a request. */
const DRAWN = ["stages", "metric", "diff", "flip", "fit", "columns", "events", "only", "rows", "alone"];

export function render(root, page) {
  const t = begun(page);
  const trajectories = (ids) => (live(t) ? null : followed(t, ids, "trajectories", { position: t.view.position }));
  t.promptBox = promptPane(page, () => t.data && load(t));
  t.predicted = predictionPane(t);
  t.lens = gridPane(t, { pin, onchosen: t.aside.show });
  t.attribution = attributionPane(t, { api: page.api, live: () => live(t) });
  t.race = raceOf(t, { layer: t.lens.layer, trajectories });
  t.flow = flowCard(page, { position: () => t.view?.position ?? -1, live: () => live(t) });
  t.whole = h("div.trace", [
    h("div.stack", [
      h("h1.hidden", "Trace"),
      t.promptBox.el,
      t.failed,
      t.predicted.el,
      card("Where in the model", about("architecture"), t.where),
      t.flow.el,
      t.lens.el,
      h("div.two", t.attribution.el, t.race.el),
    ]),
    t.aside.el,
  ]);
  fill(root, t.whole);
  return {
    update: (now, before) => update(t, now, before),
    key: ({ key }) => act(t, key),
    /** The baseline is shown while its key is down. */
    keyup: ({ key }) => key === "b" && t.lens.peek(false),
    exported: () => t.data && { name: "trace", json: { ...t.data, chosen: t.view }, rows: rowsOf(t) },
    destroy() {
      t.aside.leave();
      t.flow.destroy();
      t.lens.destroy();
    },
  };
}

/**
 * The state of the screen. `data`: the trace; `plain`: the same without edits; `view`: what the API says of its position;
 * `example`: the bundled example, while it is shown; `spread`: entropies; `followed`: the token whose probability shades
 * the grid.
 * @returns {any}
 */
function begun(page) {
  const panes = namedBoxes({ where: "div", inspector: "div.stack", failed: "div.failed" });
  const nothing = { data: null, plain: null, view: null, example: null, spread: null, followed: null, soon: 0 };
  const t = { page, model: page.model, ...nothing, ...panes, aside: framed(panes.inspector) };
  return Object.assign(t, { draw: () => draw(t), position: () => position(t), spreads: () => spreads(t) });
}

function draw(t) {
  const { plain, data, example } = t;
  t.lens.draw();
  t.whole.classList.toggle("no-events", !!state().events);
  const changed = plain ? data.prediction.filter((id, p) => id !== plain.prediction[p]).length : 0;
  fill(t.predicted.summary, [
    plain && `With these edits the prediction changes at ${changed} of ${data.tokens.length} positions.`,
    example && [
      "An example, traced with wren beforehand. ",
      button("Trace it here", () => live(t), "quiet"),
      " ",
      button("Take the six-step tour", tour.begin, "quiet"),
    ],
  ]);
}

/** Replace the bundled example by a live trace; false if the example is not shown. */
function live({ example, data }) {
  if (example) turn({ prompt: data.prompt });
  return !!example;
}

async function spreads(t) {
  const { data, model, lens, page } = t;
  const wanted = ["entropy", "divergence"].includes(state().metric);
  const cost = data.tokens.length * model.n_layers * model.d_vocab;
  if (t.spread || (!wanted && cost > CHEAP)) return;
  const what = wanted ? "Measuring entropies" : "";
  await pane(lens.legend, async () => {
    const path = `/traces/${data.id}/spread`;
    t.spread = t.example?.spread ?? (await page.api.get(path, {}, { channel: "spread", what }));
    if (wanted) draw(t);
  });
}

const followed = ({ page, data }, ids, channel, more, what = "") =>
  page.api.get(`/traces/${data.id}/trajectories`, { token: ids.map((id) => `#${id}`), ...more }, { channel, what });

/** Load the token whose probability shades the grid: the first pinned one, or else the target. */
async function follow(t) {
  const id = pinned()[0] ?? t.followed?.id ?? t.view.target.id;
  if (state().metric !== "pinned" || String(id) === String(t.followed?.id) || live(t)) return;
  await pane(t.lens.legend, async () => {
    t.followed = (await followed(t, [id], "follow", {}, "Following a token")).tokens[0];
    draw(t);
  });
}

/** Draw the panes below the grid, which is called one frame after the selection so as not to delay it. */
const lower = (t) =>
  Promise.all([t.attribution.draw(), t.race.draw(), follow(t)]) // the attribution changes the chart's width
    .catch((error) => missed(t, t.race.lines, error));

/** Post the prompt again if the trace is no longer in the server's cache; show any other failure. */
function missed(t, el, error) {
  if (!error.message.startsWith("trace")) return failure(el, error, t.position);
  t.page.api.forget("trace ");
  return load(t);
}

/** Load the position; the response has all its layers, so that moving between layers sends no request. */
async function position(t) {
  const { data, model, lens, inspector, race } = t;
  if (!data) return;
  const p = lens.at();
  const { sort } = state();
  const other = QUESTION.some((name) => state()[name]) || sort !== "effect";
  if ((p !== data.tokens.length - 1 || other) && live(t)) return;
  const settled = waiting(inspector, race.lines);
  const ended = timed("whole position");
  const [memories, listed] = model.can.memories ? [5, 20] : [0, 0];
  const wanted = { ...questionQuery(), position: p, order: sort, memories, listed, top: 10 };
  try {
    const how = { channel: "position", what: "Reading the position" };
    const view = t.example?.position ?? (await t.page.api.get(`/traces/${data.id}`, wanted, how));
    if (p !== lens.at()) return;
    t.view = view;
    t.predicted.draw();
    drawInspector(t);
    afterPaint(() => t.view === view && lower(t).then(ended));
  } catch (error) {
    return missed(t, inspector, error);
  } finally {
    settled();
  }
}

function drawInspector(t) {
  const { model, view, inspector, lens } = t;
  t.aside.place();
  const mid = state().stage === "mid";
  const part = mid || !model.ffns[lens.layer()] ? "mixer" : "ffn";
  architecture(t.where, { model, view, at: { layer: lens.layer(), part } });
  const together = span(t);
  if (together) drawSpan(inspector, t, together);
  else drawCell(inspector, t, lens.layer(), mid);
}

function pin(id) {
  const pins = pinned();
  const one = String(id);
  turn({ pins: (pins.includes(one) ? pins.filter((x) => x !== one) : [...pins, one].slice(-MOST_PINS)).join(" ") });
}

async function update(t, now, before) {
  const { lens, race, attribution } = t;
  const differs = (...names) => differ(now, before, ...names);
  if (asksAnew(now, before) || differs("position", ...QUESTION)) t.flow.reset();
  if (asksAnew(now, before)) {
    lens.pop.hide();
    return load(t, { anew: true });
  }
  if (!t.data) return;
  if (differs("alone")) t.aside.place();
  if (differs(...DRAWN) || (now.only && differs("layers"))) draw(t);
  if (differs("metric")) spreads(t);
  if (differs("position", "sort", ...QUESTION)) {
    const requested = position(t); // sent before the selection is redrawn
    lens.select();
    return requested;
  }
  if (differs("layers")) lens.mark();
  if (differs("layer", "stage", "layers")) {
    lens.select();
    // the selection moves at once and the panes in the next frame, so that a repeated arrow key is not delayed
    cancelAnimationFrame(t.soon);
    if (t.view) t.soon = afterPaint(() => (drawInspector(t), race.at(lens.layer())));
  }
  if (!t.view) return;
  if (differs("by", "effects")) await attribution.draw();
  if (differs("by", "pins", "scale")) await race.draw();
  if (differs("pins", "metric")) await follow(t);
}

function act(t, key) {
  if (!t.view) return false;
  if (key === "Escape") return t.lens.pop.hide() || (!!span(t) && (turn({ layers: "", only: "" }), true));
  const run = pressed(t, key);
  run?.();
  return !!run;
}

function pressed({ lens, data, model, view, plain }, key) {
  const [layer, at] = [lens.layer(), lens.at()];
  const toLayer = (to) => turn({ layer: String(within(to, model.n_layers)) });
  const toPosition = (to) => turn({ position: String(within(to, data.tokens.length)), token: "" });
  const named = METRICS.findIndex(([name]) => name === state().metric);
  const [strongest] = view.layers[layer].sub_updates;
  return {
    "[": () => toLayer(layer - 1),
    "]": () => toLayer(layer + 1),
    ",": () => toPosition(at - 1),
    ".": () => toPosition(at + 1),
    m: () => (turn({ metric: METRICS[(named + 1) % METRICS.length][0] }), lens.drawControls()),
    d: plain && (() => (turn({ diff: state().diff ? "" : "1" }), lens.drawControls())),
    e: () => turn({ events: state().events ? "" : "off" }),
    i: strongest && (() => tray.off(strongest)),
    p: () => pin(lens.token()),
    b: plain && (() => lens.peek(true)),
  }[key];
}

function rowsOf({ lens, data }) {
  const line = (row) => (c, p) => [row.i, row.point, p, data.tokens[p].token, c.text, c.prob, c.rank];
  const head = ["layer", "stage", "position", "token", "first_token", "probability", "rank_of_prediction"];
  return [head, ...lens.rows().flatMap((row) => row.cells.map(line(row)))];
}
