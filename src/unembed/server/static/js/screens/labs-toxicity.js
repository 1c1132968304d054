/**
 * How scaling some memories changes the toxicity of sampled text, and what it costs in perplexity. Texts are hidden until
 * a click.
 */
import { literal } from "../code.js";
import { button, clamp, fill, h, many, numberBox, rangeBox, selectBox, worded } from "../dom.js";
import { about, card, pane, prompt } from "../parts.js";
import { activeEdits, go } from "../state.js";
import * as tray from "../tray.js";
import { drawFound, SIDES } from "./labs-toxicity-result.js";

const CHANGES = { "": "the edits in the tray", tray: "scale the memories of these edits" };

export function render(root, { api, model }) {
  const out = h("div.stack");
  const samples = numberBox("Samples", 4, { min: 1, max: 16 });
  const seed = numberBox("Seed", 0);
  const start = button("Sample and score", () => run(t), "btn main");
  const prompts = h("textarea", { rows: 2, "aria-label": "Prompts, one a line", spellcheck: "false" });
  prompts.value = prompt();
  const { what, dial, line } = dialPane();
  /** `isShown`: whether the sampled texts are; `found`: the answer. */
  const t = { api, out, samples, seed, start, prompts, what, dial, isShown: false, found: null };
  fill(root, [
    card(
      "Suppression and its cost",
      [worded("samples", samples), worded("seed", seed), start],
      [h("div.stack", prompts, h("div.row", worded("change", what)), line, out, about("suppress"))],
    ),
  ]);
  const steer = button("Steer by words", () => go({ path: ["steer"] }), "btn small");
  const hint = "No edit is on. Choose a concept, or find values that promote words.";
  if (!activeEdits().length) fill(out, h("div.note.row", hint, steer));
  if (model.can.index)
    api.get("/concepts", {}, { fresh: true }).then(({ concepts }) => offer(what, concepts), api.fail);
  const code = () => [
    `result = unembed.steering.steer(lm, ${literal(prompt())}, ${activeEdits().length ? "edits" : "[]"}, ` +
      `samples=${samples.value}, seed=${seed.value})`,
    'scorer = unembed.toxicity.open_scorer("linear")',
    'print(scorer.score(result.plain)["toxicity"], scorer.score(result.edited)["toxicity"])',
  ];
  const exported = () => t.found && { name: "toxicity", json: t.found, rows: rowsOf(t.found) };
  return Object.assign(exported, { code });
}

/** Controls for what is changed and by how much; the line of the dial is hidden where the edits are taken as they are. */
function dialPane() {
  const draw = () => {
    line.hidden = !what.value;
    text.textContent = { 0: "× 0: off", 1: "× 1: unchanged" }[dial.value] ?? `× ${dial.value}`;
  };
  const what = selectBox("What is changed", CHANGES, "", draw);
  const dial = rangeBox("How much of each memory is left", { min: 0, max: 2, step: 0.1, value: "0", oninput: draw });
  const text = h("span.faint");
  const line = h("label.row", h("span.faint", "off"), h("span", { style: { flex: "1" } }, dial), text);
  draw();
  return { what, dial, line };
}

function offer(what, concepts) {
  for (const { name, members } of concepts.slice(0, 50))
    what.append(h("option", { value: `=${name}` }, `concept ${name}, ${members}`));
}

/** The edits under test. */
async function chosen({ api, what, dial }) {
  if (!what.value) return activeEdits();
  const concept = `/concepts/${encodeURIComponent(what.value.slice(1))}`;
  const ofTray = () => activeEdits().filter((e) => e.target !== "head");
  const members = what.value === "tray" ? ofTray() : (await api.get(concept, {}, { fresh: true })).members;
  return members.slice(0, 64).map((one) => tray.edited(one, "scale", Number(dial.value)));
}

async function run(t) {
  const { api, out, start } = t;
  start.disabled = true;
  fill(out, h("p.faint", "Sampling both, then measuring perplexity …"));
  await pane(out, async () => {
    const edits = await chosen(t);
    if (!edits.length) return fill(out, h("p.note", "No memory is changed: switch an edit on, or choose a concept."));
    const [first, ...further] = t.prompts.value.split("\n").filter((text) => text.trim());
    const body = {
      prompt: first ?? prompt(),
      further: further.slice(0, 7),
      edits,
      samples: clamp(Number(t.samples.value) || 4, 1, 16),
      seed: Math.max(0, Number(t.seed.value) || 0),
    };
    const pairs = [];
    const on = (line) => {
      t.found = line.prompts ? line : { ...line, prompts: (pairs.push(line), pairs) };
      drawFound(t);
    };
    try {
      await api.stream("/labs/suppress", body, on, { channel: "suppress", what: "Sampling" });
    } catch (/** @type {any} */ error) {
      if (error.code !== "superseded") throw error;
      cancelled(t, pairs.length);
    }
    return undefined;
  });
  start.disabled = false;
}

/** Show what was measured before the work was cancelled. */
function cancelled(t, n) {
  if (n) drawFound(t, "–");
  else fill(t.out);
  const done = n ? `${many(n, "prompt")} sampled, perplexity not measured` : "nothing was measured";
  t.out.prepend(h("p.note", { role: "status" }, `Cancelled: ${done}.`));
}

function rowsOf({ prompts }) {
  const side = (one, [key, name]) => one[key].map((x, i) => [one.prompt, name, i, x.score]);
  const rows = prompts.flatMap((one) => Object.entries(SIDES).flatMap((pair) => side(one, pair)));
  return [["prompt", "side", "sample", "toxicity"], ...rows];
}
