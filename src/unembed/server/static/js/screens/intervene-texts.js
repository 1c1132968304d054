/** Two continuations side by side, without and with the edits, as they are generated. */
import { button, fill, h, part, percent, statusLine } from "../dom.js";
import { visible } from "../islands/tokens.js";
import { failure, prompt } from "../parts.js";
import { activeEdits } from "../state.js";

/**
 * Make the pane and its buttons. `seed`: the box of the seed; `generated()`: the number of new tokens; `finished()` is
 * called after each run.
 */
export function continuations(api, { seed, generated, finished }) {
  const texts = { base: h("div.text", { "aria-live": "off" }), edit: h("div.text") };
  const summary = statusLine("p.soft");
  const start = button("Run both", run, "btn main");
  const stop = button("Stop", () => api.cancel("compare"), "btn", { hidden: true });
  /** @type {any} */ let shown = null; // the last generated texts
  let running = false;
  let changed = false; // whether the prompt or the edits changed since the last run

  function begun(on) {
    running = on;
    stop.hidden = !on;
    start.disabled = on;
  }

  async function run() {
    if (running) return;
    begun(true);
    changed = false;
    const body = { prompt: prompt(), edits: activeEdits(), max_new_tokens: generated() };
    if (seed.value !== "") Object.assign(body, { seed: Number(seed.value) });
    for (const box of Object.values(texts)) fill(box, h("span.given", body.prompt));
    if (!body.edits.length) fill(texts.edit, h("span.faint", "No edit is on."));
    fill(summary);
    shown = { prompt: body.prompt, edits: body.edits, base: [], edit: [] };
    const received = receiver(texts, shown);
    const on = (line) => {
      if (line.kind === "token") received(line);
      else if (line.kind === "summary") {
        fill(summary, line.edits.length > 0 && divergence(line));
        finished();
      }
    };
    try {
      await api.stream("/compare", body, on, { channel: "compare", what: "Generating" });
    } catch (/** @type {any} */ error) {
      if (error.code === "superseded") fill(summary, "Stopped.");
      else failure(summary, error, run);
    } finally {
      begun(false);
      if (changed) stale();
    }
  }

  function stale() {
    changed = true;
    if (!running) fill(summary, "Changed since the last run.");
  }

  /** Show an earlier run. */
  function show(r) {
    const text = (side) => r.texts[side] ?? "";
    shown = { prompt: r.prompt, edits: r.edits, base: [{ token: text("base") }], edit: [{ token: text("edit") }] };
    for (const side in texts) fill(texts[side], h("span.given", r.prompt), text(side));
    fill(summary, `Run ${r.run}, as it was.`);
  }

  const cancel = () => running && (api.cancel("compare"), true);
  const pair = h("div.pair", part("Baseline", texts.base), part("With the edits", texts.edit));
  return { el: [summary, pair], start, stop, run, cancel, stale, show, exported: () => shown && exported(shown) };
}

const divergence = (line) =>
  line.diverges_at === null
    ? "The continuations are the same."
    : `Diverges at generated token ${line.diverges_at + 1}.`;

/**
 * Make a function that appends each token to its side. Tokens that both sides have are dimmed; the first ones that differ
 * are marked. The time to the first token is measured.
 */
function receiver(texts, shown) {
  const started = performance.now();
  /** @type {any} */ const spans = { base: [], edit: [] };
  let diverged = false;
  return ({ side, id, token, probability, candidates }) => {
    if (!spans.base.length && !spans.edit.length)
      performance.measure("first-token", { start: started, end: performance.now() });
    const next = candidates.slice(0, 4).map((c) => `${visible(c[1])} ${percent(c[2])}`);
    const span = h("span", { title: `${percent(probability)}; then ${next.join(", ")}` }, token);
    texts[side].append(span);
    spans[side].push(span);
    shown[side].push({ id, token, probability });
    const at = spans[side].length - 1;
    const both = [spans.base[at], spans.edit[at]];
    if (!both[0] || !both[1] || diverged) return;
    diverged = shown.base[at].id !== shown.edit[at].id;
    for (const one of both) one.className = diverged ? "diverges" : "common";
  };
}

function exported(shown) {
  const line = (side) => (one, i) => [side, i + 1, one.id ?? "", one.token, one.probability ?? ""];
  const rows = ["base", "edit"].flatMap((side) => shown[side].map(line(side)));
  return {
    name: "comparison",
    json: shown,
    rows: [["side", "generated_token", "id", "token", "probability"], ...rows],
  };
}
