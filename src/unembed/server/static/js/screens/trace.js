/** The first screen: how the next-token prediction forms, layer by layer, at every position. */
import { architecture } from "../architecture.js";
import { afterPaint, button, fill, h, within } from "../dom.js";
import { about, card, failure, pane, prompt, waiting } from "../parts.js";
import { QUESTION, questionQuery as question } from "../question.js";
import { activeEdits, asksAnew, differ, go, state, turn } from "../state.js";
import { span as timed } from "../timing.js";
import * as tour from "../tour.js";
import * as tray from "../tray.js";
import { dropPositionBeyond } from "../unread.js";
import { framed } from "./trace-aside.js";
import { attributionPane } from "./trace-attribution.js";
import { drawCell, drawSpan } from "./trace-cell.js";
import { gridPane, span } from "./trace-grid.js";
import { predictionPane } from "./trace-prediction.js";
import { promptPane } from "./trace-prompt.js";
import { pinned, race as raceOf } from "./trace-race.js";
import { METRICS } from "./trace-rows.js";

/** Entropies are fetched in advance when they cost fewer logits than this. */
const CHEAP = 2e7;
/** Changes that redraw the grid without a request. */
const DRAWN = ["stages", "metric", "diff", "flip", "fit", "columns", "events", "only", "alone"];

