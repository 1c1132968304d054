/** Labs: steering by words, toxicity, early exit. */

import { literal } from "../code.js";
import { button, fill, h, segmented, textBox, worded } from "../dom.js";
import { about, card, memoryLink, pane, prompt, table, toks } from "../parts.js";
import { asksAnew, go, setEdits, state } from "../state.js";

export function render(root, page) {
  const { api, model } = page;
  const host = h("div.stack");
  let shown = null;
  const tabs = segmented(
    "Laboratory",
    [
      ["steer", "Steer by words"],
      ["toxicity", "Toxicity"],
      ["early-exit", "Early exit"],
    ],
    state().path[0] || "steer",
    (v) => go({ path: [v] }),
  );
  fill(root, h("div.stack.bounded", h("div.row", h("h1", "Labs"), tabs), host));

  function draw() {
    const which = state().path[0] || "steer";
    shown = null;
    if (which === "steer") return steer();
    lab(which);
  }

  function steer() {
    if (!model.can.memories) return fill(host, h("p.note", "This model has no memories (FFN neurons) to turn on."));
    const entered = (e) => e.key === "Enter" && find();
    const up = textBox("Words to promote", { placeholder: "such as safe, thank", onkeydown: entered });
    const down = textBox("Words to suppress", { placeholder: "such as angry", onkeydown: entered });
    const out = h("div.stack.steered");
    shown = Object.assign(() => null, {
      code: () => [
        `found = unembed.steering.promoting(lm, unembed.steering.words_of(${literal(up.value || down.value)}), 3)`,
        "print(unembed.steering.ranked_values_table(lm, found))",
      ],
    });
    const find = () =>
      pane(out, async () => {
        const found = await api.post(
          "/labs/promoters",
          { promote: up.value, suppress: down.value, values: 3 },
          { channel: "promoters", what: "Finding values" },
        );
        fill(out, [
          found.rows.length
            ? [
                table(
                  ["memory", "word", "rank", "score", "promotes"],
                  found.rows.map((r) => [memoryLink(r), r.word, r.rank, r.score, toks(r.top_tokens, 99)]),
                ),
                h("div", [
                  button(
                    "Put these into the edits",
                    () => (setEdits(found.edits.map((e) => ({ ...e, on: true }))), go({ screen: "intervene" })),
                    { class: "btn main" },
                  ),
                ]),
              ]
            : h("p.faint", "Write at least one word."),
        ]);
      });
    fill(host, [
      card("Values found by the words they promote", null, [
        h("div.row.words", [
          worded("promote", up),
          worded("suppress", down),
          button("Find", find, { class: "btn main" }),
        ]),
        out,
        about("steer"),
      ]),
    ]);
    out.append(h("p.faint", `The prompt is: ${prompt()}`));
  }

  async function lab(which) {
    if (!model.can.memories)
      return fill(host, h("p.note", "This laboratory works on memories, and this model has none."));
    await pane(host, async () => {
      const module = await (which === "early-exit" ? import("./labs-early-exit.js") : import("./labs-toxicity.js"));
      shown = module.render(host, page);
    });
  }

  return {
    update(now, before) {
      if (asksAnew(now, before) || now.path[0] !== before.path[0]) draw();
    },
    exported: () => shown?.(),
    code: () => shown?.code?.(),
  };
}
