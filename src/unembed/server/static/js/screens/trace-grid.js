/** The logit lens card: grid, shading, overview of a long prompt, legend, table. */
import { boxes, button, fill, grouped, h, num, segmented, tickBox } from "../dom.js";
import * as grid from "../islands/grid.js";
import * as minimap from "../islands/minimap.js";
import { token, visible } from "../islands/tokens.js";
import { about, asTable, card, choice, layerHere, positionHere } from "../parts.js";
import { go, state, turn } from "../state.js";
import { popover } from "./trace-pop.js";
import { greatest, METRICS, quietRuns, ROLES, roleOf, rowsOf } from "./trace-rows.js";

/**
 * The selected range of layers, or null.
 * @returns {[number, number] | null} the lowest and the highest
 */
export function span(t) {
  const parts = /^(\d+)-(\d+)$/.exec(state().layers);
  const [a, b] = parts ? parts.slice(1).map(Number) : [1, 0];
  return a < b && b < t.model.n_layers ? [a, b] : null;
}

/** Whether all columns fit the width: by choice, or in a narrow window. */
const fits = () => (state().fit ? state().fit === "1" : innerWidth < 640);

const pinnedColumns = () => state().columns.split(" ").filter(Boolean).map(Number);
function pinColumn(c) {
  const now = pinnedColumns();
  const next = now.includes(c) ? now.filter((x) => x !== c) : [...now, c].slice(-4);
  turn({ columns: next.sort((a, b) => a - b).join(" ") });
}

/** The layer that a row selects: of folded layers the last, of the embedding's row the first. */
const layerOf = (row) => Math.max(0, row.n);

/** The runs of quiet layers that the grid folds; none if the user wants all layers or compares with the baseline. */
const runsOf = ({ data }) => (state().rows || state().only || state().diff ? [] : quietRuns(data));

/** The name of each way to read the residual stream as tokens. */
const LENSES = { jacobian: "Jacobian lens", final: "Logit lens", raw: "Logit lens", frozen: "Logit lens" };

/** Make the card; `pin(id)` pins or unpins a token; `onchosen()` is called when the user selects a cell. */
export function gridPane(t, { pin, onchosen }) {
  const [controls, host, overview, legend, table] = boxes("div.row", "div", "div", "div.legend", "div");
  const pop = popover(pin);
  const title = h("span", "Lens");
  const layer = () => layerHere(t.model.n_layers);
  const at = () => positionHere(t.data.tokens.length);
  /** `rows` of the grid; `peeking`: whether they are those of the baseline. */
  /** @type {any} */ const own = { rows: [], island: null, map: null, peeking: false, overview, pop, pin, onchosen };
  const covers = (one) => one.first <= layer() && layer() <= one.n;
  const isHere = (one) => covers(one) && (one.point === "resid_post") === (state().stage !== "mid");
  const here = () => {
    const row = own.rows.findIndex(isHere);
    return [row < 0 ? own.rows.findIndex(covers) : row, at()];
  };
  const mark = () => {
    const ends = span(t);
    const inside = ends ? own.rows.flatMap((one, i) => (one.n >= ends[0] && one.first <= ends[1] ? [i] : [])) : [];
    own.island?.mark(inside.length ? [inside[0], inside.at(-1)] : null);
  };
  function draw() {
    title.textContent = LENSES[t.data.provenance?.basis] ?? "Lens"; // the first part of a stream does not name it
    own.rows = allRows(t, own, runsOf(t));
    const next = gridData(t, own.rows, here());
    if (own.island) own.island.update(next);
    else {
      const el = h("div");
      fill(host, el);
      own.island = grid.mount(el, next, gridOptions(t, own));
    }
    mark();
    fill(legend, legendOf(t));
    fill(table, tableOf(t, own));
  }
  function drop() {
    own.island?.destroy();
    own.island = null;
  }
  return {
    el: card(title, [controls], host, overview, h("div.row", legend), h("div.row.folds", about("grid"), table)),
    host,
    legend,
    pop,
    layer,
    at,
    draw,
    mark,
    /** Remove the grid, because a failure is shown in its place. */
    drop,
    drawControls: () => fill(controls, [controlsOf(t, () => pinColumn(at()))]),
    select: () => own.island?.select(...here()),
    /** The token of the chosen cell. */
    token: () => (own.rows.find(isHere) || own.rows[0]).cells[at()].id,
    /** Show the baseline, or the edited trace again. */
    peek(on) {
      if (own.peeking === on || !t.plain) return;
      own.peeking = on;
      draw();
    },
    rows: () => allRows(t, own),
    destroy: () => (pop.hide(), own.island?.destroy()),
  };
}

/** The rows of the layers that the user wants; the layers of each run in `runs` share a row. */
const allRows = (t, { peeking }, runs) => rowsOf(t, peeking ? t.plain : t.data, state().only ? span(t) : null, runs);

function gridData({ data }, rows, at) {
  const { tokens } = data;
  const columns = tokens.map((one, p) => ({ text: one.token, next: tokens[p + 1]?.token, cls: roleOf(data, p) }));
  const pinned = pinnedColumns().filter((c) => c < tokens.length);
  return { rows, columns, corner: "layer \\ token", fit: fits(), pinned, at };
}

