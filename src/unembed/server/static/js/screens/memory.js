/** One memory: the tokens of its value, the top activating examples of its key, its labels; or two side by side. */
import { button, fill, h, signed, textBox } from "../dom.js";
import { token } from "../islands/tokens.js";
import { describedIds, descriptionOf } from "../names.js";
import { card, dimming, empty, link, loading, noMemories, pane, toks, trail } from "../parts.js";
import { QUESTION } from "../question.js";
import { differ, go, idOf, memoryPath, parseId, state, turn } from "../state.js";
import * as tray from "../tray.js";
import { setUsual, times } from "../usual.js";
import { largestHere } from "./intervene-edits.js";
import { drawCard, loadHere } from "./memory-card.js";
import { topExamples } from "./memory-corpus.js";
import { atSign, ends, figures, TOP } from "./memory-value.js";

const RULE = "made by rule from its triggers and promoted tokens";
const PROMPT_CHANGES = ["prompt", "position", "edits", "disabled", ...QUESTION];

export function render(root, page) {
  const { api, model } = page;
  if (!model.can.memories) return noMemories(root);
  const host = h("div.stack");
  fill(root, host);
  /** `view`: the memory; `here` and `usual`: what it does on the prompt, and on the corpus; `tried`: its largest on a tested text. */
  const t = { page, api, model, host, view: null, here: null, usual: null, tried: null, steer: null };
  return {
    update(now, before) {
      if (differ(now, before, "screen", "memory", "compared")) return load(t);
      if (t.view && !now.compared && differ(now, before, ...PROMPT_CHANGES)) return loadHere(t);
    },
    key({ key }) {
      const by = { "[": -1, "]": 1 }[key];
      if (key === "Escape") history.back();
      else if (t.view && by) step(t, by);
      else if (t.view && key === "i") tray.off(t.view);
      else return false;
      return true;
    },
    exported: () => t.view && exported(atSign(t.view)), // as the server returns it, at either sign
  };
}

async function load(t) {
  const { api, model, host } = t;
  const wanted = parseId(state().memory);
  const exists = wanted && wanted.index < (model.memories[wanted.layer] ?? 0);
  if (!exists) return choose(t, wanted ? `There is no memory ${idOf(wanted)} in ${model.name}. ` : "");
  // Requests for the previous memory would occupy the few connections that a browser opens.
  ["contexts0", "contexts1", "concepts", "sample", "connections", "here", "next"].forEach(api.cancel);
  if (!t.view) fill(host, loading("Reading the value", 14));
  const read = (id, i) => {
    const one = parseId(id);
    return one && api.get(memoryPath(one), { top: TOP }, { channel: `memory${i}`, what: "Reading the value" });
  };
  await dimming([host], host, async () => {
    const { memory, compared } = state();
    const found = await Promise.all([read(memory, 0), read(compared, 1)?.catch((error) => missed(api, error))]);
    // Both signs of a memory have one address; a card is that of a sign.
    const [view, other] = found.map((one, i) => one && atSign({ ...one, pole: parseId([memory, compared][i])?.pole }));
    Object.assign(t, { view, here: null, usual: null, tried: null });
    draw(t, other);
  });
}

/** Report that the memory to compare with cannot be shown, and show the other alone. */
function missed(api, error) {
  if (error.code !== "superseded") {
    api.fail(error);
    turn({ compared: "" });
  }
  return null;
}

function idBox(label, on) {
  const enter = () => parseId(box.value) && on(idOf(/** @type {any} */ (parseId(box.value))));
  const box = textBox(label, { placeholder: "L4M17", size: 8, onenter: enter });
  return { box, enter };
}

