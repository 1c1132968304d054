/** Memories found by words: what they promote or suppress, what sets them off, what people call them. */
import { button, fill, h, num, percent, segmented } from "../dom.js";
import { go, state } from "../state.js";
import { empty, failure } from "../parts.js";
import { token, visible } from "../islands/tokens.js";
import * as tray from "../tray.js";

const SAMPLES = ["year", '"·the"', "-not", "layer:3-5 house", 'ctx:"of the"', "name:city"];

export function render(root, page) {
  const { api, model } = page;
  let found = null;
  let layer = "";
  const chosen = new Set();
  const input = h("input", { type: "search", "aria-label": "Search memories", placeholder: "a word, -word, \"·token\", ctx:\"some words\", name:label, layer:2-4, L4M17", oninput: typed, onkeydown: (e) => e.key === "Enter" && ask() });
  input.style.flex = "1";
  const pieces = h("p", { class: "faint" });
  const facets = h("div", { class: "row" });
  const results = h("div");
  const bulk = h("div", { class: "row" });
  fill(root, h("div", { class: "stack" }, h("h1", {}, "Search"), h("div", { class: "row" }, input, button("Search", ask, { class: "btn main" })), pieces, facets, bulk, results));

  let timer = 0;
  function typed() {
    clearTimeout(timer);
    timer = setTimeout(ask, 90);
  }

  async function ask() {
    go({ q: input.value }, { push: false });
    if (!input.value.trim()) return tips();
    results.classList.add("waiting");
    try {
      found = await api.get("/memories/search", { q: input.value, top: 60 }, { channel: "search" });
      draw();
    } catch (error) {
      failure(results, error, ask);
    } finally {
      results.classList.remove("waiting");
    }
  }

  function tips() {
    fill(pieces);
    fill(facets);
    fill(bulk);
    fill(results, empty("Find memories by words", "A word finds values that promote it; -word those that suppress it. ctx: looks into triggers, name: into labels.", h("div", { class: "row" }, SAMPLES.map((q) => button(q, () => ((input.value = q), ask()), { class: "btn small" }))), model.can.index ? null : h("p", { class: "faint" }, "No index is open: triggers and labels cannot be searched. unembed serve --index DIR")));
  }

  function draw() {
    fill(pieces, Object.entries(found.tokens).map(([word, parts]) => h("span", {}, `${visible(word)} is `, parts.map((p) => [token(p), " "]), parts.length > 1 ? "(several tokens) " : "")));
    const layers = [...new Set(found.hits.map((x) => x.layer))].sort((a, b) => a - b);
    fill(facets, found.hits.length ? segmented("Layer", [["", "All layers"], ...layers.map((n) => [String(n), `L${n}`])], layer, (v) => ((layer = v), rows())) : null);
    fill(results);
    rows();
  }

  function rows() {
    const hits = found.hits.filter((x) => layer === "" || x.layer === Number(layer));
    fill(results, found.notes.map((n) => h("p", { class: "warn" }, n)),
      hits.length ? h("table", {}, h("caption", {}, `${hits.length} memories`), h("thead", {}, h("tr", {}, ["", "memory", "why", "found", "place", "score", "top tokens"].map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, hits.map((x) => h("tr", {},
        h("td", {}, h("input", { type: "checkbox", checked: chosen.has(`${x.layer}.${x.index}`), "aria-label": `Choose L${x.layer}M${x.index}`, onchange: (e) => (e.target.checked ? chosen.add(`${x.layer}.${x.index}`) : chosen.delete(`${x.layer}.${x.index}`), tools()) })),
        h("td", {}, h("a", { class: "tok", href: `#/memory?m=${x.layer}.${x.index}`, onclick: (e) => (e.preventDefault(), go({ screen: "memory", m: `${x.layer}.${x.index}` })) }, `L${x.layer}M${x.index}`)),
        h("td", {}, h("span", { class: "tag" }, x.why)), h("td", { class: "context", dir: "auto" }, x.why === "trigger" || x.why === "name" ? x.found : token(x.found)),
        h("td", { class: "n" }, x.rank === null ? "" : String(x.rank + 1)), h("td", { class: "n" }, x.score === null ? "" : num(x.score)),
        h("td", {}, x.top_tokens.slice(0, 8).map((t) => [token(t), " "])))))) : found.notes.length ? null : empty("Nothing found", "Try another form of the word, or look how it is split into tokens above."));
    tools();
  }

  function tools() {
    const all = [...chosen].map((m) => m.split(".").map(Number));
    fill(bulk, all.length ? [h("span", { class: "soft" }, `${all.length} chosen`), button("Switch off", () => all.forEach(([l, i]) => tray.add({ target: "coefficient", layer: l, index: i, action: "scale", value: 0 })), { class: "btn small" }), button("Turn on (set to 3)", () => all.forEach(([l, i]) => tray.add({ target: "coefficient", layer: l, index: i, action: "set", value: 3 })), { class: "btn small" }), button("Clear", () => (chosen.clear(), rows()), { class: "quiet" })] : null);
  }

  return {
    update(now, before) {
      if (before.screen === now.screen && now.q === before.q) return;
      if (now.q === input.value && found) return;
      input.value = now.q;
      if (before.screen !== now.screen) input.focus();
      return ask();
    },
    exported: () => found && { name: "search", json: found, rows: [["layer", "index", "why", "found", "rank", "score", "top_tokens"], ...found.hits.map((x) => [x.layer, x.index, x.why, x.found, x.rank ?? "", x.score ?? "", JSON.stringify(x.top_tokens)])] },
  };
}
void percent;
