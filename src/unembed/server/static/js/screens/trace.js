/** The first screen: how the next-token prediction forms, layer by layer, at every position. */
import { architecture } from "../architecture.js";
import { afterPaint, button, fill, h, num, percent, segmented, signed, tickBox, within } from "../dom.js";
import * as grid from "../islands/grid.js";
import * as minimap from "../islands/minimap.js";
import { token, visible } from "../islands/tokens.js";
import { isLabelled, nameOf } from "../names.js";
import {
  about,
  asTable,
  attribution,
  card,
  failure,
  layerHere,
  link,
  pane,
  positionHere,
  prompt,
  waiting,
} from "../parts.js";
import { inWords, QUESTION, asked as question, questionPicker } from "../question.js";
import { activeEdits, asksAnew, differ, go, idOf, state, turn } from "../state.js";
import { span as timed } from "../timing.js";
import * as tour from "../tour.js";
import * as tray from "../tray.js";
import { ORDERS, updatesTable } from "../updates.js";
import { framed } from "./trace-aside.js";
import { drawCell, drawSpan } from "./trace-cell.js";
import { popover } from "./trace-pop.js";
import { promptPane } from "./trace-prompt.js";
import { pinned, race as raceOf } from "./trace-race.js";
import { greatest, METRICS, rowsOf } from "./trace-rows.js";

/** Entropies are fetched before they are asked for when it costs less than this many scores. */
const CHEAP = 2e7;

