/** One head on other texts: a repeated sequence, and the windows of the corpus with its largest contributions. */
import { contexts, isQuick, lengths, runOn } from "../contexts.js";
import { button, clamp, drawn, fill, grouped, h, numberBox, percent, textBox, worded } from "../dom.js";
import { pattern } from "../islands/heads.js";
import { visible } from "../islands/tokens.js";
import { about, answered, asTable, card, pane } from "../parts.js";

/** The repeated-token (induction) test. */
export function repeatedTokens(t) {
  const out = h("div.stack");
  const onchange = () => draw();
  const length = numberBox("Tokens before the repetition", 16, { min: 2, max: 64, onchange });
  const seed = numberBox("Seed of the random tokens", 0, { onchange });
  const placeholder = "random tokens, or your own text";
  const text = textBox("Text to repeat", { placeholder, style: { flex: "1 1 200px" }, onchange });
  function draw() {
    const numbers = { length: clamp(Number(length.value) || 16, 2, 64), seed: Math.max(0, Number(seed.value) || 0) };
    const query = { ...numbers, text: text.value };
    const ask = () => t.api.get(`${t.path()}/induction`, query, { channel: "induction" });
    return answered(out, ask, (found) => drawStripe(t.id(), found));
  }
  const form = h("div.row", text, worded("length", length), worded("seed", seed));
  return { card: card("Repeated-token (induction) test", null, form, out, about("twice")), draw };
}

/** Draw the pattern on the repeated tokens, with an outline where an induction head attends. */
function drawStripe(id, found) {
  const looked = new Map(found.stripe);
  const named = (i) => `${i} ${visible(found.tokens[i])}`;
  const rows = () => found.stripe.map(([dst, src]) => [named(dst), named(src), found.weights[dst][src]]);
  const chance = percent(found.chance);
  const rest = ` of the attention of ${id} is on the outlined cells; uniform attention would give ${chance}.`;
  return [
    h("p", { role: "status" }, h("b", percent(found.score)), rest),
    drawn(pattern, { ...found, marked: (dst, src) => looked.get(dst) === src }),
    asTable(["destination", "source", "weight"], rows),
  ];
}

const WINDOWS = 32;
const LENGTH = 128;
/**
 * Texts with the head's largest contributions; one pass over the corpus serves all heads of its layer. With an index it
 * starts without a click, unless it would take seconds.
 */
export function topContexts(t) {
  const texts = h("div.stack");
  const read = new Set();
  const { can } = t.model;
  const quick = isQuick(t.model, runOn(t.model, WINDOWS * LENGTH));
  const start = button("Find examples", () => draw(true), "btn small");
  const say = (text) => fill(texts, h("p.faint", text));
  const draw = (readNow = can.index && quick) =>
    pane(texts, async () => {
      const [layer, head] = t.chosen;
      t.api.cancel("examples");
      start.hidden = readNow || read.has(layer);
      if (!start.hidden) return say(reason());
      let found = null;
      const on = (line) => (line.examples ? (found = line) : say(`${line.done} of ${line.of} windows read`));
      const body = { windows: WINDOWS, length: LENGTH };
      try {
        await t.api.stream(`${t.path()}/examples`, body, on, { channel: "examples", what: "Finding examples" });
      } catch (/** @type {any} */ error) {
        start.hidden = false;
        if (error.code === "superseded" && t.chosen[0] === layer && t.chosen[1] === head)
          return say("Cancelled before all windows were read.");
        throw error;
      }
      read.add(layer);
      shown(found);
      return undefined;
    });
  const reason = () =>
    can.index
      ? `The model reads ${WINDOWS} windows of the corpus for this, which takes a while on a processor.`
      : `Without an index, ${WINDOWS} windows of the text that comes with the package are read.`;
  function shown(found) {
    const list = h("div");
    const rows = found.examples.map((one) => ({ ...one, coefficient: one.value, coefficients: one.carried }));
    contexts(list, rows, 5, "carries");
    const tokens = `${found.windows} windows (${grouped(found.tokens)} tokens) of ${found.corpus}`;
    fill(texts, lengths(), list, h("p.faint", `${t.id()} in ${tokens}: ${found.measure}.`));
  }
  return { card: card("Top contexts in the corpus", start, texts, about("examples")), draw };
}
