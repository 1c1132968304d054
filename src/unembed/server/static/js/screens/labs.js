/** Laboratories: steering by words, toxicity, early exit. A pane says plainly what is not there. */
import { button, fill, h, num, segmented } from "../dom.js";
import { go, setEdits, state } from "../state.js";
import { about, failure, prompt } from "../parts.js";
import { token } from "../islands/tokens.js";

export function render(root, page) {
  const { api, model } = page;
  const host = h("div", { class: "stack" });
  const tabs = segmented("Laboratory", [["steer", "Steer by words"], ["toxicity", "Toxicity"], ["early-exit", "Early exit"]], state().path[0] || "steer", (v) => go({ path: [v] }));
  fill(root, h("div", { class: "stack" }, h("div", { class: "row" }, h("h1", {}, "Labs"), tabs), host));

  function draw() {
    const which = state().path[0] || "steer";
    if (which === "steer") return steer();
    lab(which);
  }

  function steer() {
    if (!model.can.memories) return fill(host, h("p", { class: "note" }, "This model has no memories to turn on."));
    const up = h("input", { type: "text", placeholder: "words to raise, such as safe, thank", "aria-label": "Words to raise" });
    const down = h("input", { type: "text", placeholder: "words to lower", "aria-label": "Words to lower" });
    const out = h("div", { class: "stack" });
    const find = async () => {
      try {
        const found = await api.post("/labs/promoters", { promote: up.value, suppress: down.value, values: 3 }, { channel: "promoters", what: "Finding values", keep: true });
        const rows = found.rows;
        fill(out, rows.length ? [h("table", {}, h("thead", {}, h("tr", {}, ["memory", "word", "place", "score", "promotes"].map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, rows.map((r) => h("tr", {}, h("td", {}, h("a", { class: "tok", href: "#", onclick: (e) => (e.preventDefault(), go({ screen: "memory", m: `${r.layer}.${r.index}` })) }, `L${r.layer}M${r.index}`)), h("td", {}, r.word), h("td", { class: "n" }, String(r.rank + 1)), h("td", { class: "n" }, num(r.score)), h("td", {}, r.top_tokens.map((t) => [token(t), " "])))))), button("Put these into the edits", () => (setEdits(found.edits.map((e) => ({ ...e, on: true }))), go({ screen: "intervene" })), { class: "btn main" })] : h("p", { class: "faint" }, "Write at least one word."));
      } catch (error) {
        failure(out, error, find);
      }
    };
    fill(host, h("section", { class: "card" }, h("header", {}, h("h2", {}, "Values found by the words they promote")), h("div", { class: "edit-form" }, up, down, button("Find", find, { class: "btn" })), out, about("Values that list a word among their 30 top tokens, highest score first. Raised ones are set to a coefficient of 3, lowered ones to 0, as in Geva et al. 2022, section 6.")));
    out.append(h("p", { class: "faint" }, `The prompt is: ${prompt()}`));
  }

  async function lab(which) {
    if (!model.can.memories) return fill(host, h("p", { class: "note" }, "This laboratory works on memories, and this model has none."));
    try {
      const module = await (which === "early-exit" ? import("./labs-early-exit.js") : import("./labs-toxicity.js"));
      module.render(host, page);
    } catch (error) {
      failure(host, error, () => lab(which));
    }
  }

  return {
    update(now, before) {
      if (before.screen !== now.screen || now.path[0] !== before.path[0] || now.p !== before.p || now.iv !== before.iv || now.off !== before.off) draw();
    },
  };
}