export function render(root, page) {
  const { api } = page;
  const t = { model: page.model, data: null, plain: null, view: null, spread: null, followed: null };
  let example = null;
  let peeking = false;
  let island = null;
  let rows = [];
  const asked = promptPane(page, run);
  const says = h("div", { class: "says", "aria-label": "Predictions of the next token" });
  const found = h("ol", { class: "findings", "aria-label": "Findings" });
  const described = h("ul", { class: "described", "aria-label": "Described memories behind the prediction" });
  const why = questionPicker();
  const model = h("div");
  const controls = h("div", { class: "row" });
  const host = h("div");
  const overview = h("div");
  let map = null;
  const legend = h("div", { class: "legend" });
  const table = h("div");
  const books = h("div");
  const inspector = h("div", { class: "stack" });
  const summary = h("p", { class: "soft" });
  const layer = () => layerHere(t.model.n_layers);
  const race = raceOf(t, {
    layer,
    ask: async (ids) =>
      !live() &&
      api.get(
        `/traces/${t.data.id}/trajectories`,
        { token: ids.map((id) => `#${id}`), position: t.view.position },
        { channel: "trajectories" },
      ),
  });
  const aside = framed(inspector);
  const pop = popover(pin);
  const order = segmented(
    "Rank memories by",
    ["effect", "deviation"].map((name) => [name, ...ORDERS[name]]),
    state().sort,
    (sort) => turn({ sort }),
  );

  fill(
    root,
    h(
      "div",
      { class: "trace" },
      h(
        "div",
        { class: "stack" },
        asked.el,
        h("section", { class: "prediction", "aria-label": "Prediction" }, says, why.el, found, described, summary),
        card("Where in the model", null, model, about("architecture")),
        card("Logit lens", controls, host, overview, h("div", { class: "row" }, legend), about("grid"), table),
        h("div", { class: "two" }, race.el, card("Logit attribution", [by(), order], books)),
      ),
      aside.el,
    ),
  );

  function by() {
    return segmented(
      "Split by",
      [
        ["component", "Component"],
        ["head", "Head"],
        ...(page.model.can.memories ? [["memory", "Memory"]] : []),
        ["source", "Source"],
      ],
      state().by,
      (value) => turn({ by: value }),
    );
  }

  function run(text) {
    const repeated = text === state().prompt && text === t.data?.prompt;
    go({ prompt: text, position: "", token: "", layer: "" });
    if (repeated) load();
  }

  /** `anew`: the address asks for another trace, whatever stands in the box. */
  async function load({ anew = false } = {}) {
    const now = state();
    const text = prompt();
    const [drawn, whole] = ["trace", "whole trace"].map(timed);
    const settled = waiting(host);
    const before = asked.value;
    const name = () => asked.show(before, anew); // with the grid: a frame of its own would take time from the model
    t.spread = t.followed = null;
    try {
      const edits = activeEdits();
      const untouched =
        !now.prompt &&
        !edits.length &&
        now.position === "" &&
        !QUESTION.some((name) => now[name]) &&
        now.sort === "effect";
      const bundled = untouched && page.isShipped ? await api.example() : null;
      const [traced, plain] = bundled
        ? [bundled.trace, null]
        : await Promise.all([
            api.trace(text, edits, { on: (part) => (name(), partly(part) && drawn()) }),
            edits.length ? api.trace(text, [], { channel: "trace-plain" }) : null,
          ]);
      if (prompt() !== text) return;
      name();
      example = bundled; // not before its data are here or gone: the server does not know the trace of the example
      t.model = example ? example.model : page.model;
      t.data = traced;
      t.plain = plain;
      page.tokens = t.data.tokens.map((one) => one.token);
      page.crumbs();
      asked.showTokens(t.data.tokens.length, t.model.n_ctx);
      drawControls();
      drawGrid();
      performance.mark("unembed-grid");
      drawn();
      whole();
      await position();
      spreads(); // reads the whole stream once more, which the rest of the page does not wait for
      if (!state().prompt && !example) turn({ prompt: text }); // unless another one was entered meanwhile
    } catch (error) {
      if (error.code !== "superseded") {
        name();
        failure(host, error, load);
        island = null;
        if (error.code === "invalid") await offerEnd(text);
        api.fail(error);
      }
    } finally {
      settled();
    }
  }

  /** A prompt that the model's context does not hold: offer its end. */
  async function offerEnd(text) {
    const { tokens, limit } = await api.get("/tokenize", { text }, { channel: "tokenize" });
    if (limit && tokens.length > limit)
      host.append(
        button(
          `Keep the last ${limit} of ${tokens.length} tokens`,
          () => go({ prompt: tokens.slice(-limit).join("") }),
          {
            class: "btn",
          },
        ),
      );
  }

  /** The layers that have been read, while the others still are. Whether all are there, but for what the events need. */
  function partly(part) {
    if (state().diff) return false; // the difference needs two whole traces
    host.classList.remove("waiting");
    example = null;
    t.model = page.model;
    t.data = part;
    t.plain = t.spread = null;
    drawGrid();
    return part.stages.at(-1).ids.length === t.model.n_layers;
  }

  /** Ask the served model what the example does not hold. Whether the example was shown. */
  function live() {
    if (example) turn({ prompt: t.data.prompt });
    return !!example;
  }

  async function spreads() {
    const wanted = ["entropy", "divergence"].includes(state().metric);
    const cost = t.data.tokens.length * t.model.n_layers * t.model.d_vocab;
    if (t.spread || (!wanted && cost > CHEAP)) return;
    await pane(legend, async () => {
      t.spread = example
        ? example.spread
        : await api.get(
            `/traces/${t.data.id}/spread`,
            {},
            { channel: "spread", what: wanted ? "Measuring entropies" : "" },
          );
      if (wanted) drawGrid();
    });
  }

  /** The token whose probability shades the grid: the first pin, or the target when it was first asked for. */
  async function follow() {
    const id = pinned()[0] ?? t.followed?.id ?? t.view.target.id;
    if (state().metric !== "pinned" || String(id) === String(t.followed?.id) || live()) return;
    await pane(legend, async () => {
      t.followed = (
        await api.get(
          `/traces/${t.data.id}/trajectories`,
          { token: `#${id}` },
          { channel: "follow", what: "Following a token" },
        )
      ).tokens[0];
      drawGrid();
    });
  }

  /** Whether all columns share the width: chosen, or in a narrow window. */
  const fits = () => (state().fit ? state().fit === "1" : innerWidth < 640);
  const pinnedColumns = () =>
    state()
      .columns.split(" ")
      .filter(Boolean)
      .map(Number)
      .filter((c) => c < t.data.tokens.length);
  function pinColumn(c) {
    const now = pinnedColumns();
    turn({
      columns: (now.includes(c) ? now.filter((x) => x !== c) : [...now, c].slice(-4)).sort((a, b) => a - b).join(" "),
    });
  }

  /** The overview is there where the grid has more columns than fit. */
  function inView(left, width, whole) {
    overview.hidden = whole <= width + 1;
    if (overview.hidden) return;
    if (!map) map = minimap.mount(overview, { rows }, { onpick: (share) => island.centre(share) });
    else if (map.rows !== rows) map.update({ rows });
    map.rows = rows;
    map.view(left, width, whole);
  }

  const at = () => positionHere(t.data.tokens.length);

  function drawControls() {
    const box = (name, text) => tickBox(text, !!state()[name], (on) => turn({ [name]: on ? "1" : "" }));
    fill(
      controls,
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
    );
  }

  function drawGrid() {
    rows = rowsOf(t, peeking ? t.plain : t.data, state().only ? span() : null);
    const { tokens } = t.data;
    const next = {
      rows,
      columns: tokens.map((one, p) => ({ text: one.token, next: tokens[p + 1]?.token })),
      corner: "layer \\ token",
      fit: fits(),
      pinned: pinnedColumns(),
      at: here(),
    };
    if (!island) {
      host.replaceChildren();
      const el = h("div");
      host.append(el);
      island = grid.mount(el, next, {
        label: "Most likely next token after every layer and position",
        onselect: (...chosen) => (choose(...chosen), aside.show()),
        onopen: (r) => go({ screen: "layer", layer: lowest(r) }),
        onpin: (r, c) => pin(rows[r].cells[c].id),
        onhover: (r, c, cell) => pop.over(t, rows[r], c, cell),
        onrange: choseRows,
        onpincolumn: pinColumn,
        onview: inView,
      });
    } else island.update(next);
    root.firstChild.classList.toggle("no-events", !!state().events);
    markRows();
    drawLegend();
    const changed = t.plain ? t.data.prediction.filter((id, p) => id !== t.plain.prediction[p]).length : 0;
    fill(
      summary,
      t.plain && `With these edits the prediction changes at ${changed} of ${tokens.length} positions.`,
      example && [
        "An example, traced with wren beforehand. ",
        button("Trace it here", live, { class: "quiet" }),
        " ",
        button("Take the six-step tour", tour.begin, { class: "quiet" }),
      ],
    );
    const more = (c) => [c.nats, c.followed].filter((x) => x !== null);
    const named = [
      greatest(t) !== null && `${state().metric} (nats)`,
      state().metric === "pinned" && t.followed && `probability of ${visible(t.followed.token)}`,
    ].filter(Boolean);
    fill(
      table,
      asTable(
        "As a table",
        ["layer", "stage", "position", "token", "first", "probability", "rank of the final prediction", ...named],
        () =>
          rows.flatMap((row) =>
            row.cells.map((c, p) => [
              row.i,
              row.point === "resid_post" ? "after FFN" : row.sub || "embedding",
              p,
              visible(tokens[p].token),
              visible(c.text),
              c.prob,
              c.rank,
              ...more(c),
            ]),
          ),
      ),
    );
  }

  function drawLegend() {
    const ramp = h(
      "i",
      { "aria-hidden": "true" },
      Array.from({ length: 17 }, (_, q) => h("b", { class: `q${q}` })),
    );
    const most = greatest(t);
    const { metric } = state();
    const scale =
      most !== null
        ? ["0", ramp, `${num(most)} nats`]
        : metric === "rank"
          ? [`rank ${t.model.d_vocab.toLocaleString("en")}`, ramp, "rank 1 (logarithmic)"]
          : [
              "0 %",
              ramp,
              "100 % (square root)",
              metric === "pinned" && t.followed && h("span", {}, "of ", token(t.followed.token)),
            ];
    const signs = [
      ["▢", "top-1 is the final prediction"],
      ["│", "the same token as in the row before"],
      ...(state().events
        ? []
        : [
            ["◆", "saturation"],
            ["✕", "elimination"],
            ["▲▼", "rank of the final prediction changes eightfold"],
          ]),
      ...(state().diff && t.plain
        ? [
            ["▣", "the edits change the token"],
            ["▒", "the edits can reach it"],
          ]
        : []),
    ];
    fill(
      legend,
      scale,
      signs.map(([sign, text]) => h("span", { class: "sign" }, h("b", { "aria-hidden": "true" }, sign), ` ${text}`)),
    );
  }

  /** The layers chosen together, [lowest, highest], or null. */
  function span() {
    const parts = /^(\d+)-(\d+)$/.exec(state().layers);
    const [a, b] = parts ? parts.slice(1).map(Number) : [1, 0];
    return a < b && b < t.model.n_layers ? [a, b] : null;
  }

  /** The layer of a row; of the embedding's, the first. */
  const lowest = (r) => String(Math.max(0, rows[r].n));

  function choseRows(first, last, row) {
    const ends = first === null ? [0, 0] : [first, last].map((r) => Number(lowest(r))).sort((a, b) => a - b);
    if (ends[0] === ends[1]) return state().layers && turn({ layers: "", only: "" });
    turn({ layers: ends.join("-"), layer: lowest(row), stage: "post" });
  }

  function markRows() {
    const ends = span();
    const inside = ends ? rows.flatMap((one, i) => (one.n >= ends[0] && one.n <= ends[1] ? [i] : [])) : [];
    island?.mark(inside.length ? [inside[0], inside.at(-1)] : null);
  }

  const isHere = (one) => one.n === layer() && (one.point === "resid_post") === (state().stage !== "mid");
  function here() {
    const row = rows.findIndex(isHere);
    return [row < 0 ? rows.findIndex((one) => one.n === layer()) : row, at()];
  }
  const select = () => island?.select(...here());

  function choose(r, c) {
    turn({
      position: String(c),
      layer: lowest(r),
      stage: rows[r].point === "resid_mid" ? "mid" : "post",
      token: String(c) === state().position ? state().token : "",
    });
  }

  /** The ring moves at once, the panes in the frame after: who holds an arrow down waits for the ring alone. */
  let soon = 0;
  function layerPanes() {
    drawInspector();
    race.at(layer());
  }

  /** What stands below the grid comes in the frame after the cell's; the race then finds the page laid out when it asks for its width. */
  async function lower() {
    try {
      await Promise.all([race.draw(), ledger(state().by), follow()]);
    } catch (error) {
      return missed(race.lines, error);
    }
  }

  /** Ask for the trace again where the server has forgotten it; another failure is shown. */
  function missed(el, error) {
    if (!error.message.startsWith("trace")) return failure(el, error, position);
    api.forget("trace ");
    return load();
  }

  /** Everything about one position comes in one answer, so that moving between layers asks nothing. */
  async function position() {
    if (!t.data) return;
    const p = at();
    const now = state();
    const other = QUESTION.some((name) => now[name]) || now.sort !== "effect";
    if ((p !== t.data.tokens.length - 1 || other) && live()) return;
    const settled = waiting(inspector, race.lines);
    const whole = timed("whole position");
    try {
      const view = example
        ? example.position
        : await api.get(
            `/traces/${t.data.id}`,
            {
              ...question(),
              position: p,
              order: now.sort,
              memories: t.model.can.memories ? 5 : 0,
              listed: t.model.can.memories ? 20 : 0,
              top: 10,
            },
            { channel: "position" },
          );
      if (p !== at()) return;
      t.view = view;
      drawSays();
      drawInspector();
      afterPaint(() => t.view === view && lower().then(whole));
    } catch (error) {
      return missed(inspector, error);
    } finally {
      settled();
    }
  }

  /** A label that a person gave, else the description that the trace brings. */
  const named = (one) => (isLabelled(one) ? nameOf(one) : one.description);

  function drawSays() {
    const shown = t.view.prediction.slice(0, 5);
    const text = t.data.tokens[t.view.position];
    fill(
      says,
      h(
        "span",
        { class: "soft" },
        "After ",
        token(text.token),
        h("span", { class: "faint" }, ` (${t.view.position})`),
        " the model predicts",
      ),
      shown.map((c) =>
        button([token(c.token), h("small", {}, percent(c.probability))], () => turn({ token: `#${c.id}` }), {
          title: `explain this token (logit ${c.logit.toFixed(2)})`,
          "aria-pressed": String(c.id === t.view.target.id),
        }),
      ),
      button("→ append", () => go({ prompt: t.data.prompt + shown[0].token, position: "", layer: "", token: "" }), {
        class: "quiet",
        title: "Add the first token to the prompt",
      }),
    );
    why.draw(t.view);
    fill(
      described,
      t.view.described.map((one) =>
        h(
          "li",
          {},
          link(one, "memory")[0],
          h("span", { class: "tag", dir: "auto" }, named(one)),
          h(
            "span",
            { class: "effect", title: "what it adds to the target's logit over what it adds to the average token's" },
            `${signed(one.effect)} to `,
            token(t.view.target.token),
          ),
        ),
      ),
    );
    fill(
      found,
      t.view.findings.map((one) =>
        h(
          "li",
          {},
          button(
            one.sentence,
            () =>
              one.kind === "memory"
                ? go({ screen: "memory", memory: idOf(one) })
                : turn({ layer: String(one.layer), stage: one.point === "resid_post" ? "post" : "mid" }),
            { title: `${one.definition} ${num(one.nats)} nats.` },
          ),
        ),
      ),
    );
  }

  function drawInspector() {
    aside.place();
    const part = state().stage === "mid" ? "attention" : "ffn";
    architecture(model, { model: t.model, view: t.view, at: { layer: layer(), part } });
    const together = span();
    if (together) drawSpan(inspector, t, /** @type {[number, number]} */ (together));
    else drawCell(inspector, t, layer(), state().stage === "mid");
  }

  async function ledger(split) {
    order.hidden = split !== "memory";
    books.closest(".two").classList.toggle("long", split === "memory");
    if (split === "component") return attribution(books, t.view.attributions[0], t.data.tokens);
    if (split === "memory" && t.view.memories) return memories(t.view.memories, t.view.attributions[0]);
    if (live()) return;
    await pane(books, async () => {
      const { attributions } = await api.get(
        `/traces/${t.data.id}/attribution`,
        { ...question(), token: `#${t.view.target.id}`, position: t.view.position, by: split, top: 14 },
        { channel: "attribution" },
      );
      attribution(books, attributions[0], t.data.tokens);
    });
  }

  /** The memories with the largest effects, those always on folded, and what all others add. */
  function memories({ rows, always_on, others, others_effect, total }, whole) {
    const box = h("div");
    updatesTable(box, [...rows, ...always_on], t.view, {
      order: state().sort,
      after: [
        [`${others.toLocaleString("en")} other active memories`, state().sort === "effect" ? others_effect : null],
      ],
    });
    fill(
      books,
      box,
      h(
        "p",
        { class: "row soft" },
        h(
          "span",
          {},
          "Sum ",
          h("b", {}, num(total)),
          " of all memories; with the other writers ",
          h("b", {}, num(whole.total)),
          " = ",
          inWords(t.view),
        ),
      ),
    );
  }

  /** Follow a token in the race, or follow it no more. */
  function pin(id) {
    const pins = pinned();
    turn({
      pins: (pins.includes(String(id)) ? pins.filter((x) => x !== String(id)) : [...pins, id].slice(-5)).join(" "),
    });
  }

  return {
    async update(now, before) {
      const differs = (...names) => differ(now, before, ...names);
      if (asksAnew(now, before)) {
        pop.hide();
        return load({ anew: true });
      }
      if (!t.data) return;
      if (differs("alone")) {
        aside.place();
        drawGrid();
      }
      if (
        differs("stages", "metric", "diff", "flip", "fit", "columns", "events", "only") ||
        (now.only && differs("layers"))
      )
        drawGrid();
      if (differs("metric")) spreads();
      if (differs("position", "sort", ...QUESTION)) {
        const asked = position(); // the server reads while the ring moves
        select();
        return asked;
      }
      if (differs("layers")) markRows();
      if (differs("layer", "stage", "layers")) {
        select();
        cancelAnimationFrame(soon);
        if (t.view) soon = afterPaint(layerPanes);
      }
      if (!t.view) return;
      if (differs("by")) await ledger(now.by);
      if (differs("pins", "scale")) await race.draw();
      if (differs("pins", "metric")) await follow();
    },
    key({ key }) {
      if (!t.view) return false;
      const n = t.data.tokens.length;
      const step = (change) => (turn(change), true);
      switch (key) {
        case "[":
          return step({ layer: String(within(layer() - 1, t.model.n_layers)) });
        case "]":
          return step({ layer: String(within(layer() + 1, t.model.n_layers)) });
        case ",":
          return step({ position: String(within(at() - 1, n)), token: "" });
        case ".":
          return step({ position: String(within(at() + 1, n)), token: "" });
        case "m":
          return (
            step({ metric: METRICS[(METRICS.findIndex(([name]) => name === state().metric) + 1) % METRICS.length][0] }),
            drawControls(),
            true
          );
        case "d":
          return t.plain ? (step({ diff: state().diff ? "" : "1" }), drawControls(), true) : false;
        case "e":
          return step({ events: state().events ? "" : "off" });
        case "i": {
          const u = t.view.layers[layer()].sub_updates[0];
          if (u) tray.off(u);
          return !!u;
        }
        case "p":
          return (pin((rows.find(isHere) || rows[0]).cells[at()].id), true);
        case "b":
          if (t.plain && !peeking) (peeking = true), drawGrid();
          return !!t.plain;
        case "Escape":
          return pop.hide() || (span() ? step({ layers: "", only: "" }) : false);
        default:
          return false;
      }
    },
    /** The baseline is shown as long as its key is held. */
    keyup(event) {
      if (event.key !== "b" || !peeking) return;
      peeking = false;
      drawGrid();
    },
    exported: () =>
      t.data && {
        name: "trace",
        json: { ...t.data, chosen: t.view },
        rows: [
          ["layer", "stage", "position", "token", "first_token", "probability", "rank_of_prediction"],
          ...rows.flatMap((row) =>
            row.cells.map((c, p) => [row.i, row.point, p, t.data.tokens[p].token, c.text, c.prob, c.rank]),
          ),
        ],
      },
    destroy() {
      pop.hide();
      aside.leave();
      island?.destroy();
    },
  };
}
