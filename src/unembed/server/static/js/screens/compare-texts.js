/** Continuations of both prompts and of the patched run, side by side. */
import { fill, h, percent } from "../dom.js";
import { inOneLine } from "../parts.js";
import { parseId, state } from "../state.js";
import { cell, into, pointOf } from "./compare-map.js";

const NEW_TOKENS = 12;

export async function continueAll({ api, view, found, texts, statusLine }) {
  const at = found && cell(found);
  if (!at) return fill(statusLine, "Choose a cell of the map first: it is patched while the text is continued.");
  const layer = found.layers[at[0]];
  const picked = parseId(state().patched);
  const patched = picked ? state().patched : `layer ${layer}, ${pointOf(found)[1].toLowerCase()}`;
  const text = (side, { prompt }) => h("div.text", { data: { side } }, h("span.given", prompt));
  const sides = {
    clean: ["Clean", text("clean", view.clean)],
    corrupted: ["Corrupted", text("corrupted", view.corrupted)],
    patched: [`Patched: ${patched}`, text("patched", view[into()])],
  };
  fill(texts, [Object.values(sides).map(([name, box]) => h("div.stack.tight", h("h3", name), box))]);
  fill(statusLine);
  const prompts = { clean: view.clean.prompt, corrupted: view.corrupted.prompt, max_new_tokens: NEW_TOKENS };
  const place = { direction: state().direction, layer, position: found.positions[at[1]] };
  const ofPart = picked && { point: picked.kind === "head" ? "z" : "coefficients", index: picked.index };
  const body = { ...prompts, ...place, ...(ofPart ?? { point: found.point, index: null }) };
  const received = ({ kind, side, probability, token }) =>
    kind === "token" && sides[side][1].append(h("span", { title: percent(probability) }, token));
  try {
    await api.stream("/patching/continuation", body, received, { channel: "patched", what: "Generating" });
  } catch (/** @type {any} */ error) {
    fill(statusLine, error.code === "superseded" ? "Stopped." : inOneLine(error));
  }
  return undefined;
}
