/** One head on other texts: a sequence that is repeated, and the windows of the corpus in which it contributes most. */
import { contexts, lengths } from "../contexts.js";
import { button, fill, h, numberBox, percent, textBox, worded } from "../dom.js";
import { pattern } from "../islands/heads.js";
import { visible } from "../islands/tokens.js";
import { about, asTable, card, pane } from "../parts.js";

/** The repeated-token (induction) test. `{card, draw}` */
export function repeatedTokens(t) {
  const out = h("div", { class: "stack" });
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
      fill(
        out,
        h(
          "p",
          { role: "status" },
          h("b", {}, percent(found.score)),
          ` of the attention of ${t.id()} is on the outlined cells; uniform attention would give ${percent(found.chance)}.`,
        ),
        map,
        asTable("As a table", ["destination", "source", "weight"], () =>
          found.stripe.map(([dst, src]) => [named(dst), named(src), found.weights[dst][src]]),
        ),
      );
    });
  return {
    card: card(
      "Repeated-token (induction) test",
      null,
      h("div", { class: "row" }, text, worded("length", length), worded("seed", seed)),
      out,
      about("twice"),
    ),
    draw,
  };
}

/** Texts in which the head does most: one reading of the corpus serves all heads of its layer. `{card, draw(asked)}` */
export function topContexts(t) {
  const texts = h("div", { class: "stack" });
  const read = new Set();
  const draw = (asked) =>
    pane(texts, async () => {
      const [layer, head] = t.chosen;
      const id = t.id();
      fill(texts);
      t.api.cancel("examples");
      if (!asked && !read.has(layer)) return;
      let found = null;
      await t.api.stream(
        `/heads/${layer}/${head}/examples`,
        {},
        (line) =>
          line.examples
            ? (found = line)
            : fill(texts, h("p", { class: "faint" }, `${line.done} of ${line.of} windows read`)),
        { channel: "examples", what: "Finding examples" },
      );
      read.add(layer);
      const list = h("div");
      contexts(
        list,
        found.examples.map((one) => ({ ...one, coefficient: one.value, coefficients: one.carried })),
        5,
        "carries",
      );
      fill(
        texts,
        lengths(),
        list,
        h(
          "p",
          { class: "faint" },
          `${id} in ${found.windows} windows (${found.tokens.toLocaleString("en")} tokens) of ${found.corpus}: ${found.measure}.`,
        ),
      );
    });
  const start = button("Find examples", () => draw(true), { class: "btn small" });
  return { card: card("Top contexts in the corpus", start, texts, about("examples")), draw };
}
