/** How many sampled continuations contain a word, without and with the edits, with confidence intervals. */
import { bareTable, boxes, button, fill, h, numberBox, numberCell, part, percent, textBox, worded } from "../dom.js";
import { answered, card, prompt } from "../parts.js";
import { activeEdits } from "../state.js";

const SIDES = { plain: "baseline", edited: "with the edits" };

/** A pattern that finds a text as whole words, in upper or lower case. */
const finder = (word) => {
  const literal = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(`(?<![\\p{L}\\p{N}])${literal}(?![\\p{L}\\p{N}])`, "iu");
};

/** Make the card; its `suggest` sets the word to count, unless one was entered. */
export function samplesPane(api) {
  const [out, counts, texts] = boxes("div", "div", "div");
  const word = textBox("Word to count", { onchange: () => (entered = word.value !== ""), oninput: count });
  const samples = numberBox("Samples", 20, { min: 2, max: 64 });
  const length = numberBox("Tokens of each sample", 10, { min: 1, max: 60 });
  const start = button("Sample", run, "btn");
  /** @type {any} */ let found = null;
  let entered = false;

  function run() {
    const edits = activeEdits();
    if (!edits.length) return fill(out, h("p.faint", "No edit is on."));
    const body = { prompt: prompt(), edits, samples: Number(samples.value), max_new_tokens: Number(length.value) };
    fill(out, h("p.faint", { role: "status" }, "Sampling …"));
    const ask = () => api.post("/samples", body, { channel: "samples" });
    return answered(out, ask, (answer) => {
      found = answer;
      count();
      return [counts, texts];
    });
  }

  function count() {
    const wanted = word.value.trim();
    if (!found) return;
    const has = (text) => finder(wanted).test(text);
    const row = ([side, name]) => {
      const share = found.shares[found[side].filter(has).length];
      const bar = h("span.bar-track", h("span.bar.plus", { style: { width: percent(share.value).replace(" ", "") } }));
      const ends = `${percent(share.low)} to ${percent(share.high)}`;
      return [name, numberCell(percent(share.value)), bar, numberCell(ends)];
    };
    const how = `${found.plain.length} samples each, by the model's own sampling settings; exact binomial intervals.`;
    const head = ["", `share with “${wanted}”`, "", "95 % interval"];
    fill(counts, [
      wanted
        ? bareTable("table", head, Object.entries(SIDES).map(row))
        : h("p.faint", "Enter a word: it is counted on both sides."),
      h("p.faint", how),
    ]);
    const text = (one) => h(`li${wanted && has(one) ? "" : ".faint"}`, { dir: "auto" }, one);
    const side = ([name, title]) => part(title, h("ol", found[name].map(text)));
    fill(texts, h("details", h("summary", "The samples"), h("div.pair", Object.entries(SIDES).map(side))));
  }

  const controls = [worded("count", word), worded("samples", samples), worded("tokens", length), start];
  return {
    el: card("Samples", controls, out),
    suggest(text) {
      if (!entered && !found) word.value = text.trim();
    },
    stale() {
      found = null;
      fill(out, h("p.faint", "How often does the text contain a word, without and with the edits?"));
    },
  };
}
