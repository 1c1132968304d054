/** Labs: steering by words, toxicity, early exit. */
import { literal } from "../code.js";
import { button, fill, h, segmented, textBox, worded } from "../dom.js";
import { about, answered, card, link, pane, prompt, table, toks } from "../parts.js";
import { asksAnew, go, setEdits, state } from "../state.js";

const LABS = { steer: "Steer by words", toxicity: "Toxicity", "early-exit": "Early exit" };
const MODULES = { toxicity: () => import("./labs-toxicity.js"), "early-exit": () => import("./labs-early-exit.js") };
const NO_VALUES = "This model has no memories (FFN neurons) to turn on.";
const NO_MEMORIES = "This laboratory works on memories, and this model has none.";

export function render(root, page) {
  const host = h("div.stack");
  /** @type {any} */ let shown = null;
  const which = () => (state().path[0] in LABS ? state().path[0] : "steer");
  const tabs = segmented("Laboratory", LABS, which(), (v) => go({ path: [v] }));
  fill(root, h("div.stack.bounded", h("div.row", h("h1", "Labs"), tabs), host));

  function draw() {
    const name = which();
    tabs.show(name);
    shown = null;
    if (!page.model.can.memories) return fill(host, h("p.note", name === "steer" ? NO_VALUES : NO_MEMORIES));
    if (name === "steer") shown = steer(host, page.api);
    else
      pane(host, async () => {
        shown = (await MODULES[name]()).render(host, page);
      });
  }

  return {
    update: (now, before) => void ((asksAnew(now, before) || now.path[0] !== before.path[0]) && draw()),
    exported: () => shown?.(),
    code: () => shown?.code?.(),
  };
}

function steer(host, api) {
  const out = h("div.stack.steered");
  const up = textBox("Words to promote", { placeholder: "such as safe, thank", onenter: find });
  const down = textBox("Words to suppress", { placeholder: "such as angry", onenter: find });
  function find() {
    const body = { promote: up.value, suppress: down.value, values: 3 };
    const ask = () => api.post("/labs/promoters", body, { channel: "promoters", what: "Finding values" });
    return answered(out, ask, drawValues);
  }
  const form = [worded("promote", up), worded("suppress", down), button("Find", find, "btn main")];
  fill(host, card("Values found by the words they promote", null, h("div.row.words", form), out, about("steer")));
  fill(out, h("p.faint", `The prompt is: ${prompt()}`));
  const code = () => [
    `found = unembed.steering.promoting(lm, unembed.steering.words_of(${literal(up.value || down.value)}), 3)`,
    "print(unembed.steering.ranked_values_table(lm, found))",
  ];
  return Object.assign(() => null, { code });
}

function drawValues({ rows, edits }) {
  if (!rows.length) return h("p.faint", "Write at least one word.");
  const take = () => {
    setEdits(edits.map((e) => ({ ...e, on: true })));
    go({ screen: "intervene" });
  };
  const line = (r) => [link(r), r.word, r.rank, r.score, toks(r.top_tokens, 99)];
  return [
    table(["memory", "word", "rank", "score", "promotes"], rows.map(line)),
    h("div", button("Put these into the edits", take, "btn main")),
  ];
}
