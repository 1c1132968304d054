/** The card of the edits, with suggestions while there is none, and a form for a new one. */
import { boxes, button, bySize, fill, h, numberBox, selectBox, signed } from "../dom.js";
import { token } from "../islands/tokens.js";
import { about, card, pane, prompt } from "../parts.js";
import { edits, idOf } from "../state.js";
import * as tray from "../tray.js";
import { setUsual } from "../usual.js";
import { editor } from "./intervene-edit.js";

/** Make the card; `preview(edits)` is called while a slider moves; `generated()`: the number of new tokens. */
export function editsPane(page, { preview, generated }) {
  const [list, turns] = boxes("div.stack", "span.row");
  const fields = () => [...list.querySelectorAll("input, select")];
  function draw() {
    const all = edits();
    fill(turns, tray.undoButtons(), !all.length && page.presets);
    if (!all.length) return suggest(list, page);
    const focused = fields().indexOf(document.activeElement);
    fill(list, [all.map((_, i) => editor(page, all, i, { preview, generated }))]);
    if (focused >= 0) fields()[focused]?.focus();
  }
  return { el: card("Edits", turns, list, addForm(page.model), about("edits")), draw };
}

function addForm(model) {
  const of = { coefficient: "memory", head: "head" };
  const kind = selectBox("What", of, model.can.memories ? "coefficient" : "head");
  const layer = numberBox("Layer", model.n_layers - 1, { max: model.n_layers - 1 });
  const index = numberBox("Index", 0);
  const add = () => {
    const at = { layer: Number(layer.value), index: Number(index.value) };
    if (kind.value === "head") tray.off(at, "head");
    else setUsual([at], 1);
  };
  const boxes = [h("label", "what", kind), h("label", "layer", layer), h("label", "index", index)];
  return h("details", h("summary", "Add an edit"), h("div.edit-form", boxes, button("Add", add, "btn")));
}

/** The n memories of all layers that add most to the prediction after the prompt, and its target. */
export async function largestHere(api, n) {
  const data = await api.trace(prompt(), [], { channel: "suggest" });
  const query = { position: -1, memories: 5, top: 10 };
  const { target, layers } = await api.get(`/traces/${data.id}`, query, { channel: "suggest" });
  const all = layers.flatMap((one) => one.sub_updates.slice(0, 2));
  return { target, best: bySize(all, (u) => u.score).slice(0, n) };
}

/** Suggest to switch off memories that move the prediction most. */
async function suggest(list, { api, model }) {
  fill(list, h("p.soft", "Nothing is changed yet."));
  await pane(list, async () => {
    if (!model.can.memories) return;
    const { target, best } = await largestHere(api, 3);
    if (edits().length) return; // an edit was added or restored meanwhile
    const title = (u) => u.top_tokens.slice(0, 8).join(" ");
    const text = (u) => `Switch off ${idOf(u)} (${signed(u.score)})`;
    const off = (u) => button(text(u), () => tray.off(u), "btn small", { title: title(u) });
    fill(list, [
      h("p.soft", "Nothing is changed yet. Memories that move ", token(target.token), " most here:"),
      h("div.row", best.map(off)),
    ]);
  });
}
