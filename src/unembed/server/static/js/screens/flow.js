/** The picture of which heads and memories, at which tokens, produce a prediction; its numbers add up. */
import { literal } from "../code.js";
import { button, fill, h, promptBox, segmented, textBox, tickBox } from "../dom.js";
import { asText } from "../islands/flow-card.js";
import { about, card, prompt } from "../parts.js";
import { QUESTION, questionPicker } from "../question.js";
import { differ, go, state, turn } from "../state.js";
import { flowPane, questionOf, rowsOf } from "./flow-pane.js";

const BOXES = [
  ["", "As fits"],
  ["10", "10"],
  ["20", "20"],
  ["40", "40"],
];

export function render(root, page) {
  const position = () => (state().position === "" ? -1 : Number(state().position));
  const drawn = flowPane(page, position);
  const why = questionPicker();
  const enter = () => box.value.trim() && go({ prompt: box.value, other: "", ...fresh });
  const box = promptBox("Prompt", enter, { placeholder: "Write the beginning of a text …" });
  const compare = () => turn({ other: other.value.trim(), unpaired: "", node: "" });
  const other = textBox("Prompt without the behaviour", {
    placeholder: "found by changing one token",
    style: { flex: "1 1 220px" },
    title: "the same prompt with as many tokens, in which the prediction differs",
    onenter: compare,
  });
  const alone = tickBox("by itself", !!state().unpaired, (on) =>
    turn({ unpaired: on ? "1" : "", other: "", node: "" }),
  );
  const many = segmented("Parts drawn", BOXES, state().boxes, (value) => turn({ boxes: value }));
  fill(root, [
    h("div.stack.bounded", [
      h("h1.hidden", "Flow"),
      h("section.prompt", { "aria-label": "Prompt" }, [box, h("div.row", button("Draw", enter, "btn main"), why.el)]),
      h("div.row", [
        h("span.soft", "compared with"),
        other,
        button("Compare", compare, "btn small"),
        h("span.soft", "or"),
        alone,
      ]),
      card("Flow", [h("span.faint", "parts"), many], drawn.el, about("flow")),
    ]),
  ]);

  function load() {
    box.value = prompt();
    other.value = state().other;
    alone.querySelector("input").checked = !!state().unpaired;
    return drawn.load((data) => {
      why.draw(questionOf(data));
      if (data.counterfactual !== null) other.value = data.counterfactual;
      document.title = `Flow: ${asText(data)} · unembed`;
    });
  }

  return {
    update(now, before) {
      if (differ(now, before, "screen", "prompt", "position", "other", "unpaired", ...QUESTION)) return load();
      if (differ(now, before, "boxes")) drawn.draw({ boxes: Number(now.boxes) || undefined });
      return undefined;
    },
    destroy() {
      page.api.cancel("flow");
      drawn.destroy();
    },
    code: () => code(drawn.data),
    exported: () => drawn.data && { name: "flow", json: drawn.data, rows: rowsOf(drawn.data) },
  };
}

/** The parts of the state that a new prompt resets. */
const fresh = { position: "", token: "", against: "", single: "", unpaired: "", node: "" };

const code = (data) => [
  `graph = lm.circuit(${[
    literal(prompt()),
    data ? literal(data.target) : "token",
    data && data.against !== null ? literal(data.against) : "None",
    data && data.counterfactual !== null ? literal(data.counterfactual) : "None",
  ].join(", ")})`,
  "print(graph.nodes[:20], graph.edges[:20], graph.test(), sep='\\n')",
];
