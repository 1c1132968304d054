/** The first screen: how the next-token prediction forms, layer by layer, at every position. */
import { button, fill, h, num, percent, place, segmented, signed } from "../dom.js";
import { activeEdits, go, state } from "../state.js";
import { about, account, asTable, candidates, card, failure, FIRST, pane, prompt, subUpdate } from "../parts.js";
import { token, visible, mount as strip } from "../islands/tokens.js";
import * as grid from "../islands/grid.js";
import * as ranks from "../islands/ranks.js";
import * as bars from "../islands/bars.js";
import * as tray from "../tray.js";
import * as tour from "../tour.js";

const EXAMPLES = [FIRST, "She put the book on the", "one two three four one two three", "Once upon a time there was a little"];
const METRICS = [["probability", "Probability", "of the first token"], ["rank", "Place of the answer", "where the final prediction stands"], ["entropy", "Entropy", "how undecided the reading is"], ["divergence", "KL to the end", "how far the reading is from the model's prediction"]];
/** Entropies are fetched before they are asked for when it costs less than this many scores. */
const CHEAP = 2e7;

export function render(root, page) {
  const { api } = page;
  let { model } = page;
  let example = null;
  let spread = null;
  let data = null;
  let plain = null;
  let view = null;
  let peeking = false;
  let island = null;
  let chart = null;
  let rows = [];
  const box = h("textarea", { "aria-label": "Prompt", rows: 1, spellcheck: "false", placeholder: "Write the beginning of a text …", oninput: typed, onkeydown: (e) => e.key === "Enter" && !e.shiftKey && (e.preventDefault(), run()) });
  const typedTokens = h("div", { class: "typed" });
  const count = h("span", { class: "faint" });
  const says = h("div", { class: "says", "aria-label": "What the model says next" });
  const controls = h("div", { class: "row" });
  const host = h("div");
  const legend = h("div", { class: "legend" });
  const lines = h("div");
  const lanes = h("div", { class: "lanes" });
  const table = h("div");
  const books = h("div");
  const inspector = h("div", { class: "stack" });
  const summary = h("p", { class: "soft" });

  fill(root, h("div", { class: "trace" },
    h("div", { class: "stack" },
      h("section", { class: "prompt", "aria-label": "Prompt" }, box, h("div", { class: "row" }, button("Trace", run, { class: "btn main", title: "Enter" }), count, h("span", { class: "spacer" }), h("span", { class: "faint" }, "Examples"), EXAMPLES.map((text, i) => button(String(i + 1), () => go({ p: text, pos: "", L: "", t: "" }), { class: "btn small", title: text, "aria-label": `Example: ${text}` }))), typedTokens, says, summary),
      card("What each layer would say", controls, host, h("div", { class: "row" }, legend), about("Each cell is the stream after one layer at one position, read through the model's own final norm and output matrix: its most likely next token. A stem means that nothing changed since the layer below. Outlined cells already hold the final answer. ◆ saturation, ✕ elimination. Entropy: of the cell's whole distribution. KL to the end: the divergence of that distribution from the model's prediction."), table),
      h("div", { class: "two" }, card("The race to the top", null, lines, lanes), card("The account of a logit", by(), books))),
    h("aside", { class: "card", "aria-label": "The chosen cell" }, inspector)));

  function by() {
    return segmented("Split by", [["component", "Component"], ["head", "Head"], ...(model.can.memories ? [["memory", "Memory"]] : []), ["source", "Source"]], state().by, (value) => go({ by: value }, { push: false }));
  }

  let timer = 0;
  function typed() {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      try {
        const found = await api.get("/tokenize", { text: box.value }, { channel: "tokenize" });
        count.textContent = `${found.ids.length} token${found.ids.length === 1 ? "" : "s"}${found.limit ? ` of ${found.limit}` : ""}`;
        strip(typedTokens, { tokens: box.value === state().p ? [] : found.tokens });
      } catch (error) {
        api.fail(error);
      }
    }, 60);
  }

  function run() {
    if (!box.value.trim()) return box.focus();
    go({ p: box.value, pos: "", t: "", L: "" });
    if (state().p === box.value && data?.prompt === box.value) load();
  }

  async function load() {
    const now = state();
    const text = prompt();
    if (document.activeElement !== box || !box.value) box.value = text;
    host.classList.add("waiting");
    spread = null;
    try {
      const edits = activeEdits();
      example = !now.p && !edits.length && now.pos === "" && !now.t ? await api.example() : null;
      const [found, before] = example ? [example.trace, null] : await Promise.all([
        api.trace(text, edits, { on: partly }),
        edits.length ? api.trace(text, [], { channel: "trace-plain" }) : null,
      ]);
      if (prompt() !== text) return;
      model = example ? example.model : page.model;
      data = found;
      plain = before;
      page.tokens = data.tokens.map((t) => t.token);
      page.crumbs();
      typedTokens.replaceChildren();
      count.textContent = `${data.tokens.length} tokens${model.n_ctx ? ` of ${model.n_ctx}` : ""}`;
      drawControls();
      drawGrid();
      performance.mark("unembed-grid");
      await Promise.all([position(), spreads()]);
      if (!now.p && !example) go({ p: text }, { push: false });
    } catch (error) {
      if (error.code !== "superseded") {
        failure(host, error, load);
        island = null;
        if (error.code === "invalid") await offerEnd(text);
        api.fail(error);
      }
    } finally {
      host.classList.remove("waiting");
    }
  }

  /** A prompt that the model's context does not hold: offer its end. */
  async function offerEnd(text) {
    const { tokens, limit } = await api.get("/tokenize", { text }, { channel: "tokenize" });
    if (limit && tokens.length > limit) host.append(button(`Keep the last ${limit} of ${tokens.length} tokens`, () => go({ p: tokens.slice(-limit).join("") }), { class: "btn" }));
  }

  /** The layers that have been read, while the others still are. */
  function partly(part) {
    host.classList.remove("waiting");
    model = page.model;
    data = part;
    plain = spread = null;
    drawGrid();
  }

  /** Ask the served model what the example does not hold. Whether the example was shown. */
  const live = () => example && (go({ p: data.prompt }, { push: false }), true);

  async function spreads() {
    const wanted = ["entropy", "divergence"].includes(state().metric);
    const cost = data.tokens.length * model.n_layers * model.d_vocab;
    if (spread || (!wanted && cost > CHEAP)) return;
    await pane(legend, async () => {
      spread = example ? example.spread : await api.get(`/traces/${data.id}/spread`, {}, { channel: "spread", what: wanted ? "Measuring entropies" : "" });
      if (wanted) drawGrid(true);
    });
  }

  const at = () => {
    const n = data.tokens.length;
    const pos = state().pos === "" ? n - 1 : Number(state().pos);
    return Math.max(0, Math.min(n - 1, pos < 0 ? pos + n : pos || 0));
  };
  const layer = () => (state().L === "" ? model.n_layers - 1 : Math.max(0, Math.min(model.n_layers - 1, Number(state().L) || 0)));

  function drawControls() {
    const two = data.stages.length > 1;
    fill(controls,
      segmented("Shade by", METRICS, state().metric, (value) => go({ metric: value }, { push: false })),
      two ? segmented("Stages", [["post", "After FFN"], ["both", "Attention too"]], state().stages, (value) => go({ stages: value }, { push: false })) : null,
      plain ? h("label", { class: "check" }, h("input", { type: "checkbox", checked: state().diff === "1", onchange: (e) => go({ diff: e.target.checked ? "1" : "" }, { push: false }) }), "What the edits changed") : null);
  }

  function cells() {
    const { metric, stages, diff } = state();
    const V = Math.log2(model.d_vocab);
    const most = greatest();
    const eventsAt = new Map();
    const seen = peeking ? plain : data;
    for (const e of seen.events) eventsAt.set(`${e.layer} ${e.position} ${e.cause === "ffn" ? "resid_post" : "resid_mid"} ${e.kind}`, e);
    const shown = seen.stages.filter((one) => stages === "both" || one.point === "resid_post");
    const found = [];
    const only = state().only ? span() : null;
    for (let n = only ? only[0] : 0; n < (only ? only[1] + 1 : seen.stages[0].ids.length); n++)
      for (const one of shown) {
        const below = found[0];
        const other = diff && plain && !peeking ? plain.stages.find((x) => x.point === one.point) : null;
        found.unshift({
          label: one.point === "resid_post" ? `Layer ${n}` : "",
          sub: one.point === "resid_post" ? "" : "after attention",
          cls: one.point === "resid_post" ? "" : "mid",
          n,
          point: one.point,
          cells: data.tokens.map((t, p) => {
            const id = one.ids[n][p][0];
            const prob = one.probabilities[n][p][0];
            const rank = one.rank_of_prediction[n][p];
            const answer = id === seen.prediction[p];
            const nats = most === null ? null : spread[one.point][metric][n][p];
            const q = Math.max(0, Math.round(16 * (nats !== null ? nats / most : metric === "rank" ? 1 - Math.log2(rank + 1) / V : Math.sqrt(prob))));
            const glyph = ["saturation", "elimination"].map((kind) => eventsAt.has(`${n} ${p} ${one.point} ${kind}`) || (stages !== "both" && one.point === "resid_post" && eventsAt.has(`${n} ${p} resid_mid ${kind}`)) ? (kind === "saturation" ? "◆" : "✕") : "").join("");
            let cls = answer ? "answer" : "";
            if (other) cls = other.ids[n][p][0] !== id ? "moved" : other.probabilities[n][p][0] === prob ? "still" : "";
            return {
              id, prob, rank, nats, text: seen.texts[id], q, cls, glyph,
              same: !!below && below.cells[p].id === id && !glyph && n < (only ? only[1] : model.n_layers - 1),
              name: `Layer ${n} ${one.point === "resid_post" ? "after FFN" : "after attention"}, position ${p} ${visible(t.token)}: first ${visible(seen.texts[id])} ${percent(prob)}, answer at place ${place(rank)}${nats === null ? "" : `, ${num(nats)} nats`}${glyph.includes("◆") ? ", saturation here" : ""}${glyph.includes("✕") ? ", elimination here" : ""}`,
            };
          }),
        });
      }
    return found;
  }

  /** The upper end of the scale in nats, where the metric has one and is known. */
  function greatest() {
    const { metric } = state();
    if (metric === "entropy" && spread) return Math.log(model.d_vocab);
    return metric === "divergence" && spread ? Math.max(1e-9, ...Object.values(spread).flatMap((one) => one.divergence.flat())) : null;
  }

  function drawGrid(recolour = false) {
    rows = cells();
    const next = { rows, columns: data.tokens.map((t, p) => ({ text: t.token, next: data.tokens[p + 1]?.token })), corner: "layer \\ token" };
    if (!island) {
      host.replaceChildren();
      const el = h("div");
      host.append(el);
      island = grid.mount(el, next, { label: "Most likely next token after every layer and position", onselect: choose, onopen: (r) => go({ screen: "layer", L: String(rows[r].n) }), onhover: hover, onrange: choseRows });
    } else if (recolour) island.recolour(next);
    else island.update(next);
    host.firstChild.classList.toggle("no-events", state().st === "quiet");
    select();
    markRows();
    drawLegend();
    const changed = plain ? data.prediction.filter((id, p) => id !== plain.prediction[p]).length : 0;
    fill(summary, plain && `With these edits the prediction changes at ${changed} of ${data.tokens.length} positions.`, example && ["An example, traced with wren beforehand. ", button("Trace it here", live, { class: "quiet" }), " ", button("Take the six-step tour", tour.begin, { class: "quiet" })]);
    fill(table, asTable("As a table", ["layer", "stage", "position", "token", "first", "probability", "place of the answer", ...(greatest() === null ? [] : [`${state().metric} (nats)`])], () => rows.flatMap((row) => row.cells.map((c, p) => [row.n, row.point === "resid_post" ? "after FFN" : "after attention", p, visible(data.tokens[p].token), visible(c.text), c.prob, c.rank + 1, ...(c.nats === null ? [] : [c.nats])]))));
  }

  function drawLegend() {
    const ramp = h("i", { "aria-hidden": "true" }, Array.from({ length: 17 }, (_, q) => h("b", { class: `q${q}` })));
    const most = greatest();
    const scale = most !== null ? ["0", ramp, `${num(most)} nats`] : state().metric === "rank" ? [`place ${model.d_vocab.toLocaleString("en")}`, ramp, "place 1 (logarithmic)"] : ["0 %", ramp, "100 % (square root)"];
    fill(legend, scale, h("span", {}, "▢ holds the final answer"));
  }

  /** The layers chosen together, [lowest, highest], or null. */
  function span() {
    const found = /^(\d+)-(\d+)$/.exec(state().r);
    const [a, b] = found ? found.slice(1).map(Number) : [1, 0];
    return a < b && b < model.n_layers ? [a, b] : null;
  }

  function choseRows(first, last, row) {
    if (first === null || rows[first].n === rows[last].n) return state().r && go({ r: "", only: "" }, { push: false });
    go({ r: `${rows[last].n}-${rows[first].n}`, L: String(rows[row].n), st: "post" }, { push: false });
  }

  function markRows() {
    const found = span();
    const inside = found ? rows.flatMap((one, i) => (one.n >= found[0] && one.n <= found[1] ? [i] : [])) : [];
    island?.mark(inside.length ? [inside[0], inside.at(-1)] : null);
  }

  function select() {
    const row = rows.findIndex((one) => one.n === layer() && (one.point === "resid_post") === (state().st !== "mid"));
    island?.select(row < 0 ? rows.findIndex((one) => one.n === layer()) : row, at());
  }

  function choose(r, c) {
    const started = performance.now();
    const st = rows[r].point === "resid_post" ? "post" : "mid";
    go({ pos: String(c), L: String(rows[r].n), st, t: String(c) === state().pos ? state().t : "" }, { push: false });
    requestAnimationFrame(() => performance.measure("select", { start: started, end: performance.now() }));
  }

  /** The ring moves at once, the panes in the frame after: who holds an arrow down waits for the ring alone. */
  let soon = 0;
  function afterPaint() {
    cancelAnimationFrame(soon);
    soon = requestAnimationFrame(() => setTimeout(() => {
      drawInspector();
      chart?.at(layer());
    }));
  }

  /** Everything about one position comes in one answer, so that moving between layers asks nothing. */
  async function position() {
    if (!data) return;
    const p = at();
    const { t, by: split, vs } = state();
    if ((p !== data.tokens.length - 1 || t) && live()) return;
    for (const el of [inspector, lines]) el.classList.add("waiting");
    try {
      const found = example ? example.position : await api.get(`/traces/${data.id}`, { position: p, token: t, memories: model.can.memories ? 5 : 0, top: 10 }, { channel: "position" });
      if (p !== at()) return;
      view = found;
      drawSays();
      drawInspector();
      await Promise.all([race(), ledger(split, vs)]);
    } catch (error) {
      if (!error.message.startsWith("trace")) failure(inspector, error, position);
      else {
        api.forget("trace ");
        return load();
      }
    } finally {
      for (const el of [inspector, lines]) el.classList.remove("waiting");
    }
  }

  function drawSays() {
    const shown = view.prediction.slice(0, 5);
    const text = data.tokens[view.position];
    fill(says, h("span", { class: "soft" }, "After ", token(text.token), h("span", { class: "faint" }, ` (${view.position})`), " the model says"),
      shown.map((c) => h("button", { type: "button", title: `follow this token (logit ${c.logit.toFixed(2)})`, onclick: () => go({ t: `#${c.id}` }, { push: false }) }, token(c.token), h("small", {}, percent(c.probability)))),
      button("→ append", () => go({ p: data.tokens.map((one) => one.token).join("") + shown[0].token, pos: "", L: "", t: "" }), { class: "quiet", title: "Add the first token to the prompt" }));
  }

  /** What some layers did together at the position. */
  function drawSpan([a, b]) {
    const [low, high] = [view.layers[a], view.layers[b]];
    const { rows: writers, logit, others } = view.accounts[0];
    const part = (ffn) => writers.filter((row) => row.layer >= a && row.layer <= b && row.layer !== null && row.label.startsWith("ffn") === ffn).reduce((sum, row) => sum + row.share, 0);
    const updates = view.layers.slice(a, b + 1).flatMap((one) => one.sub_updates).sort((x, y) => Math.abs(y.score) - Math.abs(x.score)).slice(0, 8);
    const pick = (c) => go({ t: `#${c.id}` }, { push: false });
    fill(inspector,
      h("div", {}, h("h2", {}, `Layers ${a} to ${b}, together`), h("p", { class: "soft" }, "at ", token(data.tokens[view.position].token), ` position ${view.position}; target `, token(view.target.token))),
      h("div", { class: "row" }, h("label", { class: "check" }, h("input", { type: "checkbox", checked: !!state().only, onchange: (e) => go({ only: e.target.checked ? "1" : "" }, { push: false }) }), "Only these layers in the grid"), button("One layer", () => go({ r: "", only: "" }, { push: false }), { class: "quiet", title: "Esc" })),
      h("div", { class: "sandwich" },
        h("div", {}, h("h3", {}, `Entering ${a}`), candidates(low.before, { onpick: pick, rank: low.rank_before })),
        h("div", {}, h("h3", {}, `After ${b}`), candidates(high.after, { before: low.before, onpick: pick, rank: high.rank_after }))),
      h("p", {}, "To the logit ", h("b", {}, num(logit)), " of ", token(view.target.token), ` they give ${signed(part(false))} by attention, ${signed(part(true))} by their FFNs`, others ? ", counting the writers listed." : "."),
      view.layers.slice(a, b + 1).flatMap((one) => one.events).map((e) => h("p", { class: "warn" }, sentence(e))),
      updates.length ? h("div", {}, h("h3", {}, "Sub-updates that move the target most"), h("ol", {}, updates.map((u) => subUpdate(u, { most: Math.max(...updates.map((x) => x.share)), target: view.target.token }))), h("p", { class: "faint" }, "among the five largest of each layer")) : null);
  }

  function drawInspector() {
    const together = span();
    if (together) return drawSpan(together);
    const one = view.layers[layer()];
    const mid = state().st === "mid" && one.middle;
    const after = mid ? one.middle : one.after;
    const before = mid || !one.middle ? one.before : one.middle;
    const pick = (c) => go({ t: `#${c.id}` }, { push: false });
    const most = Math.max(...one.sub_updates.map((u) => u.share), 1e-9);
    fill(inspector,
      h("div", {}, h("h2", {}, `Layer ${one.layer}, ${mid ? "attention" : "FFN"}`), h("p", { class: "soft" }, "at ", token(data.tokens[view.position].token), ` position ${view.position}; target `, token(view.target.token))),
      h("div", { class: "sandwich" },
        h("div", {}, h("h3", {}, "Before"), candidates(before, { onpick: pick, rank: mid ? one.rank_before : one.rank_middle ?? one.rank_before })),
        h("div", {}, h("h3", {}, "After"), candidates(after, { before, onpick: pick, rank: mid ? one.rank_middle : one.rank_after }))),
      one.events.map((e) => h("p", { class: "warn" }, sentence(e))),
      one.sub_updates.length ? h("div", {}, h("h3", {}, "Dominant sub-updates of the FFN"), h("ol", {}, one.sub_updates.map((u) => subUpdate(u, { most, target: view.target.token }))), h("p", { class: "faint" }, `${one.sub_updates.length} of ${model.d_mlp.toLocaleString("en")}, by |coefficient| × length of the value`)) : h("p", { class: "note" }, model.can.memories ? "No sub-updates here." : "This model's FFN has no memories of its own, or it has no FFN."),
      button("Open this layer", () => go({ screen: "layer", L: String(one.layer), pos: String(view.position) }), { class: "btn" }));
  }

  const sentence = (e) => {
    const found = data.events.find((x) => x.kind === e.kind && x.layer === e.layer && x.position === e.position);
    return found ? found.sentence : e.kind;
  };

  async function race() {
    const pins = state().pins.split(" ").filter(Boolean).slice(0, 5);
    const series = [{ name: view.target.token, ranks: view.layers.map((one) => one.rank_after) }];
    if (pins.length && !live()) {
      const found = await api.get(`/traces/${data.id}/trajectories`, { token: pins.map((id) => `#${id}`), position: view.position }, { channel: "trajectories" });
      series.push(...found.tokens.map((one) => ({ name: one.token, ranks: one.points.resid_post.ranks.flat() })));
    }
    chart = ranks.mount(lines, { series, layers: view.layers.map((one) => String(one.layer)), size: model.d_vocab, at: layer() }, { onpick: (n) => go({ L: String(n), st: "post" }, { push: false }) });
    const here = data.events.filter((e) => e.position === view.position);
    fill(lanes, here.map((e) => h("button", { type: "button", onclick: () => go({ L: String(e.layer), st: e.cause === "ffn" ? "post" : "mid" }, { push: false }) }, h("span", { class: "sign" }, e.kind === "saturation" ? "◆" : "✕"), h("span", {}, e.sentence))),
      here.length ? null : h("p", { class: "faint" }, model.can.events ? "No event at this position." : "Events are those of FFN updates, and this model has none."),
      pins.length ? button("Clear pins", () => go({ pins: "" }, { push: false }), { class: "quiet" }) : h("p", { class: "faint" }, "Pin the token of a cell with ", h("kbd", {}, "p"), " to follow it here."));
  }

  async function ledger(split, vs) {
    if (split === "component" && !vs) return account(books, view.accounts[0], data.tokens);
    if (live()) return;
    await pane(books, async () => {
      const found = await api.get(`/traces/${data.id}/account`, { token: `#${view.target.id}`, against: vs, position: view.position, by: split, top: 14 }, { channel: "account" });
      account(books, found.accounts[0], data.tokens);
    });
  }

  /** Follow a token in the race, or follow it no more. */
  function pin(id) {
    const pins = state().pins.split(" ").filter(Boolean);
    go({ pins: (pins.includes(id) ? pins.filter((x) => x !== id) : [...pins, id].slice(-5)).join(" ") }, { push: false });
  }

  let pop = null;
  let popTimer = 0;
  function hover(r, c, cell) {
    clearTimeout(popTimer);
    if (!cell) return void (popTimer = setTimeout(hide, 120));
    popTimer = setTimeout(() => peek(r, c, cell), 80);
  }
  function hide() {
    pop?.remove();
    pop = null;
  }
  function peek(r, c, cell) {
    hide();
    const one = data.stages.find((x) => x.point === rows[r].point);
    const n = rows[r].n;
    const list = one.ids[n][c].map((id, k) => ({ label: token(data.texts[id]), value: one.probabilities[n][c][k], text: percent(one.probabilities[n][c][k]), id, title: "pin: follow it in the race" }));
    const body = h("div");
    bars.mount(body, { rows: list, signed: false }, { onpick: (row) => pin(String(row.id)) });
    pop = h("div", { id: "pop", role: "tooltip" }, h("h2", {}, `Layer ${n} ${rows[r].point === "resid_post" ? "after FFN" : "after attention"}, position ${c}`), body, h("p", { class: "faint" }, "the answer ", token(data.texts[data.prediction[c]]), ` at place ${place(one.rank_of_prediction[n][c])}`));
    const box = cell.getBoundingClientRect();
    pop.style.left = `${Math.min(box.left, innerWidth - 262) + scrollX}px`;
    pop.style.top = `${box.bottom + scrollY + 6}px`;
    pop.addEventListener("pointerenter", () => clearTimeout(popTimer));
    pop.addEventListener("pointerleave", hide);
    document.body.append(pop);
  }

  return {
    async update(now, before) {
      if (before.screen !== now.screen || now.p !== before.p || now.iv !== before.iv || now.off !== before.off) {
        hide();
        box.value = prompt();
        return load();
      }
      if (!data) return;
      const reshaped = now.stages !== before.stages;
      if (reshaped || now.metric !== before.metric || now.diff !== before.diff || now.st !== before.st && (now.st === "quiet" || before.st === "quiet")) drawGrid(!reshaped);
      if (now.metric !== before.metric) spreads();
      if (now.pos !== before.pos || now.t !== before.t) {
        select();
        return position();
      }
      if (now.only !== before.only || (now.only && now.r !== before.r)) drawGrid();
      if (now.r !== before.r) markRows();
      if (now.L !== before.L || now.st !== before.st || now.r !== before.r) {
        select();
        if (view) afterPaint();
      }
      if (now.pins !== before.pins) race();
      if (now.by !== before.by || now.vs !== before.vs) ledger(now.by, now.vs);
    },
    key(event) {
      if (!view) return false;
      const n = data.tokens.length;
      const step = (change) => (go(change, { push: false }), true);
      switch (event.key) {
        case "[": return step({ L: String(Math.max(0, layer() - 1)) });
        case "]": return step({ L: String(Math.min(model.n_layers - 1, layer() + 1)) });
        case ",": return step({ pos: String(Math.max(0, at() - 1)), t: "" });
        case ".": return step({ pos: String(Math.min(n - 1, at() + 1)), t: "" });
        case "m": return step({ metric: METRICS[(METRICS.findIndex(([name]) => name === state().metric) + 1) % METRICS.length][0] }), drawControls(), true;
        case "d": return plain ? (step({ diff: state().diff ? "" : "1" }), drawControls(), true) : false;
        case "e": host.firstChild.classList.toggle("no-events"); return true;
        case "i": {
          const u = view?.layers[layer()].sub_updates[0];
          if (u) tray.off(u);
          return !!u;
        }
        case "p": {
          const row = rows.find((one) => one.n === layer() && (one.point === "resid_post") === (state().st !== "mid")) || rows[0];
          return pin(String(row.cells[at()].id)), true;
        }
        case "b":
          if (plain && !peeking) (peeking = true), drawGrid();
          return !!plain;
        case "Escape": return pop ? (hide(), true) : span() ? step({ r: "", only: "" }) : false;
        default: return false;
      }
    },
    /** The baseline is shown as long as its key is held. */
    keyup(event) {
      if (event.key !== "b" || !peeking) return;
      peeking = false;
      drawGrid();
    },
    exported: () => data && { name: "trace", json: { ...data, chosen: view }, rows: [["layer", "stage", "position", "token", "first_token", "probability", "rank_of_prediction"], ...rows.flatMap((row) => row.cells.map((c, p) => [row.n, row.point, p, data.tokens[p].token, c.text, c.prob, c.rank]))] },
    destroy() {
      hide();
      island?.destroy();
    },
  };
}
