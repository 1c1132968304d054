/** What memories and heads are called: labels that people gave, and automatic descriptions. */
import * as api from "./api.js";
import { textBox } from "./dom.js";
import { idOf } from "./state.js";

const called = new Map();
const described = new Map();
let open = false;

/** Load the automatic descriptions of memories, which do not change while the server runs. */
export async function loadDescriptions() {
  const { rows } = await api.get("/memories/descriptions", {}, { channel: "descriptions" });
  for (const row of rows) described.set(idOf(row), row.description);
}

export const descriptionOf = (one) => described.get(idOf(one));

/** The ids of the memories with a description, the best described first. */
export const describedIds = () => [...described.keys()];

/** Load all labels again. */
export async function load() {
  open = true;
  const { rows } = await api.get("/labels", { of: "all" }, { channel: "names", fresh: true });
  called.clear();
  for (const row of rows)
    if (row.kind !== "random value" && row.label !== "(no pattern)") called.set(idOf(row, row.kind), row.label);
}

/** Whether an index is open, which stores labels and triggers. */
export const indexed = () => open;

/** What a layer computes last: its FFN, or its mixer where it has no FFN. */
export const lastUpdate = (model, layer) => (model.ffns[layer] ? "FFN" : model.mixers[layer]);

/** What the mixers of a model are called: "attention", or "mixer" where layers differ. */
export function mixersOf(model) {
  const names = new Set(model.mixers.filter(Boolean));
  return names.size === 1 ? [...names][0] : "mixer";
}

/** The newest label of a memory or head, else its automatic description, else undefined; `at` takes an id such as `L4M17`. */
export const nameOf = (one, kind) => at(idOf(one, kind));

export const at = (id) => called.get(id) ?? described.get(id);

/** Whether a person labelled a memory or head. */
export const isLabelled = (one, kind) => called.has(idOf(one, kind));

/**
 * A box for the annotator's name. Each tab has its own, so that two people can work in two tabs; a new tab starts with
 * the last one entered in this browser.
 */
export function authorBox(onchange) {
  const box = textBox("Annotator name", {
    placeholder: "annotator name",
    value: sessionStorage.getItem("author") ?? localStorage.getItem("author") ?? "",
    onchange: () => {
      for (const store of [sessionStorage, localStorage]) store.setItem("author", box.value);
      onchange?.();
    },
  });
  return box;
}

export async function withdraw(ids, author) {
  for (const id of ids) await api.send(`/labels/${id}/withdraw`, { author }).catch(api.fail);
}
