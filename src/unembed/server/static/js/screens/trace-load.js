/** Loads a trace: the bundled example, or that of the prompt, whose layers are drawn as they are received. */
import { button, fill, h } from "../dom.js";
import { failure, prompt, waiting } from "../parts.js";
import { QUESTION } from "../question.js";
import { activeEdits, go, state, turn } from "../state.js";
import { span as timed } from "../timing.js";
import { dropPositionBeyond } from "../unread.js";
import { conversation } from "./trace-prompt.js";

/** Load the trace of the address, or the bundled example if the address is empty: [example, trace, trace without edits]. */
async function read(t, name, drawn) {
  const { api, isShipped } = t.page;
  const now = state();
  const edits = activeEdits();
  const untouched = !now.prompt && !edits.length && now.position === "" && now.sort === "effect";
  if (untouched && isShipped && !QUESTION.some((part) => now[part])) {
    const bundled = await api.file("example");
    return [bundled, bundled.trace, null];
  }
  // The message of a link is put into this model's own chat template.
  if (now.chat) turn(await conversation(t.page.api, now.chat));
  const text = prompt();
  const [traced, plain] = await Promise.all([
    api.trace(text, edits, { on: (part) => (name(), partly(t, part) && drawn()) }),
    edits.length ? api.trace(text, [], { channel: "trace-plain" }) : null,
  ]);
  return [null, traced, plain];
}

/** Load and draw the trace; `anew`: the address has changed, so what is in the prompt's box is replaced. */
export async function load(t, { anew = false } = {}) {
  const { page, promptBox, lens, predicted, race, attribution } = t;
  const text = prompt();
  const [drawn, finished] = ["trace", "whole trace"].map(timed);
  const settled = waiting(lens.host, predicted.el, t.where, t.inspector, race.lines, attribution.el);
  const before = promptBox.value;
  const name = () => promptBox.show(before, anew); // in the frame of the grid, to save one
  t.spread = t.followed = null;
  try {
    const [example, data, plain] = await read(t, name, drawn);
    if (prompt() !== text) return;
    name();
    answered(t);
    Object.assign(t, { example, model: example ? example.model : page.model, data, plain });
    page.tokens = data.tokens.map((one) => one.token);
    dropPositionBeyond(page.tokens.length);
    page.crumbs();
    promptBox.showTrace(data);
    lens.drawControls();
    t.draw();
    performance.mark("unembed-grid");
    drawn();
    finished();
    await t.position();
    t.spreads(); // slow, so the rest of the page does not wait for it
    if (!state().prompt && !example) turn({ prompt: text }); // unless another prompt was entered meanwhile
  } catch (/** @type {any} */ error) {
    if (error.code !== "superseded") await report(t, text, error, name);
  } finally {
    settled();
  }
}

async function report(t, text, error, name) {
  name();
  t.lens.drop();
  t.whole.classList.add("unanswered"); // what is below belongs to another prompt
  if (error.code !== "invalid" || !(await offerWindow(t, text, error))) failure(t.failed, error, () => load(t));
  t.page.api.fail(error);
}

/** Remove what an earlier failure left on the page. */
function answered(t) {
  t.whole.classList.remove("unanswered");
  fill(t.failed);
}

/** Draw the layers received so far, and with the first of them the position; true if all layers are drawn. */
function partly(t, part) {
  if (state().diff) return false; // the difference needs two complete traces
  const isFirst = t.data?.id !== part.id;
  t.lens.host.classList.remove("waiting");
  answered(t);
  Object.assign(t, { example: null, model: t.page.model, data: part, plain: null, spread: null });
  t.draw();
  const isWhole = Object.keys(part.stages.at(-1).ids).length === t.model.n_layers;
  if (isFirst && !isWhole) t.position(); // reading all layers of a long prompt takes far longer than one position
  return isWhole;
}

/** If the prompt is longer than the model's context, offer its first or last tokens instead; false if it is not. */
async function offerWindow({ page, promptBox, failed }, text, error) {
  const { tokens, limit } = await page.api.get("/tokenize", { text }, { channel: "tokenize" });
  if (!limit || tokens.length <= limit) return false;
  promptBox.showTokens(tokens.length, limit);
  const keep = ([end, kept]) =>
    button(`Keep the ${end} ${limit} of ${tokens.length} tokens`, () => go({ prompt: kept.join("") }), "btn");
  const windows = { first: tokens.slice(0, limit), last: tokens.slice(-limit) };
  const what = h("p", h("b", error.message), `: ${error.why}`);
  fill(failed, h("div.warn.stack", what, h("div.row", Object.entries(windows).map(keep))));
  return true;
}
