/** One memory: what its value promotes and suppresses, what sets its key off, what people call it. */
import { button, fill, h, num, say, signed } from "../dom.js";
import { go, state } from "../state.js";
import { about, asTable, empty, failure, prompt } from "../parts.js";
import { token, visible, mount as strip } from "../islands/tokens.js";
import * as bars from "../islands/bars.js";
import * as tray from "../tray.js";

const author = () => localStorage.getItem("author") || "";

export function render(root, page) {
  const { api, model } = page;
  if (!model.can.memories) {
    fill(root, empty("This model has no memories to show", "It has no feed-forward layers, or its memories belong to experts."));
    return { update() {} };
  }
  const host = h("div", { class: "stack" });
  fill(root, host);
  let view = null;

  const at = () => {
    const found = /^(\d+)\.(\d+)$/.exec(state().m);
    return found ? [Number(found[1]), Number(found[2])] : [0, 0];
  };

  async function load() {
    if (!state().m) return chooser();
    host.classList.add("waiting");
    const [layer, index] = at();
    try {
      view = await api.get(`/memories/${layer}/${index}`, { top: 24 }, { channel: "memory", what: "Reading the value" });
      draw();
    } catch (error) {
      failure(host, error, load);
    } finally {
      host.classList.remove("waiting");
    }
  }

  function chooser() {
    const box = h("input", { type: "text", placeholder: "4.17", "aria-label": "Layer and index", onkeydown: (e) => e.key === "Enter" && open() });
    const open = () => {
      const found = /(\d+)\D+(\d+)/.exec(box.value);
      if (found) go({ m: `${found[1]}.${found[2]}` });
    };
    const some = Array.from({ length: 6 }, (_, i) => `${Math.floor((i * model.n_layers) / 6)}.${(i * 137) % model.d_mlp}`);
    fill(host, empty("Choose a memory", `A memory is a layer (0 to ${model.n_layers - 1}) and an index (0 to ${model.d_mlp - 1}). Click one in Trace or Layer, search for a word, or write one here.`, h("div", { class: "row" }, box, button("Open", open, { class: "btn main" })), h("div", { class: "row" }, some.map((m) => button(`L${m.replace(".", "M")}`, () => go({ m }), { class: "btn small" })))));
  }

  function draw() {
    const { layer, index } = view;
    const name = `L${layer}M${index}`;
    const names = h("div", { class: "row" });
    const triggers = h("div");
    const concepts = h("div");
    const near = h("div");
    const labels = h("div");
    const tried = h("div", { class: "stack" });
    const columns = [["Promotes", view.promoted], ["Suppresses", view.suppressed]].map(([title, rows]) => {
      const box = h("div");
      bars.mount(box, { signed: false, rows: rows.slice(0, 12).map((r) => ({ label: token(r.token), value: r.score, text: signed(r.score), id: r.id })) }, { onpick: (r) => pin(r.id) });
      return h("div", {}, h("h3", {}, title), box);
    });
    const step = (n) => go({ m: `${layer}.${(index + n + model.d_mlp) % model.d_mlp}` }, { push: false });
    const other = state().mv;
    fill(host,
      h("div", { class: "row" }, h("h1", {}, name), names, h("span", { class: "spacer" }),
        button("Previous", () => step(-1), { class: "btn small", title: "[" }), button("Next", () => step(1), { class: "btn small", title: "]" }),
        button("Switch off", () => tray.add({ target: "coefficient", layer, index, action: "scale", value: 0 }), { class: "btn small", title: "Add to the edits (i)" }),
        button("Set to 3", () => tray.add({ target: "coefficient", layer, index, action: "set", value: 3 }), { class: "btn small" })),
      h("dl", { class: "figures" }, figure("layer", `${layer} of 0 to ${model.n_layers - 1}`), figure("length of the value", num(view.norm)), figure("read in", "raw basis, final norm left out")),
      h("section", { class: "card", "aria-labelledby": "value-title" }, h("header", {}, h("h2", { id: "value-title" }, "What the value does to the vocabulary"), other ? null : h("span", { class: "faint" }, "click a token to pin it in Trace")), h("div", { class: "two" }, columns), about("The value times the output matrix, the final norm left out, as in the papers: a coefficient of 1 adds these scores, up to the norm. A negative coefficient turns both lists round."), asTable("All as a table", ["promoted", "score", "suppressed", "score"], () => view.promoted.map((p, i) => [visible(p.token), p.score, visible(view.suppressed[i].token), view.suppressed[i].score]))),
      h("div", { class: "two" },
        h("section", { class: "card", "aria-labelledby": "key-title" }, h("header", {}, h("h2", { id: "key-title" }, "What sets it off")), triggers),
        h("div", { class: "stack" },
          h("section", { class: "card", "aria-labelledby": "try-title" }, h("header", {}, h("h2", { id: "try-title" }, "Try a text")), tryForm(tried, layer, index), tried),
          h("section", { class: "card", "aria-labelledby": "label-title" }, h("header", {}, h("h2", { id: "label-title" }, "What people call it")), labels),
          h("section", { class: "card", "aria-labelledby": "class-title" }, h("header", {}, h("h2", { id: "class-title" }, "Classes its tokens share")), concepts),
          h("section", { class: "card", "aria-labelledby": "near-title" }, h("header", {}, h("h2", { id: "near-title" }, "Values like it")), near))));
    loadTriggers(triggers, layer, index);
    loadLabels(labels, names, layer, index);
    loadNear(near, layer, index);
    loadConcepts(concepts, layer, index);
  }

  const figure = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

  function pin(id) {
    const pins = state().pins.split(" ").filter(Boolean);
    go({ pins: [...new Set([...pins, String(id)])].slice(-5).join(" ") }, { push: false });
    say("pinned");
  }

  async function loadTriggers(box, layer, index) {
    if (!model.can.index) return noIndex(box, "Triggers are the texts of a corpus on which the key fires most.");
    fill(box, h("p", { class: "faint" }, "Reading triggers …"));
    try {
      const found = await api.get(`/memories/${layer}/${index}/triggers`, { top: 25, context: 28 }, { channel: "triggers" });
      if (!found.rows.length) return fill(box, h("p", { class: "note" }, "The key never fired on this corpus."));
      let shown = 10;
      const list = h("div");
      const drawRows = () => {
        fill(list, found.rows.slice(0, shown).map((row) => h("div", { class: "trigger" },
          h("span", { class: "value", title: "coefficient at the marked token" }, num(row.coefficient)),
          h("div", { class: "context", dir: "auto" }, row.prefix.replace(/\s+/g, " "), h("mark", {}, row.token), h("span", { class: "next", title: "the token that follows in the corpus" }, ` ${visible(row.next_token || "")}`)),
          button("use", () => go({ screen: "trace", p: row.prefix.trimStart() + row.token, pos: "", t: "", L: "" }), { class: "quiet", title: "Use as prompt", "aria-label": "Use this text as the prompt" }))),
          shown < found.rows.length ? button(`Show all ${found.rows.length}`, () => ((shown = 99), drawRows()), { class: "quiet" }) : null);
      };
      drawRows();
      fill(box, list, h("p", { class: "faint" }, `index ${model.index}; the marked token is where the key fires`));
    } catch (error) {
      failure(box, error, () => loadTriggers(box, layer, index));
    }
  }

  function noIndex(box, text) {
    fill(box, h("div", { class: "note stack" }, h("p", {}, text), h("p", {}, "No index is open. Build one (a few minutes for a small corpus), then serve it:"), h("code", {}, "unembed index build --out my-index"), h("code", {}, "unembed serve --index my-index")));
  }

  async function loadConcepts(box, layer, index) {
    fill(box, h("p", { class: "faint" }, "Looking …"));
    try {
      const found = await api.get(`/memories/${layer}/${index}/concepts`, {}, { channel: "concepts" });
      fill(box, found.rows.length ? h("ul", { class: "stack" }, found.rows.slice(0, 8).map((row) => h("li", {}, h("span", { class: "tag" }, row.kind), " ", h("b", {}, row.concept), h("span", { class: "faint" }, ` ${row.n_tokens} of 30: `), row.tokens.slice(0, 8).map((t) => [token(t), " "])))) : h("p", { class: "faint" }, "No class is shared by at least 4 of the 30 top tokens."));
    } catch (error) {
      failure(box, error);
    }
  }

  async function loadNear(box, layer, index) {
    if (!model.can.index) return noIndex(box, "Neighbours are found with an index.");
    try {
      const found = await api.get(`/memories/${layer}/${index}/similar`, { top: 6 }, { channel: "similar" });
      fill(box, h("ul", {}, found.rows.map((row) => h("li", { class: "sub-update" }, h("div", { class: "head" }, h("a", { href: `#/memory?m=${row.layer}.${row.index}`, onclick: (e) => (e.preventDefault(), go({ m: `${row.layer}.${row.index}` })) }, `L${row.layer}M${row.index}`), h("span", { class: "faint" }, `cosine ${num(row.cosine)}`)), h("div", { class: "toks" }, row.top_tokens.slice(0, 8).map((t) => token(t)))))));
    } catch (error) {
      failure(box, error);
    }
  }

  function tryForm(box, layer, index) {
    const input = h("input", { type: "text", "aria-label": "Text to try", value: prompt(), onkeydown: (e) => e.key === "Enter" && run() });
    input.style.flex = "1";
    const run = async () => {
      try {
        const found = await api.post(`/memories/${layer}/${index}/activations`, { prompt: input.value || " " }, { channel: "activations", keep: true });
        const most = Math.max(...found.coefficients.map(Math.abs), 1e-9);
        const cells = h("div");
        strip(cells, { tokens: found.tokens, classes: found.coefficients.map((m) => { const q = Math.round((6 * Math.abs(m)) / most); return q ? `${m < 0 ? "w" : "c"}${q}` : ""; }), titles: found.coefficients.map((m) => `coefficient ${m.toPrecision(4)}`) });
        const best = found.coefficients.reduce((a, m, i) => (Math.abs(m) > Math.abs(found.coefficients[a]) ? i : a), 0);
        fill(box, cells, h("p", { class: "faint" }, "largest ", signed(found.coefficients[best]), " at ", token(found.tokens[best]), "; blue positive, orange negative"), asTable("As a table", ["token", "coefficient"], () => found.tokens.map((t, i) => [visible(t), found.coefficients[i]])));
      } catch (error) {
        failure(box, error);
      }
    };
    run();
    return h("div", { class: "row" }, input, button("Try", run, { class: "btn" }));
  }

  async function loadLabels(box, names, layer, index) {
    if (!model.can.index) return noIndex(box, "Labels are kept in an index.");
    try {
      const found = await api.get("/labels", { layer, index }, { channel: "labels", fresh: true });
      fill(names, found.rows.map((row) => h("span", { class: "tag" }, h("span", { class: "dot-label" }), row.label)));
      const label = h("input", { type: "text", "aria-label": "Name", placeholder: "a name for it", onkeydown: (e) => e.key === "Enter" && save() });
      const who = h("input", { type: "text", "aria-label": "Your name", placeholder: "your name", value: author() });
      const sure = h("select", { "aria-label": "How sure" }, h("option", { value: "" }, "how sure"), [1, 2, 3, 4, 5].map((n) => h("option", { value: n }, `${n} of 5`)));
      const save = async () => {
        localStorage.setItem("author", who.value);
        try {
          await api.send("POST", "/labels", { layer, index, label: label.value, author: who.value, ...(sure.value ? { confidence: Number(sure.value) } : {}) });
          api.forget("/memories/search");
          loadLabels(box, names, layer, index);
        } catch (error) {
          api.fail(error);
        }
      };
      fill(box, found.rows.map((row) => h("p", { class: "row" }, h("b", {}, row.label), h("span", { class: "faint" }, `${row.author || "someone"}, ${row.made.slice(0, 10)}${row.notes.confidence ? `, sure ${row.notes.confidence} of 5` : ""}`), button("withdraw", async () => { await api.send("POST", `/labels/${row.id}/withdraw`, { author: author() || "someone" }).catch(api.fail); loadLabels(box, names, layer, index); }, { class: "quiet" }))),
        h("div", { class: "row" }, label, who, sure, button("Keep", save, { class: "btn" })));
    } catch (error) {
      failure(box, error);
    }
  }

  return {
    update(now, before) {
      if (before.screen !== now.screen || now.m !== before.m) return load();
    },
    key(event) {
      const step = { "[": -1, "]": 1 }[event.key];
      if (step && view) return go({ m: `${view.layer}.${(view.index + step + model.d_mlp) % model.d_mlp}` }, { push: false }), true;
      if (event.key === "i" && view) return tray.add({ target: "coefficient", layer: view.layer, index: view.index, action: "scale", value: 0 }), true;
      if (event.key === "Escape") return history.back(), true;
      return false;
    },
    exported: () => view && { name: `memory-${view.layer}-${view.index}`, json: view, rows: [["end", "id", "token", "score"], ...view.promoted.map((r) => ["promoted", r.id, r.token, r.score]), ...view.suppressed.map((r) => ["suppressed", r.id, r.token, r.score])] },
  };
}