export function render(root, page) {
  const { api } = page;
  const t = { model: page.model, data: null, plain: null, view: null, spread: null, followed: null };
  let example = null;
  const promptBox = promptPane(page, run);
  const predicted = predictionPane(t);
  const model = h("div");
  const inspector = h("div.stack");
  const aside = framed(inspector);
  const lens = gridPane(t, { pin, onchosen: aside.show });
  const attribution = attributionPane(t, { api, live });
  const race = raceOf(t, {
    layer: lens.layer,
    trajectories: async (ids) =>
      !live() &&
      api.get(
        `/traces/${t.data.id}/trajectories`,
        { token: ids.map((id) => `#${id}`), position: t.view.position },
        { channel: "trajectories" },
      ),
  });
  const failed = h("div.failed");
  const whole = h("div.trace", [
    h("div.stack", [
      promptBox.el,
      failed,
      predicted.el,
      card("Where in the model", null, model, about("architecture")),
      lens.el,
      h("div.two", race.el, attribution.el),
    ]),
    aside.el,
  ]);
  fill(root, whole);

  function run(text) {
    const repeated = text === state().prompt && text === t.data?.prompt;
    go({ prompt: text, position: "", token: "", layer: "" });
    if (repeated) load();
  }

  /** The trace of the address; the bundled example when the address is empty. */
  async function read(name, drawn) {
    const now = state();
    const edits = activeEdits();
    const untouched = !now.prompt && !edits.length && now.position === "" && now.sort === "effect";
    if (untouched && page.isShipped && !QUESTION.some((part) => now[part])) {
      const bundled = await api.example();
      return [bundled, bundled.trace, null];
    }
    const text = prompt();
    const [traced, plain] = await Promise.all([
      api.trace(text, edits, { on: (part) => (name(), partly(part) && drawn()) }),
      edits.length ? api.trace(text, [], { channel: "trace-plain" }) : null,
    ]);
    return [null, traced, plain];
  }

  /** `anew`: the address names another trace, so the box is overwritten. */
  async function load({ anew = false } = {}) {
    const text = prompt();
    const [drawn, finished] = ["trace", "whole trace"].map(timed);
    const settled = waiting(lens.host, predicted.el, model, inspector, race.lines, attribution.el);
    const before = promptBox.value;
    const name = () => promptBox.show(before, anew); // in the frame of the grid, to save one
    t.spread = t.followed = null;
    try {
      const [bundled, traced, plain] = await read(name, drawn);
      if (prompt() !== text) return;
      name();
      answered();
      example = bundled; // only now: the trace of the example is not on the server
      Object.assign(t, { model: example ? example.model : page.model, data: traced, plain });
      page.tokens = t.data.tokens.map((one) => one.token);
      dropPositionBeyond(page.tokens.length);
      page.crumbs();
      promptBox.showTokens(t.data.tokens.length, t.model.n_ctx);
      lens.drawControls();
      draw();
      performance.mark("unembed-grid");
      drawn();
      finished();
      await position();
      spreads(); // slow, so the rest of the page does not wait for it
      if (!state().prompt && !example) turn({ prompt: text }); // unless another prompt was entered meanwhile
    } catch (error) {
      if (error.code !== "superseded") {
        name();
        lens.drop();
        whole.classList.add("unanswered"); // what is below belongs to another prompt
        if (error.code !== "invalid" || !(await offerWindow(text, error))) failure(failed, error, load);
        api.fail(error);
      }
    } finally {
      settled();
    }
  }

  /** The page shows the prompt of the address again. */
  function answered() {
    whole.classList.remove("unanswered");
    fill(failed);
  }

  /** For a prompt longer than the model's context, offer its first and last tokens; whether it is one. */
  async function offerWindow(text, error) {
    const { tokens, limit } = await api.get("/tokenize", { text }, { channel: "tokenize" });
    if (!limit || tokens.length <= limit) return false;
    promptBox.showTokens(tokens.length, limit);
    const windows = { first: tokens.slice(0, limit), last: tokens.slice(-limit) };
    const keep = ([end, remaining]) =>
      button(`Keep the ${end} ${limit} of ${tokens.length} tokens`, () => go({ prompt: remaining.join("") }), {
        class: "btn",
      });
    fill(failed, [
      h("div.warn.stack", [
        h("p", h("b", error.message), `: ${error.why}`),
        h("div.row", Object.entries(windows).map(keep)),
      ]),
    ]);
    return true;
  }

  /** Draw the layers received so far; whether all of them are drawn. */
  function partly(part) {
    if (state().diff) return false; // the difference needs two complete traces
    lens.host.classList.remove("waiting");
    answered();
    example = null;
    Object.assign(t, { model: page.model, data: part, plain: null, spread: null });
    draw();
    return part.stages.at(-1).ids.length === t.model.n_layers;
  }

  function draw() {
    lens.draw();
    whole.classList.toggle("no-events", !!state().events);
    const changed = t.plain ? t.data.prediction.filter((id, p) => id !== t.plain.prediction[p]).length : 0;
    fill(predicted.summary, [
      t.plain && `With these edits the prediction changes at ${changed} of ${t.data.tokens.length} positions.`,
      example && [
        "An example, traced with wren beforehand. ",
        button("Trace it here", live, { class: "quiet" }),
        " ",
        button("Take the six-step tour", tour.begin, { class: "quiet" }),
      ],
    ]);
  }

  /** Replace the bundled example by a live trace; whether the example was shown. */
  function live() {
    if (example) turn({ prompt: t.data.prompt });
    return !!example;
  }

  async function spreads() {
    const wanted = ["entropy", "divergence"].includes(state().metric);
    const cost = t.data.tokens.length * t.model.n_layers * t.model.d_vocab;
    if (t.spread || (!wanted && cost > CHEAP)) return;
    const what = wanted ? "Measuring entropies" : "";
    await pane(lens.legend, async () => {
      t.spread = example?.spread ?? (await api.get(`/traces/${t.data.id}/spread`, {}, { channel: "spread", what }));
      if (wanted) draw();
    });
  }

  /** The token whose probability shades the grid: the first pin, or else the target. */
  async function follow() {
    const id = pinned()[0] ?? t.followed?.id ?? t.view.target.id;
    if (state().metric !== "pinned" || String(id) === String(t.followed?.id) || live()) return;
    await pane(lens.legend, async () => {
      const found = await api.get(
        `/traces/${t.data.id}/trajectories`,
        { token: `#${id}` },
        { channel: "follow", what: "Following a token" },
      );
      t.followed = found.tokens[0];
      draw();
    });
  }

  /** The selection moves at once and the panes in the next frame, so that a repeated arrow key is not delayed. */
  let soon = 0;
  function layerPanes() {
    drawInspector();
    race.at(lens.layer());
  }

  /** Draw the panes below the grid, one frame after the selection, when the page has been laid out. */
  async function lower() {
    try {
      await Promise.all([attribution.draw(), race.draw(), follow()]); // the attribution changes the chart's width
    } catch (error) {
      return missed(race.lines, error);
    }
  }

  /** Post the prompt again if the trace is no longer in the server's cache; show any other failure. */
  function missed(el, error) {
    if (!error.message.startsWith("trace")) return failure(el, error, position);
    api.forget("trace ");
    return load();
  }

  /** One response has everything about a position, so that moving between layers sends no request. */
  async function position() {
    if (!t.data) return;
    const p = lens.at();
    const { sort } = state();
    const other = QUESTION.some((name) => state()[name]) || sort !== "effect";
    if ((p !== t.data.tokens.length - 1 || other) && live()) return;
    const settled = waiting(inspector, race.lines);
    const ended = timed("whole position");
    const [memories, listed] = t.model.can.memories ? [5, 20] : [0, 0];
    const wanted = { ...question(), position: p, order: sort, memories, listed, top: 10 };
    try {
      const view = example?.position ?? (await api.get(`/traces/${t.data.id}`, wanted, { channel: "position" }));
      if (p !== lens.at()) return;
      t.view = view;
      predicted.draw();
      drawInspector();
      afterPaint(() => t.view === view && lower().then(ended));
    } catch (error) {
      return missed(inspector, error);
    } finally {
      settled();
    }
  }

  function drawInspector() {
    aside.place();
    const mid = state().stage === "mid";
    const part = mid || !t.model.ffns[lens.layer()] ? "mixer" : "ffn";
    architecture(model, { model: t.model, view: t.view, at: { layer: lens.layer(), part } });
    const together = span(t);
    if (together) drawSpan(inspector, t, /** @type {[number, number]} */ (together));
    else drawCell(inspector, t, lens.layer(), mid);
  }

  /** Pin or unpin a token. */
  function pin(id) {
    const pins = pinned();
    turn({
      pins: (pins.includes(String(id)) ? pins.filter((x) => x !== String(id)) : [...pins, id].slice(-5)).join(" "),
    });
  }

  /** The action of a key, or undefined. */
  function pressed(key) {
    const [layer, at, n] = [lens.layer(), lens.at(), t.data.tokens.length];
    const toLayer = (to) => turn({ layer: String(within(to, t.model.n_layers)) });
    const toPosition = (to) => turn({ position: String(within(to, n)), token: "" });
    const named = METRICS.findIndex(([name]) => name === state().metric);
    const strongest = t.view.layers[layer].sub_updates[0];
    return {
      "[": () => toLayer(layer - 1),
      "]": () => toLayer(layer + 1),
      ",": () => toPosition(at - 1),
      ".": () => toPosition(at + 1),
      m: () => (turn({ metric: METRICS[(named + 1) % METRICS.length][0] }), lens.drawControls()),
      d: t.plain && (() => (turn({ diff: state().diff ? "" : "1" }), lens.drawControls())),
      e: () => turn({ events: state().events ? "" : "off" }),
      i: strongest && (() => tray.off(strongest)),
      p: () => pin(lens.token()),
      b: t.plain && (() => lens.peek(true)),
    }[key];
  }

  return {
    async update(now, before) {
      const differs = (...names) => differ(now, before, ...names);
      if (asksAnew(now, before)) {
        lens.pop.hide();
        return load({ anew: true });
      }
      if (!t.data) return;
      if (differs("alone")) aside.place();
      if (differs(...DRAWN) || (now.only && differs("layers"))) draw();
      if (differs("metric")) spreads();
      if (differs("position", "sort", ...QUESTION)) {
        const requested = position(); // sent before the selection is redrawn
        lens.select();
        return requested;
      }
      if (differs("layers")) lens.mark();
      if (differs("layer", "stage", "layers")) {
        lens.select();
        cancelAnimationFrame(soon);
        if (t.view) soon = afterPaint(layerPanes);
      }
      if (!t.view) return;
      if (differs("by", "effects")) await attribution.draw();
      if (differs("by", "pins", "scale")) await race.draw();
      if (differs("pins", "metric")) await follow();
    },
    key({ key }) {
      if (!t.view) return false;
      if (key === "Escape") return lens.pop.hide() || (!!span(t) && (turn({ layers: "", only: "" }), true));
      const act = pressed(key);
      act?.();
      return !!act;
    },
    /** The baseline is shown while its key is down. */
    keyup: ({ key }) => key === "b" && lens.peek(false),
    exported: () =>
      t.data && {
        name: "trace",
        json: { ...t.data, chosen: t.view },
        rows: [
          ["layer", "stage", "position", "token", "first_token", "probability", "rank_of_prediction"],
          ...lens
            .rows()
            .flatMap((row) =>
              row.cells.map((c, p) => [row.i, row.point, p, t.data.tokens[p].token, c.text, c.prob, c.rank]),
            ),
        ],
      },
    destroy() {
      aside.leave();
      lens.destroy();
    },
  };
}
