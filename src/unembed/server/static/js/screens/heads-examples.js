/** One head on other texts: a repeated sequence, and the windows of the corpus with its largest contributions. */
import { contexts, lengths } from "../contexts.js";
import { button, fill, h, numberBox, percent, textBox, worded } from "../dom.js";
import { pattern } from "../islands/heads.js";
import { visible } from "../islands/tokens.js";
import { about, asTable, card, pane } from "../parts.js";

/** The repeated-token (induction) test. `{card, draw}` */
export function repeatedTokens(t) {
  const out = h("div.stack");
  const length = numberBox("Tokens before the repetition", 16, { min: 2, max: 64, onchange: () => draw() });
  const seed = numberBox("Seed of the random tokens", 0, { onchange: () => draw() });
  const text = textBox("Text to repeat", {
    placeholder: "random tokens, or your own text",
    style: { flex: "1 1 200px" },
    onchange: () => draw(),
  });
  const draw = () =>
    pane(out, async () => {
      const found = await t.api.get(
        `/heads/${t.chosen.join("/")}/induction`,
        {
          length: Math.max(2, Math.min(64, Number(length.value) || 16)),
          seed: Math.max(0, Number(seed.value) || 0),
          text: text.value,
        },
        { channel: "induction" },
      );
      const map = h("div");
      const looked = new Map(found.stripe);
      pattern(map, { ...found, marked: (dst, src) => looked.get(dst) === src });
      const named = (i) => `${i} ${visible(found.tokens[i])}`;
      fill(out, [
        h("p", { role: "status" }, [
          h("b", percent(found.score)),
          ` of the attention of ${t.id()} is on the outlined cells; uniform attention would give ` +
            `${percent(found.chance)}.`,
        ]),
        map,
        asTable("As a table", ["destination", "source", "weight"], () =>
          found.stripe.map(([dst, src]) => [named(dst), named(src), found.weights[dst][src]]),
        ),
      ]);
    });
  return {
    card: card("Repeated-token (induction) test", null, [
      h("div.row", text, worded("length", length), worded("seed", seed)),
      out,
      about("twice"),
    ]),
    draw,
  };
}

const WINDOWS = 32;
const LENGTH = 128;
/** Multiplications per second of a slow processor, and the seconds of work that start without a click. */
const SPEED = 2e10;
const UNASKED = 60;

/**
 * Texts with the head's largest contributions; one pass over the corpus serves all heads of its layer.
 * `{card, draw(readNow)}`. With an index they are computed on arrival, unless that would take minutes.
 */
export function topContexts(t) {
  const texts = h("div.stack");
  const read = new Set();
  const { n_layers, d_model, device, can } = t.model;
  const quick = device !== "cpu" || (12 * n_layers * d_model ** 2 * WINDOWS * LENGTH) / SPEED < UNASKED;
  const start = button("Find examples", () => draw(true), { class: "btn small" });
  const draw = (readNow = can.index && quick) =>
    pane(texts, async () => {
      const [layer, head] = t.chosen;
      t.api.cancel("examples");
      start.hidden = readNow || read.has(layer);
      if (!start.hidden) return fill(texts, h("p.faint", reason()));
      let found = null;
      try {
        await t.api.stream(
          `/heads/${layer}/${head}/examples`,
          { windows: WINDOWS, length: LENGTH },
          (line) => (line.examples ? (found = line) : progress(line)),
          { channel: "examples", what: "Finding examples" },
        );
      } catch (error) {
        start.hidden = false;
        if (error.code === "superseded" && t.chosen[0] === layer && t.chosen[1] === head)
          return fill(texts, h("p.faint", "Cancelled before all windows were read."));
        throw error;
      }
      read.add(layer);
      shown(found);
      return undefined;
    });
  const reason = () =>
    can.index
      ? `Reading ${WINDOWS} windows of the corpus takes this model minutes on a processor.`
      : `Without an index, ${WINDOWS} windows of the text that comes with the package are read.`;
  const progress = (line) => fill(texts, h("p.faint", `${line.done} of ${line.of} windows read`));
  function shown(found) {
    const list = h("div");
    const rows = found.examples.map((one) => ({ ...one, coefficient: one.value, coefficients: one.carried }));
    contexts(list, rows, 5, "carries");
    const tokens = `${found.windows} windows (${found.tokens.toLocaleString("en")} tokens) of ${found.corpus}`;
    fill(texts, lengths(), list, h("p.faint", `${t.id()} in ${tokens}: ${found.measure}.`));
  }
  return { card: card("Top contexts in the corpus", start, texts, about("examples")), draw };
}