const gridOptions = (t, own) => ({
  label: "Most likely next token after every layer and position",
  onselect(r, c) {
    turn({
      position: String(c),
      layer: String(layerOf(own.rows[r])),
      stage: own.rows[r].point === "resid_mid" ? "mid" : "post",
      token: String(c) === state().position ? state().token : "",
    });
    own.onchosen();
    own.pop.hide(); // the inspector shows more, and in a narrow window it covers this place
  },
  onopen: (r) =>
    own.rows[r].isFolded ? turn({ rows: "all" }) : go({ screen: "layer", layer: String(layerOf(own.rows[r])) }),
  onpin: (r, c) => own.pin(own.rows[r].cells[c].id),
  onhover: (r, c, cell) => own.pop.over(t, own.rows[r], c, cell),
  onrange(first, last, row) {
    const ends = first === null ? [] : [own.rows[first], own.rows[last]];
    const low = Math.min(...ends.map((one) => Math.max(0, one.first)));
    const high = Math.max(...ends.map(layerOf));
    if (low >= high) return state().layers && turn({ layers: "", only: "" });
    turn({ layers: `${low}-${high}`, layer: String(layerOf(own.rows[row])), stage: "post" });
  },
  onpincolumn: pinColumn,
  /** The overview is shown when the grid has more columns than fit. */
  onview(left, width, whole) {
    const { overview, rows } = own;
    overview.hidden = whole <= width + 1;
    if (overview.hidden) return;
    if (!own.map) own.map = minimap.mount(overview, { rows }, { onpick: (share) => own.island.centre(share) });
    else if (own.map.rows !== rows) own.map.update({ rows });
    own.map.rows = rows;
    own.map.view(left, width, whole);
  },
});

function controlsOf(t, pinThis) {
  const box = (name, text) => tickBox(text, !!state()[name], (on) => turn({ [name]: on ? "1" : "" }));
  return [
    segmented("Shade by", METRICS, state().metric, (metric) => turn({ metric })),
    t.plain && box("diff", "What the edits changed"),
    h("details.drop", h("summary", "Layout"), [
      h("div.stack", [
        quietRuns(t.data).length > 0 && tickBox("All layers", !!state().rows, (on) => turn({ rows: on ? "all" : "" })),
        t.data.stages.length > 1 && choice("Stages", "stages", { post: "After FFN", both: "Attention too" }),
        box("flip", "First layer on top"),
        tickBox("Fit the width", fits(), (on) => turn({ fit: on ? "1" : "0" })),
        button("Pin column", pinThis, "quiet", {
          title: "keep the selected column in view, or let it go (Shift and a click on its token)",
        }),
      ]),
    ]),
  ];
}

function tableOf(t, own) {
  const { metric } = state();
  const head = ["layer", "stage", "position", "token", "first", "probability", "rank of the final prediction"];
  if (greatest(t) !== null) head.push(`${metric} (nats)`);
  if (metric === "pinned" && t.followed) head.push(`probability of ${visible(t.followed.token)}`);
  const line = (row) => (c, p) => {
    const stage = row.title.replace(/^Layer \d+ /, "").toLowerCase();
    const more = [c.nats, c.followed].filter((x) => x !== null);
    return [row.i, stage, p, visible(t.data.tokens[p].token), visible(c.text), c.prob, c.rank, ...more];
  };
  return asTable(head, () => allRows(t, own).flatMap((row) => row.cells.map(line(row))));
}

/** Whose messages the tokens of a conversation are from, in words. */
function spoken({ roles }) {
  const all = [...new Set(roles)].filter(Boolean);
  return all.map((role) => ROLES[role] ?? role).join(", ");
}

function legendOf(t) {
  const ramp = h("i", { "aria-hidden": "true" }, [Array.from({ length: 17 }, (_, q) => h("b", { class: `q${q}` }))]);
  const most = greatest(t);
  const { metric, events, diff } = state();
  const of = metric === "pinned" && t.followed && h("span", "of ", token(t.followed.token));
  let scale = ["0 %", ramp, "100 % (square root)", of];
  if (most !== null) scale = ["0", ramp, `${num(most)} nats`];
  else if (metric === "rank") scale = [`rank ${grouped(t.model.d_vocab)}`, ramp, "rank 1 (logarithmic)"];
  const [quiet] = runsOf(t);
  const isMassive = Object.keys(t.data.massive ?? {}).length > 0;
  const folded = "quiet layers: the rank of the prompt's prediction moves least (Enter unfolds them)";
  /** @type {[string, string, boolean][]} */
  const signs = [
    [`Layers ${quiet?.join("–")}`, folded, !!quiet],
    ["▢", "top-1 is the final prediction", true],
    ["│", "the same token as in the row before", true],
    ["◆", "saturation, by the logit lens", !events && t.model.can.events],
    ["✕", "elimination, by the logit lens", !events && t.model.can.events],
    ["▲▼", "rank of the final prediction changes eightfold, by the logit lens", !events],
    ["▣", "the edits change the token", diff && t.plain],
    ["▒", "the edits can reach it", diff && t.plain],
    ["abc", "in italics: massive activations (over 10 times the usual length), the reading says little", isMassive],
    ["▔", `from the ${spoken(t.data)}; the other tokens are the chat template's`, !!t.data.roles],
  ];
  const sign = ([mark, text, on]) => on && h("span.sign", h("b", { "aria-hidden": "true" }, mark), ` ${text}`);
  return [scale, signs.map(sign)];
}
