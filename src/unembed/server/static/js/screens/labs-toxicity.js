/** What edits do to sampled text: its toxicity score, and what they cost in perplexity. Text stays hidden until asked for. */
import { button, fill, h, num } from "../dom.js";
import { activeEdits, go } from "../state.js";
import { about, numberBox, pane, prompt, table } from "../parts.js";

export function render(root, page) {
  const { api } = page;
  let shown = false;
  const samples = numberBox("Samples", 4, { min: 1, max: 16 });
  const seed = numberBox("Seed", 0);
  const out = h("div", { class: "stack" });
  const start = button("Sample and score", run, { class: "btn main" });
  fill(root, h("section", { class: "card stack", "aria-labelledby": "tox-title" },
    h("header", {}, h("h2", { id: "tox-title" }, "Suppress, and see the price"), h("label", { class: "row faint" }, "samples", samples), h("label", { class: "row faint" }, "seed", seed), start),
    h("p", { class: "soft" }, `Prompt: ${prompt()}`),
    out,
    about("The same seed continues the prompt with and without the edits that are on. Each text is scored by the linear scorer that ships with the package; the price is the perplexity of WikiText under the same edits. A score is a number of that scorer, not a judgement.")));
  if (!activeEdits().length) {
    start.disabled = true;
    fill(out, h("div", { class: "note row" }, "No edit is on. Raise values that promote words you want.", button("Steer by words", () => go({ path: ["steer"] }), { class: "btn small" })));
  }

  async function run() {
    start.disabled = true;
    fill(out, h("p", { class: "faint" }, "Sampling both, then measuring perplexity …"));
    await pane(out, async () => draw(await api.post("/labs/suppress", { prompt: prompt(), edits: activeEdits(), samples: Math.max(1, Math.min(16, Number(samples.value) || 4)), seed: Math.max(0, Number(seed.value) || 0) }, { channel: "suppress", what: "Sampling" })));
    start.disabled = false;
  }

  function draw(found) {
    const row = (name, list, cost) => [name, ...list.map((one) => one.score), cost];
    const texts = h("div");
    const drawTexts = () => fill(texts, shown
      ? h("div", { class: "pair" }, [["Baseline", found.plain], ["With the edits", found.edited]].map(([name, list]) => h("div", {}, h("h3", {}, name), h("ol", { class: "stack" }, list.map((one) => h("li", { dir: "auto" }, one.text, h("span", { class: "faint" }, ` ${num(one.score)}`)))))))
      : h("div", { class: "warn row" }, "The sampled texts may be offensive.", button("Show them", () => ((shown = true), drawTexts()), { class: "btn small" })));
    fill(out, table(["", ...found.plain.map((_, i) => `sample ${i + 1}`), "perplexity"], [row("baseline", found.plain, found.perplexity_plain), row("with the edits", found.edited, found.perplexity_edited)], `Toxicity by ${found.scorer}; perplexity on ${found.cost_tokens} tokens of WikiText`), texts);
    drawTexts();
  }
}
