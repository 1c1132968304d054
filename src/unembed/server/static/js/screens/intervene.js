/** Change memories or heads; see the next token and two continuations side by side. */
import { button, fill, h, num, percent, segmented, signed } from "../dom.js";
import { activeEdits, edits, go, setEdits, state } from "../state.js";
import { about, asTable, failure, prompt } from "../parts.js";
import { token, visible } from "../islands/tokens.js";
import { verb } from "../tray.js";
import * as tray from "../tray.js";

const SCOPES = [["all", "everywhere"], ["last", "the newest token"], ["prompt", "the prompt"], ["new", "generated tokens"]];

export function render(root, page) {
  const { api, model } = page;
  const box = h("textarea", { rows: 1, "aria-label": "Prompt", spellcheck: "false", onchange: () => go({ p: box.value }) });
  const list = h("div", { class: "stack" });
  const next = h("div");
  const left = h("div", { class: "text", "aria-live": "off" });
  const right = h("div", { class: "text" });
  const summary = h("p", { class: "soft", role: "status" });
  const history = h("div");
  const newTokens = h("input", { type: "number", min: 1, max: 200, value: state().n || "30", "aria-label": "New tokens", onchange: () => go({ n: newTokens.value }, { push: false }) });
  const seed = h("input", { type: "number", min: 0, placeholder: "greedy", value: state().seed, "aria-label": "Seed; empty for greedy", onchange: () => go({ seed: seed.value }, { push: false }) });
  const runButton = button("Run both", run, { class: "btn main" });
  const stop = button("Stop", () => api.cancel("compare"), { class: "btn", hidden: true });
  let running = false;
  let shownRun = null;
  fill(root, h("div", { class: "stack" },
    h("section", { class: "prompt" }, box),
    h("section", { class: "card", "aria-labelledby": "edits-title" }, h("header", {}, h("h2", { id: "edits-title" }, "Edits")), list, addForm(), about("An edit holds in every pass, the cache included. A memory's coefficient is the number after the activation function (gate × up in gated layers). The order of edits of one memory matters; different memories do not interact.")),
    h("div", { class: "two" },
      h("section", { class: "card", "aria-labelledby": "next-title" }, h("header", {}, h("h2", { id: "next-title" }, "The next token")), next),
      h("section", { class: "card", "aria-labelledby": "runs-title" }, h("header", {}, h("h2", { id: "runs-title" }, "Runs")), history)),
    h("section", { class: "card", "aria-labelledby": "pair-title" }, h("header", {}, h("h2", { id: "pair-title" }, "Both continuations"), h("label", { class: "row faint" }, "new tokens", newTokens), h("label", { class: "row faint" }, "seed", seed), runButton, stop),
      summary, h("div", { class: "pair" }, h("div", {}, h("h3", {}, "Baseline"), left), h("div", {}, h("h3", {}, "With the edits"), right)))));

  function addForm() {
    const kind = h("select", { "aria-label": "What" }, h("option", { value: "coefficient" }, "memory"), h("option", { value: "head" }, "head"));
    if (!model.can.memories) kind.value = "head";
    const layer = h("input", { type: "number", min: 0, max: model.n_layers - 1, value: String(model.n_layers - 1), "aria-label": "Layer" });
    const index = h("input", { type: "number", min: 0, value: "0", "aria-label": "Index" });
    const add = () => tray.add({ target: kind.value, layer: Number(layer.value), index: Number(index.value), action: kind.value === "head" ? "scale" : "set", value: kind.value === "head" ? 0 : 3 });
    return h("details", {}, h("summary", {}, "Add an edit"), h("div", { class: "edit-form" }, h("label", {}, "what", kind), h("label", {}, "layer", layer), h("label", {}, "index", index), button("Add", add, { class: "btn" })));
  }

  function drawEdits() {
    const all = edits();
    if (!all.length) return suggest();
    fill(list, all.map((e, i) => editor(e, i, all)));
  }

  function editor(e, i, all) {
    const change = (part, now = false) => {
      setEdits(all.map((x, j) => (i === j ? { ...x, ...part } : x)), { push: now });
    };
    const limit = Math.max(8, Math.abs(e.value) * 2);
    // Symmetric logarithm: fine around zero, far at the ends.
    const toSlider = (x) => Math.sign(x) * Math.log1p(Math.abs(x)) / Math.log1p(limit);
    const fromSlider = (s) => Math.sign(s) * Math.expm1(Math.abs(s) * Math.log1p(limit));
    const number = h("input", { type: "number", step: "any", value: String(Number(e.value.toPrecision(5))), "aria-label": "Value", onchange: () => Number.isFinite(number.valueAsNumber) && change({ value: number.valueAsNumber }) });
    const slider = h("input", { type: "range", min: -1, max: 1, step: 0.005, value: String(toSlider(e.value)), "aria-label": "Value", oninput: () => {
      const value = Number(fromSlider(Number(slider.value)).toPrecision(3));
      number.value = String(value);
      all[i].value = value;
      preview(all);
    }, onchange: () => change({ value: number.valueAsNumber }) });
    const action = h("select", { "aria-label": "How", onchange: () => change({ action: action.value }) }, (e.target === "head" ? ["scale"] : ["set", "scale", "add"]).map((a) => h("option", { value: a, selected: a === e.action }, { set: "set to", scale: "times", add: "plus" }[a])));
    const where = Array.isArray(e.positions) ? "chosen" : e.positions;
    const scope = h("select", { "aria-label": "Where", onchange: () => change({ positions: places(scope.value) }) }, SCOPES.map(([v, t]) => h("option", { value: v, selected: v === where }, t)), where === "chosen" ? h("option", { value: "chosen", selected: true }, `positions ${e.positions[0]} to ${e.positions.at(-1)}`) : null);
    const name = `L${e.layer}${e.target === "head" ? "H" : "M"}${e.index}`;
    return h("div", { class: "row" },
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: e.on, "aria-label": `${name} on`, onchange: (event) => change({ on: event.target.checked }) })),
      h("a", { href: "#", class: "tok", onclick: (event) => (event.preventDefault(), e.target === "head" ? go({ screen: "heads", h: `${e.layer}.${e.index}` }) : go({ screen: "memory", m: `${e.layer}.${e.index}` })) }, name),
      action, number, h("span", { style: { flex: "1", "min-width": "120px" } }, slider), scope,
      button("Off", () => change({ action: "scale", value: 0 }), { class: "btn small" }),
      e.target === "head" ? null : button("Flip", () => change({ action: "scale", value: -1 }), { class: "btn small", title: "turn the sign round" }),
      button("×", () => setEdits(all.filter((_, j) => j !== i)), { class: "btn small", "aria-label": `Remove ${name}` }));
  }

  function places(kind) {
    if (kind === "all" || kind === "last") return kind;
    const n = shownRun?.count ?? 8;
    const from = kind === "prompt" ? 0 : n;
    const to = kind === "prompt" ? n : n + Number(newTokens.value || 30);
    return Array.from({ length: to - from }, (_, i) => from + i);
  }

  async function suggest() {
    fill(list, h("p", { class: "soft" }, "Nothing is changed yet."));
    try {
      const data = await api.post("/traces", { prompt: prompt(), edits: [] }, { channel: "suggest", keep: true });
      shownRun = { count: data.tokens.length };
      if (!model.can.memories) return;
      const found = await api.get(`/traces/${data.id}`, { position: -1, memories: 5, top: 10 }, { channel: "suggest" });
      const best = found.layers.flatMap((one) => one.sub_updates.slice(0, 2)).sort((a, b) => Math.abs(b.score) - Math.abs(a.score)).slice(0, 3);
      fill(list, h("p", { class: "soft" }, "Nothing is changed yet. Memories that move ", token(found.target.token), " most here:"), h("div", { class: "row" }, best.map((u) => button(`Switch off L${u.layer}M${u.index} (${signed(u.score)})`, () => tray.add({ target: "coefficient", layer: u.layer, index: u.index, action: "scale", value: 0 }), { class: "btn small", title: u.top_tokens.slice(0, 8).join(" ") }))));
    } catch (error) {
      failure(list, error, suggest);
    }
  }

  /** The newest value wins: older questions are dropped on the way. */
  async function preview(all = edits()) {
    const active = all.filter((e) => e.on).map(({ on, ...e }) => e);
    try {
      const found = await api.post("/next", { prompt: prompt(), edits: active }, { channel: "next", keep: true });
      const rows = found.rows;
      const most = Math.max(...rows.flatMap((r) => [r.plain, r.edited]));
      const bar = (p, cls) => h("span", { class: "bar-track" }, h("span", { class: `bar ${cls}`, style: { width: `${(100 * p) / most}%` } }));
      fill(next, h("table", {}, h("thead", {}, h("tr", {}, ["token", "baseline", "", "edited", ""].map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, rows.slice(0, 10).map((r) => h("tr", {}, h("th", { scope: "row" }, token(r.token)), h("td", { class: "n" }, percent(r.plain)), h("td", {}, bar(r.plain, "plus")), h("td", { class: "n" }, percent(r.edited)), h("td", {}, bar(r.edited, "minus")))))));
    } catch (error) {
      failure(next, error);
    }
  }

  async function run() {
    running = true;
    stop.hidden = false;
    runButton.disabled = true;
    const text = prompt();
    const given = () => h("span", { class: "given" }, text);
    fill(left, given());
    fill(right, given());
    const ids = { base: [], edit: [] };
    let diverged = false;
    const started = performance.now();
    let first = 0;
    const body = { prompt: text, edits: activeEdits(), max_new_tokens: Math.max(1, Math.min(200, Number(newTokens.value) || 30)), ...(seed.value === "" ? {} : { seed: Number(seed.value) }) };
    if (!body.edits.length) fill(right, h("span", { class: "faint" }, "No edit is on."));
    fill(summary);
    try {
      await api.stream("/compare", body, (line) => {
        if (!first) {
          first = performance.now();
          performance.measure("first-token", { start: started, end: first });
        }
        if (line.kind === "token") {
          const pane = line.side === "base" ? left : right;
          ids[line.side].push(line.id);
          const i = ids[line.side].length - 1;
          const same = ids.base[i] === ids.edit[i] && !diverged;
          const here = line.side === "edit" && !same && !diverged;
          if (here) diverged = true;
          pane.append(h("span", { class: here ? "diverges" : line.side === "edit" && same ? "common" : "", title: `${percent(line.probability)}; then ${line.candidates.slice(0, 4).map((c) => `${visible(c[1])} ${percent(c[2])}`).join(", ")}` }, line.token));
        } else if (line.kind === "summary") {
          fill(summary, line.edits.length ? (line.diverges_at === null ? "The continuations are the same." : `They part at new token ${line.diverges_at}.`) : "");
          runs();
        }
      }, { channel: "compare", what: "Generating" });
    } catch (error) {
      if (error.code === "superseded") fill(summary, "Stopped.");
      else {
        fill(summary, h("span", { class: "warn" }, [error.message, error.why, error.fix].filter(Boolean).join(". ")));
        api.fail(error);
      }
    } finally {
      running = false;
      stop.hidden = true;
      runButton.disabled = false;
    }
  }

  async function runs() {
    try {
      const found = (await api.get("/runs", {}, { fresh: true })).runs.reverse();
      fill(history, found.length ? h("ul", { class: "lanes" }, found.slice(0, 12).map((r) => h("li", {}, h("button", { type: "button", onclick: () => restore(r) }, h("span", { class: "sign" }, String(r.run)), h("span", {}, h("span", { class: "faint" }, `${r.prompt.slice(-34)} `), r.edits.length ? r.edits.map((e) => `L${e.layer}${e.target === "head" ? "H" : "M"}${e.index} ${verb(e)}`).join(", ") : "no edits", h("span", { class: "faint" }, r.diverges_at === null ? "" : `, part at ${r.diverges_at}`)))))) : h("p", { class: "faint" }, "Every run stays here with its edits, until the server stops."));
    } catch (error) {
      failure(history, error);
    }
  }

  function restore(r) {
    setEdits(r.edits.map((e) => ({ ...e, on: true })));
    go({ p: r.prompt, n: String(r.options.max_new_tokens), seed: r.options.seed === null ? "" : String(r.options.seed) });
    newTokens.value = String(r.options.max_new_tokens);
    seed.value = r.options.seed === null ? "" : String(r.options.seed);
    for (const [pane, side] of [[left, "base"], [right, "edit"]]) fill(pane, h("span", { class: "given" }, r.prompt), r.texts[side] ?? "");
  }

  return {
    update(now, before) {
      const opened = before.screen !== now.screen;
      if (opened || now.p !== before.p) box.value = prompt();
      if (opened || now.iv !== before.iv || now.off !== before.off || now.p !== before.p) {
        if (!running && !opened && before.screen === now.screen) fill(summary, "Changed since the last run.");
        drawEdits();
        preview();
      }
      if (opened) runs();
    },
    key(event) {
      if (event.key === "r") return run(), true;
      if (event.key === "Escape" && running) return api.cancel("compare"), true;
      return false;
    },
    exported: () => ({ name: "comparison", json: { prompt: prompt(), edits: activeEdits(), base: left.textContent, edited: right.textContent }, rows: [["side", "text"], ["baseline", left.textContent], ["edited", right.textContent]] }),
    destroy: () => api.cancel("compare"),
  };
}
void asTable;
void num;
void segmented;