/** Where no memory is chosen: a box for one, and some memories to begin with. */
function choose(t, missing) {
  const { model, host } = t;
  t.view = null;
  const { box, enter } = idBox("Layer and index", (memory) => go({ memory }));
  const kindOf = (id) => descriptionOf(parseId(id)).replace(/ \(.*/, ""); // without the examples
  const isFirst = (id, i, all) => all.findIndex((other) => kindOf(other) === kindOf(id)) === i;
  const described = describedIds().filter(isFirst).slice(0, 8);
  const list = h("ul.described", { "aria-label": "Memories with a description, the best first" }, [
    described.map((id) => h("li", link(parseId(id)))),
  ]);
  const text =
    `${missing}A memory (FFN neuron) is named by its layer (0 to ${model.n_layers - 1}) and its index (0 to ` +
    `${Math.max(...model.memories) - 1}). Click one in Trace or Layer, search for a word, or write one here.`;
  const open = h("div.row", box, button("Open", enter, "btn main"));
  const first = described.length ? list : h("div");
  fill(host, [h("h1", "Memory"), empty("Choose a memory", text, open, first)]);
  if (!described.length) offer(t, first);
}

/** Offer the memories that add most to the prediction after the prompt. */
const offer = ({ api }, box) =>
  pane(box, async () => {
    const { target, best } = await largestHere(api, 6);
    const line = (u) => h("span", link(u, "memory", { class: "btn small tok" }), " ", h("small", signed(u.score)));
    fill(box, [
      h("p.soft", "These move ", token(target.token), " most after the prompt, in logits:"),
      h("div.row", best.map(line)),
    ]);
  });

function draw(t, other) {
  const { view, host } = t;
  const names = h("div.row");
  const at = trail.indexOf(idOf(view));
  const description = !other && descriptionOf(view);
  fill(host, [
    h("div.row", [
      h("h1", idOf(view), other && ` and ${idOf(other)}`),
      description &&
        h("span.described-as", { title: RULE }, `${description} `, h("small.faint", "automatic description")),
      names, // labels, as tags
      h("span.spacer"),
      h("div.row", [
        other
          ? button("One only", () => go({ compared: "" }), "btn small")
          : h("label.row.faint", "compare with", idBox("Compare with", (compared) => go({ compared })).box),
        at >= 0 && h("span.faint", `${at + 1} of ${trail.length} found`),
        button("Previous", () => step(t, -1), "btn small", { title: "[" }),
        button("Next", () => step(t, 1), "btn small", { title: "]" }),
        button("Switch off", () => tray.off(view), "btn small", { title: "Add to the edits (i)" }),
        button(`Set to ${times(3, view)}`, () => setUsual([view], 3), "btn small", { title: "Add to the edits" }),
      ]),
    ]),
    other ? pair(t, other) : drawCard(t, names),
  ]);
}

/** Go to the next memory of the last search, or of the layer if this one is not among those found. */
function step({ view, model }, by) {
  const { layer, index } = view;
  const at = trail.indexOf(idOf(view));
  const n = model.memories[layer];
  const next = { layer, index: (index + by + n) % n };
  turn({ memory: at < 0 ? idOf(next) : trail[(at + by + trail.length) % trail.length] });
}

/** Show two memories in two columns, and the tokens that their lists share. */
function pair(t, other) {
  const { view } = t;
  const line = (name, end) => {
    const shared = view[end].map((r) => r.token).filter((text) => other[end].some((r) => r.token === text));
    return h("p", h("span.soft", `Both ${name} ${shared.length} of ${TOP}: `), toks(shared, 24));
  };
  const column = (v, i) => {
    const triggers = h("div");
    topExamples(triggers, t.page, v, i);
    return h("div.stack", [
      card(idOf(v), null, h("div.stack", figures(t.model, v), ends(v))),
      card("Top activating examples", null, triggers),
    ]);
  };
  return [
    card("Shared tokens", null, line("promote", "promoted"), line("suppress", "suppressed")),
    h("div.two", [view, other].map(column)),
  ];
}

function exported(view) {
  const rows = ["promoted", "suppressed"].flatMap((end) => view[end].map((r) => [end, r.id, r.token, r.score]));
  const json = { ...view, pole: undefined };
  return { name: `memory-${view.layer}-${view.index}`, json, rows: [["end", "id", "token", "score"], ...rows] };
}
