/** Memories found by the words that they promote or suppress, by their examples and labels; and concepts. */
import { button, debounced, entering, fill, grouped, h, namedBoxes } from "../dom.js";
import { columns, dimming, empty, pane, topTokens, written } from "../parts.js";
import { differ, go, openCard, state, turn } from "../state.js";
import { bulkPane, listed } from "./search-bulk.js";
import { drawConcept } from "./search-concept.js";
import { clearFilters, drawFacets, drawPieces, drawRows, NO_FILTERS, query } from "./search-results.js";

const NO_INDEX = "No index is open: triggers and labels cannot be searched. unembed serve --index DIR";
const SAMPLES = ["year", '"·the"', "-not", "*ing", "layer:3-5 house", 'ctx:"of the"', "name:city"];

export function render(root, page) {
  const submit = () => enter(t);
  const input = h("input", {
    type: "search",
    "aria-label": "Search memories",
    placeholder: 'a word, -word, "·token", *part*, /expression/, ctx:"some words", name:label, layer:2-4, L4M17',
    style: { flex: 1 },
    oninput: debounced(submit, 90),
    onkeydown: entering(submit),
  });
  const panes = namedBoxes({ title: "h1", pieces: "div.faint", facets: "div.row", results: "div.stack.found" });
  const begun = { found: null, filters: { ...NO_FILTERS }, chosen: new Map() };
  const lookUp = (text) => ((input.value = text), submit());
  const { api, model } = page;
  /** `found`: the hits of the query or the members of the concept; `chosen`: the ticked memories by id. */
  /** @type {any} */ const t = { api, model, input, ...panes, ...begun, named, lookUp };
  Object.assign(t, { draw: () => draw(t), show: () => show(t), bulk: bulkPane(t) });
  fill(root, [
    h("div.stack.bounded", [
      t.title,
      h("div.row", input, button("Search", submit, "btn main")),
      [t.pieces, t.facets, t.bulk.el, t.bulk.joined, t.results],
    ]),
  ]);
  return {
    update(now, before) {
      const opened = before.screen !== now.screen;
      if (!differ(now, before, "screen", "query") && now.path[1] === before.path[1]) return;
      if (document.activeElement !== input) input.value = now.query;
      if (opened && !named()) input.focus();
      if (opened || document.activeElement !== input || named()) return show(t);
    },
    exported: () => t.found && exported(t.found),
  };
}

/** The concept that the address names, or an empty text. */
const named = () => (state().path[0] === "concept" ? state().path[1] : "");

async function enter(t) {
  if (openCard(t.input.value)) return;
  clearFilters(t);
  turn({ query: t.input.value, path: [] });
  await show(t);
}

async function show(t) {
  const { api, chosen, results } = t;
  const name = named();
  t.title.textContent = name ? `Concept: ${name}` : "Search";
  for (const el of [t.pieces, t.facets, t.bulk.el, t.bulk.joined]) fill(el);
  chosen.clear();
  if (!name && !state().query.trim()) return tips(t);
  await dimming([results], results, async () => {
    if (name) {
      t.found = await api.get(`/concepts/${encodeURIComponent(name)}`, {}, { channel: "search", fresh: true });
      t.bulk.choose(t.found.members);
    } else {
      t.found = await api.get("/memories/search", query(t), { channel: "search", what: "Searching" });
      drawPieces(t);
      drawFacets(t);
    }
    draw(t);
  });
}

/** Draw the list of hits or members, and what can be done with the ticked ones. */
function draw(t) {
  if (named()) drawConcept(t);
  else drawRows(t, () => more(t));
  t.bulk.draw();
}

/** Load further hits and show them below the others. */
const more = (t) =>
  pane(t.results, async () => {
    const next = await t.api.get("/memories/search", query(t, t.found.hits.length), { channel: "search" });
    t.found = { ...next, hits: [...t.found.hits, ...next.hits] };
    draw(t);
  });

/** Say what can be searched, where no query was entered. */
async function tips(t) {
  const { model, results } = t;
  const sample = (text) => button(text, () => t.lookUp(text), "btn small");
  t.found = null;
  if (!model.can.memories) {
    const none = "This model has no memories to search";
    return void fill(results, empty(none, "A head, such as L0H1, opens its card.", sample("L0H1")));
  }
  const concepts = h("div.row");
  const title = "Find memories (FFN neurons) by words";
  const samples = h("div.row", SAMPLES.map(sample));
  const note = !model.can.index && h("p.faint", NO_INDEX);
  fill(results, empty(title, written(h("span"), "words"), samples, concepts, note));
  if (!model.can.index) return;
  const concept = ({ name, members }) =>
    button(`${name} (${grouped(members)})`, () => go({ path: ["concept", name] }), "btn small");
  await pane(concepts, async () => {
    const all = await listed(t.api);
    if (all.length) fill(concepts, [h("span.soft", "Concepts: "), all.slice(0, 20).map(concept)]);
  });
}

function exported(found) {
  const orNone = (name) => [name, (x) => x[name] ?? ""];
  const ofHits = ["of", "layer", "index", "why", "found", orNone("rank"), orNone("score"), topTokens];
  const ofMembers = ["layer", "index", ["authors", (x) => x.authors.join("; ")], "annotators", topTokens];
  if (found.hits) return { name: "search", json: found, rows: columns(found.hits, ofHits) };
  return { name: "concept", json: found, rows: columns(found.members, ofMembers) };
}
