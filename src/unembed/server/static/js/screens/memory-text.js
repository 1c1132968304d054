/** A memory's coefficient at every token of any text. */
import { shade } from "../contexts.js";
import { button, bySize, drawn, h, signed, textBox } from "../dom.js";
import { mount as strip, token, visible } from "../islands/tokens.js";
import { answered, asTable, prompt } from "../parts.js";
import { memoryPath, state, turn } from "../state.js";

/** The form and its result; `ontested` is called with the largest coefficient. */
export function textTest({ api }, memory, ontested) {
  const out = h("div.stack");
  const run = () => {
    if (input.value !== prompt()) turn({ text: input.value });
    const body = { prompt: input.value || " " };
    const ask = () => api.post(`${memoryPath(memory)}/activations`, body, { channel: "activations" });
    return answered(out, ask, (found) => drawText(found, ontested));
  };
  const input = textBox("Text to test", { value: state().text || prompt(), style: { flex: 1 }, onenter: run });
  run();
  return [h("div.row", input, button("Test", run, "btn")), out];
}

function drawText({ tokens, coefficients }, ontested) {
  const [best] = bySize(coefficients.keys(), (i) => coefficients[i]);
  const largest = coefficients[best];
  const classes = coefficients.map((m) => shade(m, Math.max(Math.abs(largest), 1e-9)));
  const titles = coefficients.map((m) => `coefficient ${m.toPrecision(4)}`);
  ontested(largest);
  return [
    drawn(strip, { tokens, classes, titles }),
    h("p.faint", `largest ${signed(largest)} at `, token(tokens[best]), "; blue positive, orange negative"),
    asTable(["token", "coefficient"], () => tokens.map((t, i) => [visible(t), coefficients[i]])),
  ];
}
