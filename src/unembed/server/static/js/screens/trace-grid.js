/** The logit lens card: grid, shading, overview of a long prompt, legend, table. */
import { button, fill, h, num, segmented, tickBox } from "../dom.js";
import * as grid from "../islands/grid.js";
import * as minimap from "../islands/minimap.js";
import { token, visible } from "../islands/tokens.js";
import { about, asTable, card, layerHere, positionHere } from "../parts.js";
import { go, state, turn } from "../state.js";
import { popover } from "./trace-pop.js";
import { greatest, METRICS, rowsOf } from "./trace-rows.js";

/** The selected range of layers, [lowest, highest], or null. */
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

/** `pin(id)` pins or unpins a token; `onchosen()` is called when a cell is selected. */
export function gridPane(t, { pin, onchosen }) {
  const controls = h("div.row");
  const host = h("div");
  const overview = h("div");
  const legend = h("div.legend");
  const table = h("div");
  const pop = popover(pin);
  let rows = [];
  let island = null;
  let map = null;
  let peeking = false;

  const layer = () => layerHere(t.model.n_layers);
  const at = () => positionHere(t.data.tokens.length);
  const isHere = (one) => one.n === layer() && (one.point === "resid_post") === (state().stage !== "mid");
  function here() {
    const row = rows.findIndex(isHere);
    return [row < 0 ? rows.findIndex((one) => one.n === layer()) : row, at()];
  }

  /** The layer of a row; of the embedding's, the first. */
  const lowest = (r) => String(Math.max(0, rows[r].n));

  function choose(r, c) {
    turn({
      position: String(c),
      layer: lowest(r),
      stage: rows[r].point === "resid_mid" ? "mid" : "post",
      token: String(c) === state().position ? state().token : "",
    });
    onchosen();
    pop.hide(); // the inspector shows more, and in a narrow window it covers this place
  }

  function chooseRows(first, last, row) {
    const ends = first === null ? [0, 0] : [first, last].map((r) => Number(lowest(r))).sort((a, b) => a - b);
    if (ends[0] === ends[1]) return state().layers && turn({ layers: "", only: "" });
    turn({ layers: ends.join("-"), layer: lowest(row), stage: "post" });
  }

  function mark() {
    const ends = span(t);
    const inside = ends ? rows.flatMap((one, i) => (one.n >= ends[0] && one.n <= ends[1] ? [i] : [])) : [];
    island?.mark(inside.length ? [inside[0], inside.at(-1)] : null);
  }

  /** The overview is shown when the grid has more columns than fit. */
  function inView(left, width, whole) {
    overview.hidden = whole <= width + 1;
    if (overview.hidden) return;
    if (!map) map = minimap.mount(overview, { rows }, { onpick: (share) => island.centre(share) });
    else if (map.rows !== rows) map.update({ rows });
    map.rows = rows;
    map.view(left, width, whole);
  }

  function drawControls() {
    const box = (name, text) => tickBox(text, !!state()[name], (on) => turn({ [name]: on ? "1" : "" }));
    fill(controls, [
      segmented("Shade by", METRICS, state().metric, (metric) => turn({ metric })),
      t.data.stages.length > 1 &&
        segmented(
          "Stages",
          [
            ["post", "After FFN"],
            ["both", "Attention too"],
          ],
          state().stages,
          (stages) => turn({ stages }),
        ),
      box("flip", "First layer on top"),
      tickBox("Fit the width", fits(), (on) => turn({ fit: on ? "1" : "0" })),
      button("Pin column", () => pinColumn(at()), {
        class: "quiet",
        title: "keep the selected column in view, or let it go (Shift and a click on its token)",
      }),
      t.plain && box("diff", "What the edits changed"),
    ]);
  }

  function draw() {
    rows = rowsOf(t, peeking ? t.plain : t.data, state().only ? span(t) : null);
    const { tokens } = t.data;
    const next = {
      rows,
      columns: tokens.map((one, p) => ({ text: one.token, next: tokens[p + 1]?.token })),
      corner: "layer \\ token",
      fit: fits(),
      pinned: pinnedColumns().filter((c) => c < tokens.length),
      at: here(),
    };
    if (!island) {
      const el = h("div");
      fill(host, el);
      island = grid.mount(el, next, {
        label: "Most likely next token after every layer and position",
        onselect: choose,
        onopen: (r) => go({ screen: "layer", layer: lowest(r) }),
        onpin: (r, c) => pin(rows[r].cells[c].id),
        onhover: (r, c, cell) => pop.over(t, rows[r], c, cell),
        onrange: chooseRows,
        onpincolumn: pinColumn,
        onview: inView,
      });
    } else island.update(next);
    mark();
    drawLegend();
    drawTable();
  }

  function drawTable() {
    const more = (c) => [c.nats, c.followed].filter((x) => x !== null);
    const named = [
      greatest(t) !== null && `${state().metric} (nats)`,
      state().metric === "pinned" && t.followed && `probability of ${visible(t.followed.token)}`,
    ].filter(Boolean);
    fill(table, [
      asTable(
        "As a table",
        ["layer", "stage", "position", "token", "first", "probability", "rank of the final prediction", ...named],
        () =>
          rows.flatMap((row) =>
            row.cells.map((c, p) => [
              row.i,
              row.title.replace(/^Layer \d+ /, "").toLowerCase(),
              p,
              visible(t.data.tokens[p].token),
              visible(c.text),
              c.prob,
              c.rank,
              ...more(c),
            ]),
          ),
      ),
    ]);
  }

  function drawLegend() {
    const ramp = h("i", { "aria-hidden": "true" }, [Array.from({ length: 17 }, (_, q) => h("b", { class: `q${q}` }))]);
    const most = greatest(t);
    const { metric, events, diff } = state();
    const scale =
      most !== null
        ? ["0", ramp, `${num(most)} nats`]
        : metric === "rank"
          ? [`rank ${t.model.d_vocab.toLocaleString("en")}`, ramp, "rank 1 (logarithmic)"]
          : [
              "0 %",
              ramp,
              "100 % (square root)",
              metric === "pinned" && t.followed && h("span", "of ", token(t.followed.token)),
            ];
    /** @type {[string, string, boolean][]} */
    const signs = [
      ["▢", "top-1 is the final prediction", true],
      ["│", "the same token as in the row before", true],
      ["◆", "saturation", !events && t.model.can.events],
      ["✕", "elimination", !events && t.model.can.events],
      ["▲▼", "rank of the final prediction changes eightfold", !events],
      ["▣", "the edits change the token", diff && t.plain],
      ["▒", "the edits can reach it", diff && t.plain],
    ];
    fill(legend, [
      scale,
      signs.map(([sign, text, on]) => on && h("span.sign", h("b", { "aria-hidden": "true" }, sign), ` ${text}`)),
    ]);
  }

  return {
    el: card("Logit lens", controls, host, overview, h("div.row", legend), about("grid"), table),
    host,
    legend,
    pop,
    layer,
    at,
    draw,
    drawControls,
    mark,
    select: () => island?.select(...here()),
    /** The token of the chosen cell. */
    token: () => (rows.find(isHere) || rows[0]).cells[at()].id,
    /** Show the baseline, or the edited trace again. */
    peek(on) {
      if (peeking === on || !t.plain) return;
      peeking = on;
      draw();
    },
    rows: () => rows,
    /** Remove the grid, because a failure is shown in its place. */
    drop() {
      island?.destroy();
      island = null;
    },
    destroy() {
      pop.hide();
      island?.destroy();
    },
  };
}
